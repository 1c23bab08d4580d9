//! Patterns that select dotted names: of sites (tensors of a model), tensors in files, recipes, and cells (parts of an
//! experiment).

use crate::error::{Error, Result, counted, did_you_mean};
use crate::text::shown;

/// Number of leading characters of a part (between dots) that the edit distance compares. Names from files may be of any length,
/// and would take too long to compare.
const COMPARED: usize = 64;

/// True if the whole of `name` matches `pattern`: `*` stands for any characters except a dot, `**` for any characters,
/// including none; every other character stands for itself.
pub fn matches(pattern: &str, name: &str) -> bool {
    // reach[i] is true if the pattern read so far can match the first i bytes of the name.
    let name = name.as_bytes();
    let mut reach = vec![false; name.len() + 1];
    reach[0] = true;
    let mut rest = pattern.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        if byte == b'*' {
            // A run of more than two stars means the same as `**`.
            rest = &tail[tail.iter().take_while(|byte| **byte == b'*').count()..];
            let any = rest.len() < tail.len();
            for i in 0..name.len() {
                reach[i + 1] |= reach[i] && (any || name[i] != b'.');
            }
        } else {
            for i in (0..name.len()).rev() {
                reach[i + 1] = reach[i] && name[i] == byte;
            }
            reach[0] = false;
            if !reach.contains(&true) {
                return false;
            }
        }
    }
    reach[name.len()]
}

/// True if a name matches one of `only` (or `only` is empty) and none of `skip`.
pub fn selects(only: &[String], skip: &[String], name: &str) -> bool {
    let any = |patterns: &[String]| patterns.iter().any(|pattern| matches(pattern, name));
    (only.is_empty() || any(only)) && !any(skip)
}

/// Checks that each pattern matches at least one of `names`; `what` is the noun for the names in the error.
pub fn check(what: &str, patterns: &[&[String]], names: &[&str]) -> Result<()> {
    let mut patterns = patterns.iter().copied().flatten();
    let idle = patterns.find(|pattern| !names.iter().any(|name| matches(pattern, name)));
    idle.map_or(Ok(()), |pattern| {
        let why = matches_nothing(what, pattern, names.iter().copied());
        Err(Error::NothingSelected(why))
    })
}

/// Returns the error message for a pattern that matches none of `names`. It suggests a pattern that would match, or a similar
/// name.
pub fn matches_nothing<'a>(what: &str, pattern: &str, names: impl IntoIterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.into_iter().collect();
    // `what` may be a phrase, e.g. `site of the model`: its noun is `site`.
    let noun = what.split(" of ").next().unwrap_or(what);
    let matched = |pattern: &str| names.iter().filter(|name| matches(pattern, name)).count();
    let (wide, around) = (across_dots(pattern), format!("**{pattern}**"));
    let clean = shown(&around);
    let similar = match did_you_mean(pattern, names.iter().copied()) {
        near if near.is_empty() => {
            one_part(pattern, &names).map_or(near, |near| format!("; did you mean '{}'?", shown(&near)))
        }
        near => near,
    };
    let hint = match (matched(&wide), similar) {
        (0, near) if !near.is_empty() => near,
        (0, _) => match (matched(&around), names.first()) {
            (_, None) => format!("; there is no {noun}"),
            (some @ 1.., _) if !pattern.contains('*') => format!("; '{clean}' matches {}", counted(some, noun)),
            (_, Some(name)) => format!("; {noun}s are named like '{}'", shown(name)),
        },
        (some, _) => {
            let (wide, found) = (shown(&wide), counted(some, noun));
            format!("; '*' stops at dots: '{wide}' matches {found}")
        }
    };
    format!("'{}' matches no {what}{hint}", shown(pattern))
}

/// Corrects a pattern that differs from a name in exactly one part between dots: replaces this part by the part of the name. If
/// there are several such names, uses the one with the most similar part.
fn one_part(pattern: &str, names: &[&str]) -> Option<String> {
    let parts: Vec<&str> = pattern.split('.').collect();
    let fit = |name: &&str| {
        let of_name: Vec<&str> = name.split('.').collect();
        let wrong = |at: &usize| !matches(parts[*at], of_name[*at]);
        if of_name.len() != parts.len() || parts.len() < 3 {
            return None;
        }
        let wrong: Vec<usize> = (0..parts.len()).filter(wrong).collect();
        match wrong.as_slice() {
            [at] => Some((distance(parts[*at], of_name[*at]), *at, of_name[*at].to_string())),
            _ => None,
        }
    };
    let (_, at, part) = names.iter().filter_map(fit).min()?;
    let mut near = parts;
    near[at] = &part;
    Some(near.join("."))
}

/// Returns the edit distance between two parts of names; only the first [`COMPARED`] characters are compared.
fn distance(a: &str, b: &str) -> usize {
    let [a, b] = [a, b].map(|part| part.chars().take(COMPARED).collect::<String>());
    strsim::damerau_levenshtein(&a, &b)
}

/// Replaces every `*` of a pattern by `**`.
fn across_dots(pattern: &str) -> String {
    let mut wide = String::new();
    for character in pattern.chars() {
        match character {
            '*' if wide.ends_with('*') => {}
            '*' => wide.push_str("**"),
            other => wide.push(other),
        }
    }
    wide
}
