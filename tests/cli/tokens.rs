//! Models whose tokens are no bytes.

use super::*;

/// A small Qwen3 with a BPE tokenizer of 300 tokens.
pub fn model() -> PathBuf {
    root().join("tests/fixtures/tokens")
}

/// An experiment on some windows of Alice.
pub fn question(folder: &Path, model: &Path) -> PathBuf {
    let file = folder.join("mine.toml");
    let toml = format!(
        r#"
name = "mine"
question = "What do cheaper weights cost?"
kind = "model"
seed = 1
model = {model:?}
tokens = 24
phases = ["cumulative"]

[[window]]
text = "alice"
draws = 4

[[recipe]]
name = "w4"
doc = "weights in four bits"
round = [{{ at = "layers.*.mlp.*.weight", format = "nvfp4" }}]
"#
    );
    std::fs::write(&file, toml).unwrap();
    file
}

/// A metric of a recipe in every window.
pub fn measured(run: &Path, recipe: &str, metric: &str) -> Vec<f64> {
    let all = measurements(run).into_iter();
    let own = all.filter(|measured| measured["recipe"] == recipe);
    own.filter_map(|measured| measured["metrics"][metric].as_f64())
        .collect()
}

/// A copy of the model that a test may change.
fn copied(folder: &Path) -> PathBuf {
    let model = folder.join("model");
    std::fs::create_dir(&model).unwrap();
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        std::fs::copy(self::model().join(name), model.join(name)).unwrap();
    }
    model
}

#[test]
fn losses_are_told_by_token_and_by_byte() {
    let folder = tempfile::tempdir().unwrap();
    let (file, out) = (question(folder.path(), &model()), folder.path().join("run"));
    let output = run(&["sweep", path(&file), "--out", path(&out)]);
    assert_eq!(code(&output), 4, "{}", stderr(&output));
    for title in ["Δ nats/byte", "Δ nats/token"] {
        assert!(stdout(&output).contains(title), "{}", stdout(&output));
    }
    let of = |metric: &str| measured(&out, "w4", metric);
    let (token, byte) = (of("delta_nats"), of("delta_nats_per_byte"));
    assert_eq!((token.len(), byte.len()), (4, 4));
    for (token, byte) in token.iter().zip(&byte) {
        // This tokenizer knows pairs of letters.
        let bytes = token / byte;
        assert!((1.0..4.0).contains(&bytes), "{bytes} bytes in a token");
    }
}

#[test]
fn another_tokenizer_is_another_run() {
    let folder = tempfile::tempdir().unwrap();
    let model = copied(folder.path());
    let (file, out) = (question(folder.path(), &model), folder.path().join("run"));
    let args = ["sweep", path(&file), "--out", path(&out)];
    assert_eq!(code(&run(&args)), 4);
    let again = [&args[..], &["--resume"]].concat();
    assert_eq!(code(&run(&again)), 4, "nothing was changed");
    let tokenizer = model.join("tokenizer.json");
    let text = std::fs::read_to_string(&tokenizer).unwrap();
    std::fs::write(&tokenizer, text + "\n").unwrap();
    let output = run(&again);
    assert_eq!(code(&output), 2, "{}", stdout(&output));

    std::fs::remove_file(&tokenizer).unwrap();
    let output = run(&["sweep", path(&file), "--out", path(&folder.path().join("other"))]);
    assert_eq!(code(&output), 2);
    for words in ["tokenizer.json", "vocab_size is 304"] {
        assert!(
            stderr(&output).contains(words),
            "'{words}' is not in: {}",
            stderr(&output)
        );
    }
}

#[test]
fn generated_tokens_are_written_as_text() {
    let output = run(&[
        "dev",
        "generate",
        "--model",
        path(&model()),
        "--prompt",
        "Alice 🙂 was",
        "--tokens",
        "5",
    ]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let text = stdout(&output);
    assert!(
        text.starts_with("Alice 🙂 was") && text.len() > "Alice 🙂 was\n".len(),
        "{text}"
    );
    assert!(
        !text.contains("<|begin|>"),
        "what is put before a prompt is no text: {text}"
    );
    let model = model();
    let round = ["--round", "layers.*.attention.kv.*=int2/b32:f32"];
    let args = [
        "dev",
        "generate",
        "--model",
        path(&model),
        "--prompt",
        "Alice",
        "--tokens",
        "9",
    ];
    let output = run(&[&args[..], &round].concat());
    assert!(
        stdout(&output).contains("departs from the reference at token"),
        "{}",
        stdout(&output)
    );
}
