//! What is too large is refused in a sentence, before anything is run.

use std::time::{Duration, Instant};

use super::*;

const LARGE: &str = r#"
name = "large"
question = "How much?"
kind = "round_trip"
draws = 2
shape = [64, 1024]

[[source]]
name = "gauss"
from = "gaussian"

[[recipe]]
name = "fp8"
doc = "E4M3"
format = "e4m3"

[[gate]]
metric = "sqnr"
at = "gauss"
phase = "local"
statistic = "min"
require = ">= 20"
recipes = ["fp8"]
why = "four bits"
"#;

/// `ulplab sweep` refuses it within seconds, with these words.
#[track_caller]
fn refused(text: &str, more: &[&str], words: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let file = write(folder.path(), text);
    let started = Instant::now();
    let output = run(&[&["sweep", path(&file), "--out", path(&out)], more].concat());
    let error = stderr(&output);
    assert_eq!(code(&output), 2, "{error}");
    assert!(
        started.elapsed() < Duration::from_secs(20),
        "it took {:?}",
        started.elapsed()
    );
    for word in words {
        assert!(error.contains(word), "'{word}' is not in: {error}");
    }
    assert!(!out.exists(), "a refused experiment leaves no run behind");
}

#[test]
fn a_window_longer_than_the_model_was_made_for_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = experiment(folder.path(), FP8, PASSING);
    let text = std::fs::read_to_string(file).unwrap();
    let words = [
        "line 5",
        "tokens = 100000",
        "the model's max_position_embeddings is 8192; beyond_trained = true allows more",
    ];
    refused(&text.replace("tokens = 136", "tokens = 100000"), &[], &words);
    // Where that is allowed, memory is the limit.
    let words = ["line 5", "the run needs about", "1.0 GiB is allowed"];
    refused(
        &text.replace("tokens = 136", "tokens = 100000\nbeyond_trained = true"),
        &["--max-memory", "1GiB"],
        &words,
    );
    // What the model takes may be more than the machine has.
    let words = [
        "tokens",
        "GiB of memory (",
        "1.0 GiB is allowed",
        "tokens = ",
        "would fit",
        "--max-memory",
    ];
    refused(
        &text.replace("tokens = 136", "tokens = 8192"),
        &["--max-memory", "1G"],
        &words,
    );
}

#[test]
fn a_draw_larger_than_the_memory_is_refused() {
    let words = [
        "shape",
        "GiB of memory (",
        "for the values",
        "source 'gauss'",
        "shape = [",
        "65536] would fit",
    ];
    refused(
        &LARGE.replace("[64, 1024]", "[65536, 65536]"),
        &["--max-memory", "8G"],
        &words,
    );
    // Without a limit of the user's, that of the machine holds: no machine has 2^32 numbers of 20 sources to spare.
    let many: String = (0..20)
        .map(|i| format!("\n[[source]]\nname = \"g{i}\"\nfrom = \"gaussian\"\n"))
        .collect();
    let text = LARGE.replace("[64, 1024]", "[65536, 65536]");
    refused(&(text + &many), &[], &["of memory ("]);
    refused(LARGE, &["--max-memory", "512K"], &["512 KiB is allowed"]);
}

#[test]
fn more_cells_than_can_be_planned_are_refused() {
    let words = [
        "line 5",
        "1000000 windows × 1 recipes × 1 phases are 1000000 cells",
        "262144 windows would do",
    ];
    refused(&LARGE.replace("draws = 2", "draws = 1000000"), &[], &words);
}

#[test]
fn what_fits_runs() {
    let folder = tempfile::tempdir().unwrap();
    let (file, out) = (write(folder.path(), LARGE), folder.path().join("run"));
    let output = run(&["sweep", path(&file), "--out", path(&out), "--max-memory", "64M"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let output = run(&["sweep", path(&file), "--max-memory", "much"]);
    assert_eq!(code(&output), 2);
    assert!(stderr(&output).contains("'much' is not a size"), "{}", stderr(&output));
}
