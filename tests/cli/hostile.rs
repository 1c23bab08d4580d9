//! Names from files and words of the command line cannot write lines of their own, change the direction of text, or give commands
//! to the CI that reads the log.

use super::*;

/// Also of this kind: names with a carriage return, U+2028, U+0085, U+2066, U+200B; `##[error]`; unpaired surrogates in JSON.
const NAMES: [&str; 5] = [
    "w\nPASS: 9 tensors passed, 0 failed",
    "w\n::error file=x::y",
    "w\u{202e}SSAP",
    "w\tPASS",
    "w\u{1b}[2J\rPASS",
];

fn check(what: &str, output: &Output) {
    for text in [stdout(output), stderr(output)] {
        let forged =
            |line: &str| line.starts_with("PASS: 9") || line.trim_start().starts_with("::") || line.contains("##[");
        assert!(!text.lines().any(forged), "{what}: {text}");
        let hidden = |c: char| c != '\n' && ulplab::text::hidden(c);
        assert!(!text.contains(hidden), "{what}: {text:?}");
    }
    assert!(!stderr(output).contains("this is a bug"), "{what}: {}", stderr(output));
}

/// A safetensors file with one tensor of that name, as any program could write it.
fn tensor(folder: &Path, file: &str, name: &str) -> PathBuf {
    let header = serde_json::json!({ name: { "dtype": "F32", "shape": [1, 2], "data_offsets": [0, 8] } }).to_string();
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.bytes());
    bytes.extend([0; 8]);
    let path = folder.join(file);
    std::fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn names_of_tensors_write_no_lines_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    for name in NAMES {
        let [a, b] =
            [("a.safetensors", name), ("b.safetensors", "w")].map(|(file, name)| tensor(folder.path(), file, name));
        let (a, b, out) = (path(&a), path(&b), folder.path().join("out.safetensors"));
        for words in [
            &["compare", a, b][..],
            &["compare", a, a, "--gate", "cosine>=0.5"],
            &["compare", a, b, "--parity", "--format", "nvfp4"],
            &["inspect", a],
            &["inspect", a, "--json", "--format", "mxfp8"],
            &["quantize", a, "--format", "mxfp8", "-o", path(&out)],
            &["dequantize", a, "--format", "mxfp8", "-o", path(&out)],
            &["bisect", "smoke", "--recipe", "x", "--dump", a],
            &["bisect", "--replay", a],
        ] {
            let output = run(words);
            check(&format!("{words:?}, {name:?}"), &output);
            assert_ne!(code(&output), 0, "{words:?}: {}", stdout(&output));
        }
        let output = run(&["inspect", a]);
        assert_eq!(code(&output), 2);
        assert!(
            stderr(&output).contains("characters that do not show"),
            "{}",
            stderr(&output)
        );
    }
}

#[test]
fn words_of_the_command_line_write_no_lines_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let a = tensor(folder.path(), "a.safetensors", "w");
    for word in NAMES.iter().chain(&["::error::x", "##[error]x"]) {
        for words in [
            &["list", word][..],
            &[word],
            &["sweep", word],
            &["sweep", "smoke", "--dry-run", "--only", word],
            &["sweep", "smoke", "--dry-run", "--set", word],
            &["sweep", "smoke", "--partition", word],
            &["compare", path(&a), path(&a), "--only", word],
            &["compare", path(&a), path(&a), "--gate", word],
            &["inspect", path(&a), "--only", word],
            &["quantize", path(&a), "--format", word, "-o", word],
            &["gate", word],
            &["status", word],
            &["diff", word, word],
            &["kernels", "describe", word],
            &["kernels", "check", "--only", word],
        ] {
            let output = run(words);
            check(&format!("{words:?}"), &output);
            assert_ne!(code(&output), 0, "{words:?}: {}", stdout(&output));
        }
    }
}

/// Sessions, manifests and questions are files, too.
#[test]
fn files_of_a_run_write_no_lines_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let [base, new] = ["base", "new"].map(|name| folder.path().join(name));
    let asked = |question: &str, out: &Path| {
        let file = write(
            folder.path(),
            &TRIP.replace("\"What is left?\"", &serde_json::to_string(question).unwrap()),
        );
        assert_eq!(code(&run(&["sweep", path(&file), "--out", path(out)])), 4);
    };
    asked("Why?", &base);
    asked("Why?\nPASS: 9 checks\n::error::x \u{202e}", &new);
    let session = r#"{"started_at": "2026-01-01T00:00:00Z", "seconds": 1, "threads": 1, "cells": 0, "host": "h\nPASS: 9",
        "task": "t\n::error::x", "ended": "e\u202e\nPASS: 9"}"#;
    std::fs::write(new.join("sessions").join("x.json"), session).unwrap();
    for words in [
        &["status", path(&new)][..],
        &["status", path(&new), "--json"],
        &["diff", path(&base), path(&new)],
        &["gate", path(&new)],
        &["report", path(&new)],
    ] {
        check(&format!("{words:?}"), &run(words));
    }
    for page in ["report.md", "report.html", "junit.xml"] {
        if let Ok(text) = std::fs::read_to_string(new.join(page)) {
            assert!(!text.contains('\u{202e}'), "{page}");
        }
    }
}

/// What a configuration says is shown in the lines of the checkpoint's report, and in none of its own.
#[test]
fn words_of_configurations_write_no_lines_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    tensor(at, "model.safetensors", "model.layers.0.mlp.down_proj.weight_scale");
    let group = |weights: serde_json::Value| serde_json::json!({ "quant_method": "compressed-tensors", "config_groups": { "group_0": { "targets": ["Linear"], "weights": weights } } });
    for name in NAMES {
        let stated = [
            serde_json::json!({ "quant_method": name }),
            serde_json::json!({ "quant_method": "modelopt", "quant_algo": name }),
            serde_json::json!({ "quant_method": "quark", "global_quant_config": { "weight": { "dtype": name } } }),
            serde_json::json!({ "quant_method": "fp8", "fmt": name, "modules_to_not_convert": [name] }),
            serde_json::json!({ "quant_method": "gptq", "bits": 4, "group_size": 128, "dynamic": { format!("-:{name}("): {} } }),
            serde_json::json!({ "quant_method": "compressed-tensors", "format": name, "ignore": [format!("re:({name}")] }),
            group(serde_json::json!({ "num_bits": 8, "type": name })),
            group(serde_json::json!({ "num_bits": 8, "type": "float", "strategy": name })),
        ];
        for stated in stated {
            let config = serde_json::json!({ "model_type": name, "quantization_config": stated });
            std::fs::write(at.join("config.json"), config.to_string()).unwrap();
            for more in [&[][..], &["--json"]] {
                let output = run(&[&["inspect", path(at)], more].concat());
                check(&format!("{stated} {more:?}"), &output);
                assert_ne!(code(&output), 0, "{stated}: {}", stdout(&output));
            }
        }
    }
}
