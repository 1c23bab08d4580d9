//! Every key of an experiment file, in every kind of experiment, is used or refused.

use std::collections::BTreeSet;

use ulplab::experiment::file::ExperimentFile;
use ulplab::studies;

use super::*;

/// Kinds, and an experiment of each without the keys that all have.
const KINDS: [(&str, &str); 6] = [
    (
        "model",
        "model = 'm'\ntokens = 4\nphases = ['local']\nwindow = [{ text = 't', offset = 0 }]\nrecipe = []",
    ),
    (
        "round_trip",
        "draws = 1\nshape = [1, 1]\nsource = [{ name = 's', from = 'gaussian' }]\nrecipe = []",
    ),
    (
        "recall",
        "model = 'm'\ndraws = 1\nshape = [1, 1]\nsource = []\nrecipe = []",
    ),
    ("recurrence", "draws = 1\nshape = [1, 256]\nsource = []\nrecipe = []"),
    (
        "swap_ffn",
        "phases = ['local']\ndraws = 1\nshape = [1, 4]\nsource = []\nrecipe = []",
    ),
    (
        "kernels",
        "model = 'm'\ntokens = 4\nwindow = [{ text = 't', offset = 0 }]\nkernels = ['**']",
    ),
];

/// A key, a value that says something, and the kinds that use it.
const USED: [(&str, &str, &[&str]); 22] = [
    ("name", "'n'", ALL),
    ("question", "'q'", ALL),
    ("kind", "", ALL),
    ("seed", "3", ALL),
    ("inert", "['k']", ALL),
    ("gate", "[]", ALL),
    ("model", "'m'", &["model", "round_trip", "recall", "kernels"]),
    ("tokens", "4", &["model", "round_trip", "recall", "kernels"]),
    (
        "window",
        "[{ text = 't', offset = 0 }]",
        &["model", "round_trip", "recall", "kernels"],
    ),
    ("phases", "['local']", &["model", "swap_ffn"]),
    ("beyond_trained", "true", &["model"]),
    (
        "draws",
        "1",
        &["round_trip", "recall", "recurrence", "swap_ffn", "kernels"],
    ),
    ("shape", "[1, 256]", &["round_trip", "recall", "recurrence", "swap_ffn"]),
    ("source", "[]", &["round_trip", "recall", "recurrence", "swap_ffn"]),
    (
        "recipe",
        "[]",
        &["model", "round_trip", "recall", "recurrence", "swap_ffn"],
    ),
    ("kernels", "['**']", &["kernels"]),
    (
        "command",
        "[{ op = 'o', name = 'n', doc = '', run = ['r'] }]",
        &["kernels"],
    ),
    (
        "op",
        "[{ name = 'o', doc = '', sizes = [], inputs = [], outputs = [], reference = [] }]",
        &["kernels"],
    ),
    ("case", "[{ op = 'o', name = 'n' }]", &["kernels"]),
    ("cases", "['c']", &["kernels"]),
    ("case_names", "['c']", &[]),
    ("reference_cuts", "1", &["model"]),
];

const ALL: &[&str] = &["model", "round_trip", "recall", "recurrence", "swap_ffn", "kernels"];

#[test]
fn the_list_has_every_key() {
    let schema = serde_json::to_value(studies::schema()).unwrap();
    let kinds = schema["allOf"].as_array().unwrap();
    let mut fields: BTreeSet<&str> = kinds
        .iter()
        .flat_map(|kind| {
            kind["then"]["properties"]
                .as_object()
                .unwrap()
                .keys()
                .map(String::as_str)
        })
        .collect();
    // Only stored runs have it.
    fields.insert("case_names");
    assert_eq!(USED.iter().map(|(key, ..)| *key).collect::<BTreeSet<_>>(), fields);
}

#[test]
fn a_key_that_a_kind_has_no_use_for_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("experiment.toml");
    for (kind, base) in KINDS {
        for (key, value, users) in USED {
            let mut lines: Vec<String> = base.lines().map(String::from).collect();
            lines.retain(|line| line.split(" =").next() != Some(key));
            lines.extend(
                ["name", "question"]
                    .iter()
                    .filter(|other| **other != key)
                    .map(|key| format!("{key} = 'x'")),
            );
            lines.push(format!("kind = '{kind}'"));
            if key != "kind" {
                lines.push(format!("{key} = {value}"));
            }
            // Tokens are those of windows.
            if key == "tokens" && !base.contains("window") && users.contains(&kind) {
                lines.push("window = [{ text = 't', offset = 0 }]".into());
            }
            std::fs::write(&file, lines.join("\n")).unwrap();
            let parsed = ExperimentFile::read(&file, &[]).and_then(|file| studies::parse(&file));
            match users.contains(&kind) {
                true => assert!(parsed.is_ok(), "{key} of {kind}: {:?}", parsed.err()),
                false => {
                    let error = parsed.err().unwrap_or_else(|| panic!("{key} of {kind}")).to_string();
                    assert!(
                        error.contains(&format!("no use for '{key}'")) && error.contains("line"),
                        "{error}"
                    );
                }
            }
        }
    }
}

/// The pairs that a user meets, from a file and from --set.
#[test]
fn keys_of_other_kinds_do_nothing_in_silence_no_more() {
    for item in [
        "shape=[4096, 7168]",
        "case_names=[\"f32.odd\"]",
        "reference_cuts=1",
        "phases=[\"local\"]",
    ] {
        let output = run(&["sweep", "experiments/kernels.toml", "--dry-run", "--set", item]);
        let (key, _) = item.split_once('=').unwrap();
        assert_eq!(code(&output), 2, "{item}");
        let why = format!("kind = \"kernels\" has no use for '{key}'");
        assert!(stderr(&output).contains(&why), "{}", stderr(&output));
    }
    let two = "window=[{ text = \"alice\", offset = 0 }, { text = \"alice\", offset = 9 }]";
    let output = run(&["sweep", "experiments/kernels.toml", "--dry-run", "--set", two]);
    assert!(
        code(&output) == 2 && stderr(&output).contains("tried on one window"),
        "{}",
        stderr(&output)
    );
}

/// An editor marks the one wrong key: a file is compared with the keys of its own kind only, and formats are listed.
#[test]
fn the_schema_marks_the_wrong_key_alone() {
    let schema = serde_json::to_value(studies::schema()).unwrap();
    assert!(schema.get("oneOf").is_none() && schema.get("anyOf").is_none());
    let kinds = schema["allOf"].as_array().unwrap();
    assert_eq!(kinds.len(), ALL.len());
    for (kind, branch) in ALL.iter().zip(kinds) {
        assert_eq!(branch["if"]["properties"]["kind"]["const"], **kind);
        assert_eq!(
            branch["if"]["required"].is_null(),
            *kind == "model",
            "a file without a kind asks about a model"
        );
        assert_eq!(branch["then"]["additionalProperties"], false, "{kind}");
    }
    assert_eq!(
        schema["properties"]["kind"]["enum"].as_array().unwrap().len(),
        ALL.len()
    );
    let text = schema.to_string();
    let listed = text.matches(r#""pattern":"[/(]""#).count();
    assert!(listed >= 4, "{listed} keys list formats");
    for name in ["v4_fp8", "nvfp4", "fp8_out_channel"] {
        assert_eq!(text.matches(&format!("\"{name}\"")).count(), listed, "{name}");
    }
    // What has no NaN needs a scale, so its name alone is no format.
    assert!(!text.contains("\"e2m1\""));
}
