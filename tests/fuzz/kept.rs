//! Inputs kept from earlier runs, the shortest of each outcome: they end as they did.
//!
//! `ULPLAB_FUZZ_KEEP=1 cargo test --test lab fuzz::` adds to them; `ULPLAB_BLESS=1` writes down how they end now.

use std::path::PathBuf;

use super::{files, formats};

fn folder() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/fuzz"))
}

/// Keeps an input if that is asked for and none as short ended alike.
pub fn offer(kind: &str, input: &[u8], outcome: &str) {
    if std::env::var_os("ULPLAB_FUZZ_KEEP").is_none() {
        return;
    }
    // What names the input is not of the outcome, nor what is quoted of it.
    let message = match outcome.split_once("': ") {
        Some((name, message)) if name.split(' ').count() < 4 => message,
        _ => outcome,
    };
    let plain = message
        .split(['\'', '`', '"'])
        .step_by(2)
        .find(|part| !part.trim().is_empty());
    let words = plain.unwrap_or("quoted").split(|c: char| !c.is_ascii_alphabetic());
    let words = words.filter(|word| word.len() > 1);
    let words: Vec<&str> = words.take(if outcome.starts_with("ok") { 1 } else { 6 }).collect();
    let file = folder().join("inputs").join(format!("{}.{kind}", words.join("-")));
    if !std::fs::metadata(&file).is_ok_and(|kept| kept.len() <= input.len() as u64) {
        std::fs::write(file, input).unwrap();
    }
}

#[test]
fn kept_inputs_end_as_before() {
    let inputs = std::fs::read_dir(folder().join("inputs")).unwrap();
    let mut lines: Vec<String> = inputs
        .map(|entry| {
            let path = entry.unwrap().path();
            let (name, bytes) = (
                path.file_name().unwrap().to_str().unwrap(),
                std::fs::read(&path).unwrap(),
            );
            let outcome = match name.rsplit_once('.').unwrap().1 {
                "format" => formats::outcome(std::str::from_utf8(&bytes).unwrap()),
                kind => files::outcome(&format!("x.{kind}"), &bytes),
            };
            format!("{name}: {}\n", outcome.replace(char::is_control, " "))
        })
        .collect();
    lines.sort();
    let (want, path) = (lines.concat(), folder().join("outcomes.txt"));
    if std::env::var_os("ULPLAB_BLESS").is_some() {
        std::fs::write(&path, &want).unwrap();
    }
    let found = std::fs::read_to_string(path).unwrap_or_default();
    let changed = want.lines().zip(found.lines()).find(|(now, before)| now != before);
    assert!(
        want == found,
        "outcomes changed, first: {changed:?}; write them again with ULPLAB_BLESS=1"
    );
}
