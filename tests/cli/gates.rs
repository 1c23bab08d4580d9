//! Paired tests, draws of a text, and runs that end when they are decided.

use std::fs;

use super::*;

/// Draws of Gaussian numbers in a format, with a gate that is looked at after each.
fn sequential(folder: &Path, require: &str) -> PathBuf {
    write(folder, &text(require))
}

fn text(require: &str) -> String {
    format!(
        r#"
name = "sequential"
question = "How soon is it decided?"
kind = "round_trip"
draws = 40
shape = [16, 64]

[[source]]
name = "gauss"
from = "gaussian"

[[recipe]]
name = "e4m3"
doc = "E4M3"
format = "e4m3"

[[gate]]
metric = "sqnr"
at = "gauss"
phase = "local"
statistic = "sequential"
require = "{require}"
recipes = ["*"]
why = "three mantissa bits leave 31.5 dB"
"#
    )
}

#[test]
fn a_run_ends_when_its_gates_are_decided() {
    let folder = tempfile::tempdir().unwrap();
    let out = |name: &str| folder.path().join(name);
    let sweep = |file: &Path, name: &str, more: &[&str]| {
        run(&[&["sweep", path(file), "--out", path(&out(name))], more].concat())
    };
    let cells = |name: &str| fs::read_dir(out(name).join("cells")).unwrap().count();
    // Far from the bound the seventh draw decides, whichever side it is.
    for (name, require, exit, word) in [("right", ">= 25", 0, "PASS"), ("wrong", ">= 40", 100, "FAIL")] {
        let file = sequential(folder.path(), require);
        let output = sweep(&file, name, &["--until-decided"]);
        assert_eq!(code(&output), exit, "{}{}", stdout(&output), stderr(&output));
        assert!(cells(name) < 12, "{} cells", cells(name));
        let last = format!("{} cells in", cells(name));
        assert!(
            stdout(&output).contains(word) && stdout(&output).contains(&last),
            "{}",
            stdout(&output)
        );
        // As it was, from the stored run; and a resumed one runs no more.
        assert_eq!(code(&run(&["gate", path(&out(name))])), exit);
        let before = cells(name);
        assert_eq!(code(&sweep(&file, name, &["--until-decided", "--resume"])), exit);
        assert_eq!(cells(name), before);
        // Gates that may not be looked at so often ask for all of it.
        let mean = folder.path().join("mean.toml");
        fs::write(&mean, text(require).replace("sequential", "mean")).unwrap();
        assert_eq!(code(&run(&["gate", path(&out(name)), "--rules", path(&mean)])), 103);
        // One cell less, and nothing is decided.
        let last = fs::read_dir(out(name).join("cells"))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .max()
            .unwrap();
        fs::remove_file(last).unwrap();
        assert_eq!(code(&run(&["gate", path(&out(name))])), 103);
    }
    // At the bound itself no evidence comes.
    let file = sequential(folder.path(), ">= 25");
    assert_eq!(code(&sweep(&file, "whole", &[])), 0);
    let values = measurements(&out("whole"));
    let values: Vec<f64> = values
        .iter()
        .filter_map(|line| line["metrics"]["sqnr"].as_f64())
        .collect();
    assert_eq!(values.len(), 40);
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let file = sequential(folder.path(), &format!(">= {mean}"));
    let output = sweep(&file, "open", &["--until-decided", "--json"]);
    assert_eq!(code(&output), 4, "{}{}", stdout(&output), stderr(&output));
    assert_eq!(cells("open"), 40);
    assert_eq!(first(&output)["status"], "not_judged");
    assert!(
        first(&output)["message"]
            .as_str()
            .unwrap()
            .starts_with("undecided after 40 windows")
    );
}

#[test]
fn only_what_may_be_looked_at_often_ends_a_run() {
    let folder = tempfile::tempdir().unwrap();
    let file = sequential(folder.path(), ">= 25");
    let text = fs::read_to_string(&file).unwrap();
    let refused = |text: &str, says: &str| {
        let file = write(folder.path(), text);
        let output = run(&["sweep", path(&file), "--until-decided", "--dry-run"]);
        assert_eq!(code(&output), 2, "{}", stdout(&output));
        assert!(stderr(&output).contains(says), "{}", stderr(&output));
    };
    refused(
        &text.replace("\"sequential\"\nrequire", "\"mean\"\nrequire"),
        "may not be looked at after every window",
    );
    refused(&text.replace("at = \"gauss\"", "at = \"*\""), "decides on one place");
    // Windows that someone chose are no draws.
    let model = PASSING
        .replace("\"min\"", "\"sequential\"")
        .replace("layers.*.attention.kv.window", "logits");
    let model = model.replace("\"local\"", "\"cumulative\"").replace("cosine", "top1");
    let file = experiment(folder.path(), FP8, &model);
    refused(
        &fs::read_to_string(&file).unwrap(),
        "takes windows that are drawn from one text",
    );
}

