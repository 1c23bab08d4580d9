//! Runs that a person accepted: which may become baselines, what is compared with them, and how they drift.

use serde_json::Value;

use super::diff::{altered, swept};
use super::*;

fn baseline(folder: &Path, args: &[&str]) -> Output {
    let store = folder.join("baselines");
    let args = [&["baseline"], args, &["--baselines", path(&store)]].concat();
    ulplab(&args).env("COLUMNS", "2000").output().expect("ulplab starts")
}

#[track_caller]
fn accept(folder: &Path, run: &Path, why: &str) -> PathBuf {
    let output = baseline(folder, &["accept", path(run), "--why", why, "--by", "ada"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    PathBuf::from(stdout(&output).trim().strip_suffix(": accepted").expect("its folder"))
}

/// That a run does not become a baseline, and nothing is left that looks like one.
#[track_caller]
fn refused(folder: &Path, run: &Path, exit: i32, words: &str) {
    let output = baseline(folder, &["accept", path(run), "--why", "it is fast", "--by", "ada"]);
    assert_eq!(code(&output), exit, "{}", stderr(&output));
    says(&stderr(&output), words);
    assert!(!folder.join("baselines").exists());
}

#[track_caller]
fn compared(folder: &Path, run: &Path, exit: i32) -> String {
    let output = baseline(folder, &["compare", path(run)]);
    let text = stdout(&output) + &stderr(&output);
    assert_eq!(code(&output), exit, "{text}");
    text
}

fn question() -> String {
    format!("{TRIP}{NVFP4}{COSINE}")
}

/// A folder with a run, which is a baseline.
fn accepted() -> (tempfile::TempDir, PathBuf, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let run = swept(folder.path(), "run", &question(), &[]);
    let base = accept(folder.path(), &run, "the first");
    (folder, run, base)
}

#[test]
fn a_run_is_compared_with_what_was_accepted() {
    let (folder, run, base) = accepted();
    says(&compared(folder.path(), &run, 0), "PASS");
    // It is a whole run of its own.
    let gate = super::run(&["gate", path(&base)]);
    assert_eq!(code(&gate), 0, "{}", stderr(&gate));
    // A recipe and a gate more are no other question; a gate that is weaker fails the comparison.
    let int8 = "\n[[recipe]]\nname = \"int8\"\ndoc = \"INT8\"\nformat = \"int8_token\"\n";
    let more = swept(folder.path(), "more", &format!("{TRIP}{NVFP4}{int8}{COSINE}"), &[]);
    says(&compared(folder.path(), &more, 0), "recipe in one run only");
    let weak = question().replace(">= 0.98", ">= 0.9");
    says(
        &compared(folder.path(), &swept(folder.path(), "weak", &weak, &[]), 100),
        "FAIL",
    );
    let again = baseline(folder.path(), &["accept", path(&run), "--why", "again", "--by", "ada"]);
    assert_eq!(code(&again), 2);
    says(&stderr(&again), "a baseline already");
}

#[test]
fn only_a_run_that_passes_becomes_one() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let failing = swept(folder, "failing", &question().replace(">= 0.98", ">= 0.999"), &[]);
    refused(
        folder,
        &failing,
        100,
        "a gate fails, on 'nvfp4': min of cosine at gauss (local) is 0.99",
    );
    let failing = swept(folder, "both", &question().replace(">= 0.98", ">= 0.9999"), &[]);
    refused(folder, &failing, 100, "2 gates fail, the first on 'fp8': min of cosine");
    refused(
        folder,
        &swept(folder, "without", &format!("{TRIP}{NVFP4}"), &[]),
        4,
        "no gate judges it",
    );
    let part = swept(folder, "part", &question(), &["--only", "nvfp4/**"]);
    refused(folder, &part, 4, "not everything in it was judged");
    let run = swept(folder, "run", &question(), &[]);
    let cells = std::fs::read_dir(run.join("cells")).unwrap();
    std::fs::remove_file(cells.last().unwrap().unwrap().path()).unwrap();
    refused(folder, &run, 103, "cells are missing");
    let blank = baseline(folder, &["accept", path(&run), "--why", " ", "--by", "ada"]);
    assert_eq!(code(&blank), 2);
    says(&stderr(&blank), "--why is empty");
}

/// In containers and CI nobody has a `USER`.
#[test]
fn who_accepts_a_run_is_found_without_user() {
    let folder = tempfile::tempdir().unwrap();
    let run = swept(folder.path(), "run", &question(), &[]);
    let accept = |store: &str, vars: &[(&str, &str)]| {
        let store = folder.path().join(store);
        let mut command = ulplab(&[
            "baseline",
            "accept",
            path(&run),
            "--why",
            "x",
            "--baselines",
            path(&store),
        ]);
        for name in ["USER", "LOGNAME", "GIT_CONFIG_COUNT"] {
            command.env_remove(name);
        }
        // Nothing is read from this machine's configuration, nor from a checkout.
        let none = [
            ("GIT_CONFIG_GLOBAL", "/dev/null"),
            ("GIT_CONFIG_SYSTEM", "/dev/null"),
            ("GIT_DIR", path(folder.path())),
        ];
        command.envs(none).envs(vars.iter().copied()).output().unwrap()
    };
    let by = |output: &Output| {
        assert_eq!(code(output), 0, "{}", stderr(output));
        let base = PathBuf::from(stdout(output).trim().strip_suffix(": accepted").unwrap());
        let text = std::fs::read_to_string(base.join("accepted.json")).unwrap();
        serde_json::from_str::<Value>(&text).unwrap()["by"].clone()
    };
    assert_eq!(by(&accept("first", &[("USER", ""), ("LOGNAME", "grace")])), "grace");
    let git = [
        ("GIT_CONFIG_COUNT", "1"),
        ("GIT_CONFIG_KEY_0", "user.name"),
        ("GIT_CONFIG_VALUE_0", "Ada L"),
    ];
    assert_eq!(by(&accept("second", &git)), "Ada L");
    let nobody = accept("third", &[]);
    assert_eq!(code(&nobody), 2, "{}", stdout(&nobody));
    says(&stderr(&nobody), "give --by NAME");
}

#[test]
fn without_a_baseline_nothing_passes() {
    let (folder, run, base) = accepted();
    let other = swept(folder.path(), "other", &question().replace("\"trip\"", "\"tour\""), &[]);
    says(&compared(folder.path(), &other, 4), "no baseline of 'tour' on 'cpu'");
    // A copy that was interrupted has no reason yet.
    std::fs::remove_file(base.join("accepted.json")).unwrap();
    says(&compared(folder.path(), &run, 4), "NOT COMPARED");
    accept(folder.path(), &run, "the first, once more");
    says(&compared(folder.path(), &run, 0), "PASS");
}

#[test]
fn another_question_or_definition_is_incomparable() {
    let (folder, run, base) = accepted();
    let folder = folder.path();
    let seed = swept(
        folder,
        "seed",
        &question().replace("name = \"trip\"", "name = \"trip\"\nseed = 1"),
        &[],
    );
    says(&compared(folder, &seed, 4), "seed: 0 then, 1 now");
    let draws = swept(
        folder,
        "draws",
        &question().replace("shape = [4, 128]", "shape = [8, 128]"),
        &[],
    );
    says(&compared(folder, &draws, 4), "shape: [4,128] then, [8,128] now");
    let rule = question().replace("format = \"nvfp4\"", "format = \"nvfp4_46\"");
    says(
        &compared(folder, &swept(folder, "rule", &rule, &[]), 4),
        "recipe nvfp4: its definition changed",
    );

    // As if another version of ulplab had accepted it.
    let file = base.join("accepted.json");
    let text = std::fs::read_to_string(&file).unwrap();
    let mut whole: Value = serde_json::from_str(&text).unwrap();
    for (of, name) in [("formats", "nvfp4"), ("metrics", "cosine")] {
        assert_eq!(whole["definitions"][of][name].as_str().unwrap().len(), 64);
        whole["definitions"][of][name] = "0".repeat(64).into();
    }
    std::fs::write(&file, whole.to_string()).unwrap();
    let found = compared(folder, &run, 4);
    says(&found, "the rule of the format 'nvfp4' changed");
    says(&found, "the definition of the metric 'cosine' changed");
    whole["run"] = "0".repeat(64).into();
    std::fs::write(&file, whole.to_string()).unwrap();
    says(&compared(folder, &run, 2), "accepted.json: it accepts the run 0000");
}

/// A run whose cosines are smaller by this, and which asks the same under another gate's reason.
fn drifted(folder: &Path, by: f64) -> PathBuf {
    let text = question().replace("most of it", &format!("most of it, {by}"));
    let from = swept(folder, &format!("from{by}"), &text, &[]);
    altered(&from, &format!("drifted{by}"), |record| {
        if record.metric == "cosine" {
            record.value -= by;
        }
    })
}

#[test]
fn numbers_that_become_worse_again_and_again_are_shown() {
    let (folder, _, first) = accepted();
    let folder = folder.path();
    // Times are to the second.
    let dated = |base: &Path, second: usize| {
        let file = base.join("accepted.json");
        let mut accepted: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        accepted["accepted_at"] = format!("2026-01-01T00:00:0{second}Z").into();
        std::fs::write(file, accepted.to_string()).unwrap();
    };
    dated(&first, 0);
    for (second, by) in [(1, 0.001), (2, 0.002)] {
        dated(&accept(folder, &drifted(folder, by), "slower sums"), second);
    }
    let output = baseline(folder, &["log", "trip", "--json"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let found: Value = serde_json::from_str(&stdout(&output)).unwrap();
    let whys: Vec<&Value> = found["baselines"]
        .as_array()
        .unwrap()
        .iter()
        .map(|base| &base["why"])
        .collect();
    assert_eq!(whys, ["the first", "slower sums", "slower sums"]);
    let worst = &found["numbers"][0];
    assert_eq!(
        (&worst["row"], worst["values"].as_array().unwrap().len()),
        (&2.into(), 3),
        "{found}"
    );
    let worse = worst["worse"].as_f64().unwrap();
    assert!((worse - 0.002).abs() < 1e-4, "{worse}");
    // Only the last two; then one that asks otherwise.
    let last = baseline(folder, &["log", "--json", "--last", "2"]);
    let last: Value = serde_json::from_str(&stdout(&last)).unwrap();
    assert_eq!(
        (last["baselines"].as_array().unwrap().len(), &last["numbers"][0]["row"]),
        (2, &1.into())
    );
    let seed = question().replace("name = \"trip\"", "name = \"trip\"\nseed = 1");
    dated(&accept(folder, &swept(folder, "seed", &seed, &[]), "another seed"), 3);
    let text = stdout(&baseline(folder, &["log"]));
    says(&text, "4 is incomparable with 3: seed: 0 then, 1 now");
    says(&text, "trip on cpu");
    let none = baseline(folder, &["log", "tour"]);
    assert_eq!(code(&none), 2);
    says(&stderr(&none), "no baseline of 'tour', but trip");
}
