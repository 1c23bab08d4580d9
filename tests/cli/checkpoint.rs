//! `ulplab inspect CHECKPOINT`, as a user has it judge a folder.

use std::fs;
use std::path::PathBuf;

use super::*;

/// A copy of a shipped checkpoint, with another `config.json`.
fn copied(folder: &Path, change: impl Fn(String) -> String) -> PathBuf {
    let (from, to) = (root().join("datasets/gptoss-mini"), folder.join("checkpoint"));
    fs::create_dir(&to).unwrap();
    fs::copy(from.join("model.safetensors"), to.join("model.safetensors")).unwrap();
    let config = fs::read_to_string(from.join("config.json")).unwrap();
    fs::write(to.join("config.json"), change(config)).unwrap();
    to
}

#[test]
fn a_whole_checkpoint_passes() {
    let folder = tempfile::tempdir().unwrap();
    let (checkpoint, page) = (copied(folder.path(), |config| config), folder.path().join("page.html"));
    let output = run(&["inspect", path(&checkpoint), "--html", path(&page)]);
    assert_eq!(code(&output), 0, "{}{}", stdout(&output), stderr(&output));
    for words in ["named as by gpt-oss", "e2m1/b32:e8m0", "PASS: 0 errors and 0 warnings"] {
        assert!(stdout(&output).contains(words), "no '{words}': {}", stdout(&output));
    }
    assert!(fs::read_to_string(&page).unwrap().contains("gpt-oss"));
    // As tensors, the same folder has statistics and no verdict.
    let output = run(&["inspect", path(&checkpoint), "--as", "tensors"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(!stdout(&output).contains("PASS"), "{}", stdout(&output));
}

#[test]
fn a_checkpoint_of_another_convention_than_it_says_fails() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = copied(folder.path(), |config| config.replace("\"mxfp4\"", "\"awq\""));
    let output = run(&["inspect", path(&checkpoint)]);
    assert_eq!(code(&output), 100, "{}{}", stdout(&output), stderr(&output));
    for words in ["FAIL", "convention", "awq"] {
        assert!(stdout(&output).contains(words), "no '{words}': {}", stdout(&output));
    }
}

/// A scale that is 0xff decodes to NaN: the block, and all that reads it, is lost.
#[test]
fn a_scale_that_is_nan_is_named_on_its_tensor() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = copied(folder.path(), |config| config);
    let file = checkpoint.join("model.safetensors");
    let mut bytes = fs::read(&file).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let tensors: serde_json::Value = serde_json::from_slice(&bytes[8..8 + header]).unwrap();
    let name = "model.layers.3.mlp.experts.down_proj_scales";
    let first = tensors[name]["data_offsets"][0].as_u64().unwrap() as usize;
    bytes[8 + header + first + 5] = 0xff;
    fs::write(&file, bytes).unwrap();
    let output = run(&["inspect", path(&checkpoint), "--json"]);
    assert_eq!(code(&output), 100, "{}{}", stdout(&output), stderr(&output));
    let told = stdout(&output);
    let line = told.lines().find(|line| line.contains("nonfinite_scale"));
    let line = line.unwrap_or_else(|| panic!("no finding: {told}"));
    assert!(line.contains("model.layers.3.mlp.experts.down_proj"), "{line}");
}

/// What is not understood is never right.
#[test]
fn a_checkpoint_without_quantized_tensors_is_not_judged() {
    let folder = tempfile::tempdir().unwrap();
    let only = copied(folder.path(), |config| config);
    let output = run(&["inspect", path(&only), "--only", "model.embed_tokens.*"]);
    assert_eq!(code(&output), 4, "{}{}", stdout(&output), stderr(&output));
}