#[test]
fn paired_tests_tell_direction_and_the_silent_zone() {
    let folder = tempfile::tempdir().unwrap();
    let gates = r#"
[[gate]]
metric = "kl"
at = "logits"
phase = "cumulative"
statistic = "mean"
require = "<= 1"
recipes = ["same"]
why = "a divergence is small"

[[gate]]
metric = "net_lost"
at = "logits"
phase = "cumulative"
statistic = "limit_high"
require = "<= 0.25"
recipes = ["same"]
why = "not inferior by more than a quarter of the positions"
"#;
    let recipes = FP8.replace("v4_fp8\"\ndoc", "same\"\ndoc").replace("v4_fp8", "v4_bf16");
    let same = recipes.len();
    let recipes = recipes + &FP8.replace("v4_fp8\"\ndoc", "broken\"\nnoise = true\ngain = 60\ndoc");
    let file = experiment(folder.path(), &recipes, gates);
    let text = fs::read_to_string(&file)
        .unwrap()
        .replace("offset = 20000", "draws = 8")
        .replace("tokens = 136", "tokens = 40");
    let file = write(
        folder.path(),
        &text.replace("[\"local\", \"cumulative\"]", "[\"cumulative\"]"),
    );
    let out = folder.path().join("run");
    let output = run(&["sweep", path(&file), "--out", path(&out)]);
    assert_eq!(code(&output), 0, "{}{}", stdout(&output), stderr(&output));
    let says = "warning: the gate on kl (cumulative, <= 1) judges same inside the silent zone of KL";
    assert!(stderr(&output).contains(says), "{}", stderr(&output));
    let output = run(&["gate", path(&out), "--paired"]);
    let text = stdout(&output);
    let line = |name: &str| {
        text.lines()
            .find(|line| line.trim_start().starts_with(name))
            .unwrap_or_else(|| panic!("{name}: {text}"))
            .to_string()
    };
    let words: Vec<String> = line("broken").split_whitespace().map(String::from).collect();
    let number = |at: usize| -> f64 { words[at].parse().unwrap() };
    let (lost, gained, adjusted, evidence) = (number(4), number(5), number(7), number(8));
    assert!(lost > gained && adjusted < 0.05 && evidence > 20.0, "{text}");
    assert!(text.contains("KL is silent up to"), "{text}");
    // Fewer windows set no limit: the gate is not judged, and nothing is known of a silent zone.
    let few = fs::read_to_string(&file).unwrap().replace("draws = 8", "draws = 5");
    let few = few.replacen(&recipes[same..], "", 1);
    let few = write(folder.path(), &few);
    let out = folder.path().join("few");
    let output = run(&["sweep", path(&few), "--out", path(&out)]);
    assert_eq!(code(&output), 4, "{}", stdout(&output));
    assert!(
        stdout(&output).contains("a limit needs at least 6 windows, and 5 were measured at logits"),
        "{}",
        stdout(&output)
    );
    assert!(!stderr(&output).contains("silent"), "{}", stderr(&output));
    assert!(stdout(&run(&["gate", path(&out), "--paired"])).contains("the silent zone of KL is not known"));
}

#[test]
fn draws_of_a_text_are_windows_by_their_seed() {
    let folder = tempfile::tempdir().unwrap();
    let file = experiment(folder.path(), FP8, "");
    let text = fs::read_to_string(&file).unwrap();
    let cells = |text: &str| {
        let file = write(folder.path(), text);
        run(&["sweep", path(&file), "--dry-run"])
    };
    let output = cells(&text.replace("offset = 20000", "draws = 2"));
    assert!(
        stdout(&output).contains("v4_fp8/local/alice~2"),
        "{}{}",
        stdout(&output),
        stderr(&output)
    );
    for (to, says) in [("draws = 0", "expected 1 to"), ("draw = 1\noffset = 5", "not both")] {
        let output = cells(&text.replace("offset = 20000", to));
        assert_eq!(code(&output), 2);
        assert!(stderr(&output).contains(says), "{}", stderr(&output));
    }
    let read = |text: &str, name: &str, more: &[&str]| {
        let file = write(
            folder.path(),
            &text
                .replace("offset = 20000", "draw = 3")
                .replace("tokens = 136", "tokens = 8"),
        );
        let out = folder.path().join(name);
        let output = run(&[
            &["sweep", path(&file), "--only", "v4_fp8/local/*", "--out", path(&out)],
            more,
        ]
        .concat());
        assert_eq!(code(&output), 4, "{}", stderr(&output));
        records(&out)
    };
    let one = read(&text, "one", &[]);
    assert_eq!(one, read(&text, "again", &[]));
    assert_ne!(one, read(&text, "other", &["--seed", "5"]));
}

/// Gates that ship hold at other lengths, too, which help suggests (`--set tokens=128`). The shortest window has the most noise: the loss
/// on what followed failed right FP8 there. Of the kind, and slower: `qwen3_kv`, `weights` and `kv_cache` over 64, 128 and 256 tokens.
#[test]
fn gates_of_gpt_oss_hold_over_64_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let output = run(&["sweep", "gptoss_kv", "--set", "tokens=64", "--out", path(&out)]);
    assert_eq!(code(&output), 0, "{}{}", stdout(&output), stderr(&output));
    assert!(stdout(&output).contains("\nPASS: "), "{}", stdout(&output));
}
