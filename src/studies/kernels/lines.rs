//! Line numbers of mistakes in the header of a kernel file.

use crate::backend::cuda::{Source, Variant};

/// Keys of a launch, each with the phrases by which messages refer to the key.
const KEYS: [(&str, &[&str]); 6] = [
    ("grid", &["grid: ", "grid is ", "grid has ", "a grid of "]),
    (
        "block",
        &["block: ", "block is ", "block has ", "a block of ", " threads, and "],
    ),
    ("cluster", &["cluster: ", "cluster is ", "cluster has "]),
    ("shared", &["shared: ", "shared is ", " of shared memory"]),
    ("entry", &["entry '", "no entry point "]),
    ("args", &["args has "]),
];

/// Returns the number of the header line that the error message `what` refers to. It is the line with the named key in the named
/// launch, else a line with a word that the message quotes, else the variant's first line.
pub fn line_of(source: &Source, variant: &Variant, what: &str) -> usize {
    let lines: Vec<&str> = source.text.lines().collect();
    let named = |line: &&str| line.trim_start().starts_with("name") && line.contains(&format!("\"{}\"", variant.name));
    let start = lines.iter().position(named).unwrap_or(0);
    let closes = |line: &&str| line.contains("*/");
    let ends = |line: &&str| line.starts_with("[[variant]]") || line.starts_with("[[mutant]]") || closes(line);
    let end = lines[start..].iter().position(ends);
    let end = end.map_or(lines.len(), |at| start + at);
    let said = |(_, words): &&(&str, &[&str])| words.iter().any(|word| what.contains(word));
    let key = KEYS.iter().find(said);
    let of_key = |line: &&str| {
        key.is_some_and(|(key, _)| {
            let mut words = line.split(|c: char| !(c.is_alphanumeric() || c == '_'));
            words.any(|word| word == *key) && line.contains('=')
        })
    };
    let quoted = what.split('\'').skip(1).step_by(2);
    let quoted: Vec<&str> = quoted.filter(|word| **word != *variant.name).collect();
    let of_word = |line: &&str| quoted.iter().any(|word| line.contains(word));
    let (first, last) = launch_lines(variant, what, &lines[start..end]).unwrap_or((0, end - start));
    let mut launch = lines[start + first..start + last].iter();
    let in_launch = launch.clone().position(of_key).or_else(|| launch.position(of_word));
    let anywhere = || lines[start..].iter().take_while(|line| !closes(line)).position(of_word);
    let found = in_launch.map(|at| first + at).or_else(anywhere);
    start + found.unwrap_or(0) + 1
}

/// Finds the launch that the message `what` names in `lines`, the variant's lines of the header. Returns the index of the first
/// line of the launch and the index after its last line; `None` if the launch has no table `[[variant.launch]]`.
fn launch_lines(variant: &Variant, what: &str, lines: &[&str]) -> Option<(usize, usize)> {
    let name = what.split("launch '").nth(1)?.split('\'').next()?;
    // The launch's name may have parts in braces, such as `{T}`, which are replaced by the values of the case's keys.
    let fits = |template: &str| match (template.split_once('{'), template.rsplit_once('}')) {
        (Some((before, _)), Some((_, after))) => name.starts_with(before) && name.ends_with(after),
        _ => false,
    };
    let mut launches = variant.launches.iter().map(|launch| launch.name());
    let named = launches.clone().position(|launch| launch == name);
    let number = named.or_else(|| launches.position(fits))?;
    let starts = |at: &usize| lines[*at].starts_with("[[variant.launch]]");
    let first = (0..lines.len()).filter(starts).nth(number)?;
    let rest = lines[first + 1..].iter().position(|line| line.starts_with("[["));
    Some((first, rest.map_or(lines.len(), |at| first + 1 + at)))
}
