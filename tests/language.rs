//! Rules that the prose of the repository keeps, as far as a test can see: first words of doc comments, words that have a plainer one,
//! the form of errors, the length of sentences in help texts. `language/allowed.tsv` counts what is left of older text: a count may
//! only shrink, and `ULPLAB_BLESS=1` writes the smaller one.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use crate::layout::{ROOT, none, read, with_extension};

/// Words that a doc comment does not begin with: it begins with a verb, or with the noun that it describes.
const FIRST: [&str; 12] = [
    "What", "Whether", "How", "Where", "Who", "Of", "Which", "Those", "That", "These", "It", "Whose",
];

/// Phrases that have a plainer one: with, again, the same, any, except.
const PHRASES: [&str; 16] = [
    "beside",
    "anew",
    "alike",
    "whatever",
    "whoever",
    "all the same",
    "once more",
    "but for",
    "is told",
    "are told",
    "is said",
    "are said",
    "is asked for",
    "are asked for",
    "is no",
    "are no",
];

/// Words that may follow `is no` and `are no`, as these are then a comparison or a number: `is no larger than`, `are no more`. `There is no` is
/// plain, too.
const AFTER_NO: [&str; 14] = [
    "more", "less", "longer", "larger", "smaller", "faster", "slower", "better", "worse", "fewer", "higher", "wider",
    "earlier", "one",
];

/// Words that an error does not begin with: its subject stands first.
const ERROR_FIRST: [&str; 12] = [
    "it", "its", "there", "that", "of", "those", "they", "what", "how", "where", "who", "which",
];

/// Most words of a sentence in a help text.
const LONGEST: usize = 32;

/// A comment of Rust, of CUDA C++ or of Python, or a paragraph of Markdown: the line it begins in, and its text in one line.
struct Prose {
    line: usize,
    doc: bool,
    text: String,
}

/// The comments of a source file. Lines that follow each other with the same marker are one.
fn comments(text: &str, markers: &[(&str, bool)]) -> Vec<Prose> {
    let mut found: Vec<Prose> = Vec::new();
    let mut open = None;
    for (number, line) in text.lines().enumerate() {
        let line = line.trim_start();
        let marker = markers.iter().find(|(marker, _)| line.starts_with(marker));
        match (marker, open) {
            (None, _) => {}
            (Some(&(marker, _)), Some(before)) if marker == before => {
                let last = &mut found.last_mut().expect("an open comment").text;
                last.push(' ');
                last.push_str(line[marker.len()..].trim());
            }
            (Some(&(marker, doc)), _) => found.push(Prose {
                line: number + 1,
                doc,
                text: line[marker.len()..].trim().into(),
            }),
        }
        open = marker.map(|&(marker, _)| marker);
    }
    found
}

/// The prose of a file, by its extension. Code blocks, tables' code and quoted output in Markdown are not prose.
fn prose(file: &Path, text: &str) -> Vec<Prose> {
    match file.extension().and_then(|extension| extension.to_str()) {
        Some("rs" | "cu" | "cuh") => comments(text, &[("///", true), ("//!", true), ("//", false)]),
        Some("py") => comments(text, &[("#", false)]),
        _ => {
            let mut fenced = false;
            let lines = text.lines().enumerate().filter(|(_, line)| {
                fenced ^= line.trim_start().starts_with("```");
                !fenced
            });
            let paragraph = |(number, line): (usize, &str)| Prose {
                line: number + 1,
                doc: false,
                text: line.into(),
            };
            lines.map(paragraph).collect()
        }
    }
}

/// Product files: what users and engineers read. Tests, data and generated pages keep their words.
fn product(extensions: &[&str]) -> Vec<(String, String)> {
    let files = with_extension(extensions).into_iter().filter(|file| {
        let name = file.to_string_lossy();
        let other = [
            "tests/",
            "datasets/text/",
            "zoo/",
            "docs/zoo.md",
            "docs/gates-of-others.md",
        ];
        !other.iter().any(|start| name.starts_with(start))
            && !name.contains("/tests/")
            && !name.ends_with(".template.md")
    });
    files
        .map(|file| (file.to_string_lossy().into_owned(), read(&file)))
        .collect()
}

