//! First mistakes: a path that is not there, a folder for a file, a key that is not one, a text of another system.

use super::*;

/// The command ends in 2 with these words, and writes nothing to stdout.
#[track_caller]
fn refused(args: &[&str], words: &[&str]) {
    let output = run(args);
    let said = stderr(&output);
    assert_eq!(code(&output), 2, "{args:?}: {said}");
    for word in words {
        assert!(said.contains(word), "{args:?}: no '{word}' in: {said}");
    }
    assert!(stdout(&output).is_empty(), "{args:?}: {}", stdout(&output));
}

/// Of the kind: `bisect --dump`, `compare --parity`, shards that an index names (`reference/tensorfile/survey.rs` says so), a link to nothing.
#[test]
fn a_path_that_is_not_there_is_called_so() {
    let folder = tempfile::tempdir().unwrap();
    let (here, out) = (
        root().join("datasets/gptoss-mini"),
        folder.path().join("out.safetensors"),
    );
    let (here, out) = (path(&here), path(&out));
    for name in ["nope", "nope/", "nope.safetensors", "nope.npy", "nope.bin"] {
        let gone = folder.path().join(name);
        let gone = path(&gone);
        for args in [
            &["inspect", gone][..],
            &["inspect", gone, "--as", "tensors"],
            &["inspect", gone, "--as", "checkpoint"],
            &["inspect", here, "--source", gone],
            &["inspect", here, "--as", "tensors", "--source", gone],
            &["compare", here, gone],
            &["compare", gone, here],
            &["compare", here, gone, "--parity"],
            &["quantize", gone, "--format", "nvfp4", "-o", out],
            &["dequantize", gone, "-o", out],
        ] {
            refused(args, &[gone.trim_end_matches('/'), "there is no such file"]);
        }
    }
}

/// Of the kind: `bisect -o` and `--capsule`, `front --keep`, `kernels power --write`, which all read the option in the same way.
#[test]
fn a_folder_is_no_file_to_write() {
    let folder = tempfile::tempdir().unwrap();
    let (here, there) = (root().join("datasets/gptoss-mini"), folder.path().join("m"));
    std::fs::create_dir(&there).unwrap();
    let (here, there) = (path(&here), path(&there));
    for args in [
        &["inspect", here, "--html", there][..],
        &["quantize", here, "--format", "nvfp4", "-o", there],
        &["dequantize", here, "-o", there],
        &["diff", here, here, "--markdown", there],
        &["report", here, "--findings", here, "--output", there],
        &[
            "mix",
            "weights",
            "--at",
            "**.weight",
            "--formats",
            "nvfp4,bf16",
            "-o",
            there,
        ],
        &["gate", "--calibrate", "smoke", "-o", there],
        &["kernels", "trace", "rope", "--html", there],
        &["bisect", "smoke", "-o", there],
        &["quantize", here, "--format", "nvfp4", "-o", &format!("{there}/new/")],
    ] {
        refused(args, &[there, "is a folder; expected the name of a file to write"]);
    }
    assert_eq!(std::fs::read_dir(there).unwrap().count(), 0);
}

#[test]
fn a_configuration_that_is_not_json_is_called_so() {
    let folder = tempfile::tempdir().unwrap();
    for text in [
        "{model_type: 'qwen3'}",
        "{\"model_type\": \"qwen3\",}",
        "{'model_type': 'qwen3'}",
        "{",
    ] {
        std::fs::write(folder.path().join("config.json"), text).unwrap();
        let set = format!("model=\"{}\"", path(folder.path()));
        let words = ["config.json: it is not JSON: ", "line 1 column"];
        refused(&["sweep", "smoke", "--dry-run", "--set", &set], &words);
        refused(
            &["dev", "generate", "--model", path(folder.path()), "--prompt", "a"],
            &words,
        );
    }
}

/// A key of every experiment is one of those that `--set` names, and one in a file is. Of the kind: kinds of other studies.
#[test]
fn all_keys_at_the_root_are_listed() {
    let folder = tempfile::tempdir().unwrap();
    let head = ["`name`", "`question`", "`kind`", "`seed`", "`inert`", "`gate`"];
    for experiment in ["smoke", "round_trip", "kernels"] {
        let words = [&head[..], &["`recipe`"][..usize::from(experiment != "kernels")]].concat();
        refused(&["sweep", experiment, "--dry-run", "--set", "tokns=128"], &words);
        refused(
            &["sweep", experiment, "--dry-run", "--set", "nam=x"],
            &["did you mean 'name'?"],
        );
    }
    let text = std::fs::read_to_string(root().join("experiments/smoke.toml")).unwrap();
    let file = folder.path().join("wrong.toml");
    std::fs::write(&file, format!("tokns = 3\n{text}")).unwrap();
    refused(&["sweep", path(&file), "--dry-run"], &head);
}

/// CR LF is a line end; a CR without a LF would let a text write over its line, and is shown.
#[test]
fn a_text_of_another_system_has_line_ends() {
    let said = |prompt: &str| {
        let output = run(&["dev", "generate", "--prompt", prompt, "--tokens", "1"]);
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        stdout(&output)
    };
    assert!(said("one\r\ntwo\r\n").starts_with("one\ntwo\n"));
    assert!(said("one\rtwo").starts_with("one\u{fffd}two"));
}
