//! What users bring: their text, their folder, their shell and editor.

use super::*;

/// `ulplab` in a folder that has nothing of ulplab's above it, as after an installation.
fn elsewhere(folder: &Path, args: &[&str]) -> Output {
    ulplab(args).current_dir(folder).output().expect("ulplab starts")
}

#[test]
fn generate_finds_a_shipped_experiment_outside_the_checkout() {
    let folder = tempfile::tempdir().unwrap();
    let args = [
        "dev", "generate", "--prompt", "To be", "--tokens", "2", "--recipe", "v4_fp8",
    ];
    let output = elsewhere(folder.path(), &args);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(stdout(&output).contains("--- v4_fp8: "), "{}", stdout(&output));
}

#[test]
fn a_text_is_named_by_its_path_and_runs_outside_the_checkout() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("my notes.txt");
    std::fs::write(&text, "What is not measured is not known. ".repeat(40)).unwrap();
    let toml = r#"
name = "mine"
question = "Does it hold on my text?"
model = "dsv4-mini"
tokens = 8
kind = "round_trip"

[[window]]
text = "my notes.txt"

[[source]]
name = "kv"
from = { site = "layers.*.attention.kv.window" }

[[recipe]]
name = "bf16"
doc = "bf16"
format = "bf16"

[[gate]]
metric = "cosine"
at = "layers.*.kv"
phase = "local"
statistic = "min"
require = ">= 0.9999"
recipes = ["bf16"]
why = "eight bits"
"#;
    std::fs::write(folder.path().join("mine.toml"), toml).unwrap();
    let output = elsewhere(folder.path(), &["sweep", "mine.toml", "--out", "run"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let manifest = std::fs::read_to_string(folder.path().join("run/run.json")).unwrap();
    let hash = blake3::hash(&std::fs::read(&text).unwrap()).to_hex();
    assert!(manifest.contains(hash.as_str()), "the text is among the data");
    assert!(manifest.contains("bf16/local/my_notes@0"), "{manifest}");

    std::fs::write(
        folder.path().join("none.toml"),
        toml.replace("my notes.txt", "my note.txt"),
    )
    .unwrap();
    let output = elsewhere(folder.path(), &["sweep", "none.toml", "--out", "none"]);
    assert_eq!(code(&output), 2);
    let error = stderr(&output);
    assert!(
        error.contains("'my note.txt'") && error.contains("no text file or checkpoint is at that path"),
        "{error}"
    );
}

#[test]
fn shipped_experiments_and_kernels_are_found_from_anywhere() {
    let folder = tempfile::tempdir().unwrap();
    // A user's own folder of kernels is not taken for ulplab's.
    std::fs::create_dir(folder.path().join("kernels")).unwrap();
    let output = elsewhere(folder.path(), &["kernels", "list", "rmsnorm"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    says(&stdout(&output), "    rmsnorm.");
    let output = elsewhere(folder.path(), &["list", "experiments"]);
    assert!(stdout(&output).contains("kv_cache"), "{}", stderr(&output));
    let output = elsewhere(folder.path(), &["sweep", "smoke", "--dry-run"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(stdout(&output).contains("reference/cumulative/"));
    let output = elsewhere(folder.path(), &["sweep", "smokes", "--dry-run"]);
    assert_eq!(code(&output), 2);
    assert!(
        stderr(&output)
            .contains("smokes: no such file, and no shipped experiment has that name; did you mean 'smoke'?"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn shells_are_completed_and_pages_written() {
    for shell in ["bash", "zsh", "fish"] {
        let output = run(&["dev", "completions", shell]);
        assert_eq!(code(&output), 0);
        assert!(stdout(&output).contains("quantize"), "{shell}");
    }
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("man1");
    assert_eq!(code(&run(&["dev", "man", path(&pages)])), 0);
    let page = |name: &str| std::fs::read_to_string(pages.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert!(page("ulplab.1").contains("Exit codes"));
    assert!(page("ulplab-sweep.1").contains("\\-\\-resume"));
    assert!(
        page("ulplab-kernels-check.1").contains("ulplab\\-kernels\\-check"),
        "{}",
        page("ulplab-kernels-check.1")
    );
}

#[test]
fn the_schema_is_that_of_the_program_and_knows_every_key() {
    let file = root().join("experiments/experiment.schema.json");
    let output = run(&["dev", "schema"]);
    if std::env::var_os("ULPLAB_BLESS").is_some() {
        std::fs::write(&file, stdout(&output)).unwrap();
    }
    let stored = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(
        stored == stdout(&output),
        "experiments/experiment.schema.json is stale: run this test with ULPLAB_BLESS=1"
    );

    let schema: serde_json::Value = serde_json::from_str(&stored).unwrap();
    let kinds = schema["allOf"].as_array().unwrap();
    let of_kind = |name: &str| {
        let kind = kinds
            .iter()
            .map(|kind| &kind["then"])
            .find(|kind| kind["properties"]["kind"]["const"] == name);
        kind.unwrap_or_else(|| panic!("no kind {name}"))["properties"]
            .as_object()
            .unwrap()
    };
    for entry in std::fs::read_dir(root().join("experiments")).unwrap() {
        let file = entry.unwrap().path();
        if file.extension().is_none_or(|extension| extension != "toml") {
            continue;
        }
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(
            text.starts_with("#:schema experiment.schema.json\n"),
            "{}: an editor finds the schema by the first line",
            file.display()
        );
        let table: toml::Table = toml::from_str(&text).unwrap();
        let known = of_kind(table.get("kind").map_or("model", |kind| kind.as_str().unwrap()));
        for key in table.keys() {
            assert!(
                known.contains_key(key.as_str()),
                "{}: '{key}' is not in the schema",
                file.display()
            );
        }
    }
}