/// The phrase of [`PHRASES`] that a text has, if any: whole words, outside of code.
fn phrase(text: &str) -> Option<String> {
    let mut plain = String::new();
    for (at, part) in text.split('`').enumerate() {
        plain.push_str(if at % 2 == 0 { part } else { "code" });
    }
    let words: Vec<String> = plain
        .split(|c: char| !c.is_alphanumeric() && c != '\'' && c != '-')
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
        .collect();
    PHRASES.iter().find_map(|phrase| {
        let wanted: Vec<&str> = phrase.split(' ').collect();
        let found = words.windows(wanted.len()).enumerate().find(|(at, window)| {
            let next = words.get(at + wanted.len()).map_or("", String::as_str);
            let there = *at > 0 && words[at - 1] == "there";
            let plain = phrase.ends_with(" no") && (there || AFTER_NO.contains(&next));
            window.iter().zip(&wanted).all(|(a, b)| a == b) && !plain
        });
        found.map(|_| (*phrase).to_owned())
    })
}

/// String literals that become errors: those of `Err("…")`, `ok_or_else(|| format!("…"))`, `refuse(…, "…")` and the like, and those that
/// are first bound to `why` or `message`.
fn errors(text: &str) -> Vec<(usize, &str)> {
    const HEADS: [&str; 9] = [
        "Err(",
        "ok_or(",
        "ok_or_else(|| ",
        "map_err(|error| ",
        "map_err(|_| ",
        "bail(",
        "Invalid(",
        "let why = ",
        "let message = ",
    ];
    let mut found = Vec::new();
    for head in HEADS {
        for (at, _) in text.match_indices(head) {
            let rest = text[at + head.len()..].trim_start();
            let rest = rest.strip_prefix("format!(").unwrap_or(rest);
            let rest = rest.strip_prefix("format_args!(").unwrap_or(rest).trim_start();
            let Some(literal) = rest.strip_prefix('"') else {
                continue;
            };
            let end = literal.find('"').unwrap_or(literal.len());
            found.push((text[..at].lines().count(), &literal[..end]));
        }
    }
    for (at, head) in text.match_indices("refuse(") {
        let call = text[at + head.len()..].split(';').next().unwrap_or("");
        // Keys and sets of characters come before the message, and have no space.
        let message = call.split('"').skip(1).step_by(2).find(|literal| literal.contains(' '));
        found.extend(message.map(|message| (text[..at].lines().count(), message)));
    }
    found
}

/// Holds the findings of a rule against the counts that are allowed by file.
fn judge(rule: &str, findings: &[(String, usize, String)]) {
    let path = Path::new(ROOT).join("tests/language/allowed.tsv");
    let stored = std::fs::read_to_string(&path).unwrap();
    let mut allowed: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for line in stored.lines() {
        let row: Vec<&str> = line.split('\t').collect();
        allowed.insert((row[0], row[1]), row[2].parse().unwrap());
    }
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for (file, _, _) in findings {
        *counts.entry(file).or_default() += 1;
    }
    let most = |file: &str| allowed.get(&(rule, file)).copied().unwrap_or(0);
    let over = findings
        .iter()
        .filter(|(file, _, _)| counts[file.as_str()] > most(file));
    none(
        rule,
        over.map(|(file, line, text)| format!("{file}:{line}: {text}"))
            .collect(),
    );
    let shrunk: Vec<_> = allowed
        .iter()
        .filter(|((of, file), most)| *of == rule && counts.get(file).copied().unwrap_or(0) < **most)
        .collect();
    if shrunk.is_empty() {
        return;
    }
    assert!(
        std::env::var_os("ULPLAB_BLESS").is_some(),
        "{rule}: fewer findings than tests/language/allowed.tsv allows; write the smaller counts with ULPLAB_BLESS=1: {shrunk:?}"
    );
    let mut text = String::new();
    for (&(of, file), most) in &allowed {
        let most = if of == rule {
            counts.get(file).copied().unwrap_or(0)
        } else {
            *most
        };
        if most > 0 {
            writeln!(text, "{of}\t{file}\t{most}").unwrap();
        }
    }
    std::fs::write(path, text).unwrap();
}

#[test]
fn doc_comments_begin_with_a_verb_or_a_noun() {
    let mut findings = Vec::new();
    for (file, text) in product(&["rs"]) {
        for comment in prose(Path::new(&file), &text).into_iter().filter(|comment| comment.doc) {
            let first = comment.text.split(' ').next().unwrap_or("");
            if FIRST.contains(&first.trim_matches([',', '.', ':'])) {
                findings.push((file.clone(), comment.line, comment.text.chars().take(80).collect()));
            }
        }
    }
    judge("first", &findings);
}

#[test]
fn prose_uses_the_plainer_word() {
    let mut findings = Vec::new();
    for (file, text) in product(&["rs", "cu", "cuh", "py", "md"]) {
        for prose in prose(Path::new(&file), &text) {
            if let Some(phrase) = phrase(&prose.text) {
                findings.push((file.clone(), prose.line, phrase));
            }
        }
    }
    judge("phrase", &findings);
}

#[test]
fn errors_begin_with_their_subject_and_have_no_full_stop() {
    let mut findings = Vec::new();
    for (file, text) in product(&["rs"]) {
        for (line, error) in errors(&text) {
            let first = error.split(' ').next().unwrap_or("");
            if ERROR_FIRST.contains(&first) || error.ends_with('.') {
                findings.push((file.clone(), line, error.chars().take(80).collect()));
            }
        }
    }
    judge("error", &findings);
}

#[test]
fn sentences_of_help_are_short() {
    fn visit(command: &clap::Command, path: &str, findings: &mut Vec<String>) {
        let texts = command.get_about().into_iter().chain(command.get_long_about());
        let options = command
            .get_arguments()
            .flat_map(|a| a.get_help().into_iter().chain(a.get_long_help()));
        for text in texts.chain(options) {
            let text = text.to_string();
            for sentence in text.split(['.', ':', ';', '\n']) {
                let words = sentence.split_whitespace().count();
                if words > LONGEST {
                    findings.push(format!("{path}: {words} words: {sentence}"));
                }
            }
        }
        for inner in command.get_subcommands() {
            visit(inner, &format!("{path} {}", inner.get_name()), findings);
        }
    }
    let mut findings = Vec::new();
    visit(&ulplab::cli::command(), "ulplab", &mut findings);
    findings.sort();
    findings.dedup();
    none("A sentence of a help text is too long to be read once", findings);
}

#[test]
fn the_rules_find_what_they_are_for() {
    let text = "/// Whether it is so.\nfn a() {}\n// Two lines that are\n// told anew.\nfn b() {}\n";
    let found = prose(Path::new("a.rs"), text);
    assert_eq!(found.len(), 2);
    assert!(found[0].doc && FIRST.contains(&found[0].text.split(' ').next().unwrap()));
    assert_eq!(found[1].text, "Two lines that are told anew.");
    assert_eq!(phrase(&found[1].text).as_deref(), Some("anew"));
    assert_eq!(phrase("a file that is no run"), Some("is no".into()));
    assert_eq!(phrase("a bound that is no larger, and `beside` in code"), None);
    assert_eq!(phrase("Alike, but at the start of a sentence"), Some("alike".into()));
    let code = "x.ok_or_else(|| format!(\"it is empty.\"))?; return Err(\"run is empty\".into());";
    let literals: Vec<&str> = errors(code).into_iter().map(|(_, text)| text).collect();
    assert_eq!(literals, ["run is empty", "it is empty."]);
    let code =
        "let why = format_args!(\"its name\");\nMistake::refuse(!is_name(name, \"_-.\"), \"name\", \"it is odd\")?;";
    let literals: Vec<&str> = errors(code).into_iter().map(|(_, text)| text).collect();
    assert_eq!(literals, ["its name", "it is odd"]);
    let markdown = prose(Path::new("a.md"), "one\n```\nbeside\n```\ntwo\n");
    assert_eq!(
        markdown.iter().map(|p| p.text.as_str()).collect::<Vec<_>>(),
        ["one", "```", "two"]
    );
}
