//! Two runs compared: what was asked otherwise, which verdicts and numbers changed, and by how much they may.

use serde_json::Value;
use ulplab::record::Record;
use ulplab::run::folder::Folder;

use super::*;

/// Sweeps into `folder/name`, whatever the gates say.
#[track_caller]
pub fn swept(folder: &Path, name: &str, text: &str, more: &[&str]) -> PathBuf {
    let out = folder.join(name);
    let output = run(&[&["sweep", path(&write(folder, text)), "--out", path(&out)], more].concat());
    assert!([0, 4, 100].contains(&code(&output)), "{}", stderr(&output));
    out
}

/// A copy of a run with other records.
pub fn altered(from: &Path, name: &str, alter: impl Fn(&mut Record)) -> PathBuf {
    let to = from.with_file_name(name);
    let (folder, manifest) = Folder::open(from).unwrap();
    let mut records = folder.records(&manifest).unwrap();
    records.iter_mut().for_each(alter);
    let (folder, manifest) = Folder::enter(&to, &manifest, false).unwrap();
    for cell in manifest.plan.cells() {
        let of_cell: Vec<Record> = records
            .iter()
            .filter(|record| record.cell == cell.id)
            .cloned()
            .collect();
        folder.write_cell(&cell, &of_cell).unwrap();
    }
    to
}

fn diff(base: &Path, new: &Path, more: &[&str]) -> Output {
    let args = [&["diff", path(base), path(new)], more].concat();
    ulplab(&args).env("COLUMNS", "2000").output().expect("ulplab starts")
}

/// The exit code, and the text.
#[track_caller]
fn said(base: &Path, new: &Path, more: &[&str]) -> (i32, String) {
    let output = diff(base, new, more);
    assert_eq!(stderr(&output), "");
    (code(&output), stdout(&output))
}

/// The exit code, and what `--json` prints.
#[track_caller]
fn json(base: &Path, new: &Path, more: &[&str]) -> (i32, Value) {
    let (code, text) = said(base, new, &[&["--json"], more].concat());
    (code, serde_json::from_str(&text).expect("one JSON object"))
}

#[track_caller]
fn refused(base: &Path, new: &Path, more: &[&str], words: &str) {
    let output = diff(base, new, more);
    assert_eq!(code(&output), 2, "{}", stdout(&output));
    says(&stderr(&output), words);
}

#[test]
fn equal_runs_are_identical() {
    let folder = tempfile::tempdir().unwrap();
    let text = format!("{TRIP}{NVFP4}{COSINE}");
    let [base, new] = ["base", "new"].map(|name| swept(folder.path(), name, &text, &[]));
    let (code, found) = json(&base, &new, &["--identical"]);
    assert_eq!((code, &found["outcome"]), (0, &Value::from("PASS")), "{found}");
    let numbers = &found["numbers"];
    assert!(numbers["both"].as_u64().unwrap() > 20, "{found}");
    assert_eq!(numbers["both"], numbers["bit_equal"], "{found}");
    assert_eq!(
        (&numbers["worse"], &found["same_verdicts"]),
        (&0.into(), &2.into()),
        "{found}"
    );
    for list in ["question", "verdicts", "loosened"] {
        assert_eq!(found[list], Value::Array(Vec::new()), "{found}");
    }
    assert_eq!(said(&base, &new, &[]).0, 0);
}

#[test]
fn without_gates_nothing_is_judged() {
    let folder = tempfile::tempdir().unwrap();
    let base = swept(folder.path(), "base", TRIP, &[]);
    let same = altered(&base, "same", |_| {});
    let (code, text) = said(&base, &same, &[]);
    assert_eq!(code, 4, "{text}");
    let last = "NOT JUDGED: BASE has no gates, and no --worsening, --rules or --identical is given";
    assert_eq!(text.lines().last(), Some(last));
    assert_eq!(said(&base, &same, &["--worsening", "cosine<=0"]).0, 0);
    // A gate that nothing passes guards nothing.
    let failing = swept(
        folder.path(),
        "failing",
        &format!("{TRIP}{COSINE}").replace("0.98", "1"),
        &[],
    );
    let (code, text) = said(&failing, &altered(&failing, "failing again", |_| {}), &[]);
    assert_eq!(code, 4, "{text}");
}

#[test]
fn another_seed_is_said_and_is_not_identical() {
    let folder = tempfile::tempdir().unwrap();
    let text = format!("{TRIP}{COSINE}");
    let base = swept(folder.path(), "base", &text, &[]);
    let new = swept(folder.path(), "new", &text, &["--seed", "1"]);
    let (code, found) = json(&base, &new, &[]);
    assert_eq!(code, 0, "the verdicts are the same: {found}");
    let seed = serde_json::json!([{ "what": "seed", "base": "0", "new": "1" }]);
    assert_eq!(found["question"], seed);
    assert!(found["numbers"]["worse"].as_u64() > Some(0), "{found}");
    let (code, text) = said(&base, &new, &["--identical"]);
    assert_eq!(code, 100, "{text}");
    assert!(
        text.contains("records are not bit-equal; the worst: fp8 at gauss in draw-"),
        "{text}"
    );
}

#[test]
fn no_gate_may_be_removed_or_relaxed() {
    let folder = tempfile::tempdir().unwrap();
    let text = format!("{TRIP}{NVFP4}{COSINE}");
    let base = swept(folder.path(), "base", &text, &[]);
    let relaxed = swept(folder.path(), "relaxed", &text.replace(">= 0.98", ">= 0.9"), &[]);
    let (code, page) = said(&base, &relaxed, &[]);
    assert_eq!(code, 100, "{page}");
    let first = "\n\nGates of BASE that were removed or relaxed\n";
    let place = page.find(first).expect("it is said");
    assert!(place < page.find("What differs").unwrap(), "it is said first: {page}");
    let line = page
        .lines()
        .find(|line| line.contains(">= 0.98") && line.contains(">= 0.9 "));
    assert!(line.is_some_and(|line| line.contains("fp8, nvfp4")), "{page}");
    assert!(page.lines().last().unwrap().starts_with("FAIL: "), "{page}");
    assert_eq!(
        said(&base, &relaxed, &["--worsening", "cosine<=0"]).0,
        100,
        "other gates are no excuse"
    );

    let (code, found) = json(
        &base,
        &swept(folder.path(), "removed", &text, &["--set", "gate=[]"]),
        &[],
    );
    assert_eq!((code, &found["loosened"][0]["now"]), (100, &Value::Null), "{found}");
    let narrowed = swept(folder.path(), "narrowed", &text.replace("[\"*\"]", "[\"fp8\"]"), &[]);
    let (code, found) = json(&base, &narrowed, &[]);
    assert_eq!(
        (code, &found["loosened"][0]["recipes"]),
        (100, &serde_json::json!(["nvfp4"]))
    );

    let stricter = swept(folder.path(), "stricter", &text.replace(">= 0.98", ">= 0.981"), &[]);
    let (code, page) = said(&base, &stricter, &[]);
    assert!(code == 0 && !page.contains("relaxed\n"), "{page}");
    assert!(page.contains("gate in one run only"), "{page}");
}

#[test]
fn what_new_lacks_cannot_be_compared() {
    let folder = tempfile::tempdir().unwrap();
    let base = swept(folder.path(), "base", &format!("{TRIP}{NVFP4}{COSINE}"), &[]);
    let new = swept(folder.path(), "new", &format!("{TRIP}{COSINE}"), &[]);
    let (code, page) = said(&base, &new, &[]);
    assert_eq!(code, 4, "{page}");
    assert!(
        page.contains("recipe in one run only") && page.contains("NEW does not have the recipe"),
        "{page}"
    );
    let (code, found) = json(&base, &new, &["--worsening", "cosine<=1%"]);
    assert_eq!((code, &found["outcome"]), (4, &Value::from("PARTLY JUDGED")), "{found}");
    assert_eq!(found["checks"][2]["status"], "not_judged", "{found}");
    assert_eq!(said(&base, &new, &["--identical"]).0, 4);

    // A recipe that only NEW has is said, and stops nothing.
    let (code, found) = json(&new, &base, &["--worsening", "cosine<=1%"]);
    assert_eq!(code, 0, "{found}");
    assert!(found["numbers"]["only_new"].as_u64() > Some(0), "{found}");
    // Nor does one that was removed, if no gate speaks of it.
    let unbound = format!("{TRIP}{NVFP4}{}", COSINE.replace("[\"*\"]", "[\"fp8\"]"));
    let unbound = swept(folder.path(), "unbound", &unbound, &[]);
    let bound = swept(
        folder.path(),
        "bound",
        &format!("{TRIP}{}", COSINE.replace("[\"*\"]", "[\"fp8\"]")),
        &[],
    );
    assert_eq!(said(&unbound, &bound, &[]).0, 0);
}

#[test]
fn a_number_that_becomes_nan_is_worst() {
    let folder = tempfile::tempdir().unwrap();
    let base = swept(folder.path(), "base", &format!("{TRIP}{NVFP4}{COSINE}"), &[]);
    let nan = altered(&base, "nan", |record| {
        if record.recipe == "fp8" && record.metric == "cosine" && record.window == "draw-2" {
            record.value = f64::NAN;
        } else if record.metric == "relative_l2" {
            record.value *= 1e6;
        }
    });
    let (code, found) = json(&base, &nan, &["--worsening", "cosine<=1e9%"]);
    assert_eq!(code, 100, "{found}");
    let numbers = &found["numbers"];
    assert_eq!(
        (&numbers["newly_nan"], &numbers["no_longer_nan"]),
        (&1.into(), &0.into())
    );
    let worst = &numbers["worst"][0];
    assert_eq!(
        (&worst["metric"], &worst["window"], &worst["new"]),
        (&"cosine".into(), &"draw-2".into(), &Value::Null)
    );
    let statuses: Vec<&Value> = found["checks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|check| &check["status"])
        .collect();
    assert_eq!(
        statuses,
        ["fail", "pass", "fail"],
        "verdicts, gates, and the one given: {found}"
    );
    assert_eq!(found["verdicts"][0]["new"], "fail", "{found}");

    let again = altered(&nan, "nan again", |_| {});
    let (code, found) = json(&nan, &again, &["--identical", "--worsening", "cosine<=0"]);
    assert_eq!(code, 0, "NaN in both runs is no change: {found}");
    let (code, page) = said(&nan, &base, &["--worsening", "cosine<=0"]);
    assert_eq!(code, 0, "{page}");
    assert!(page.contains("1 NaN in BASE only, which is better"), "{page}");
}

#[test]
fn gates_bound_the_change() {
    let folder = tempfile::tempdir().unwrap();
    let base = swept(folder.path(), "base", TRIP, &[]);
    let base = altered(&base, "plain", |record| match record.metric.as_str() {
        "relative_l2" => record.value = 0.5,
        "max_abs" => record.value = 0.0,
        _ => {}
    });
    let new = altered(&base, "new", |record| match record.metric.as_str() {
        "relative_l2" if record.window == "draw-2" => record.value = 0.75,
        "cosine" => record.value = 1.0,
        "max_abs" => record.value = 1e-9,
        _ => {}
    });
    let judged = |gate: &str| said(&base, &new, &["--worsening", gate]);
    for gate in [
        "relative_l2<=50%",
        "relative_l2 <= 0.25",
        "gau*:relative_l2<=50 %",
        "cosine<=0",
        "max_abs<=1e-9",
    ] {
        let (code, text) = judged(gate);
        assert_eq!(code, 0, "{gate}: {text}");
    }
    // From 0 there is no per cent.
    for gate in [
        "relative_l2<=49.9%",
        "relative_l2<=0.24",
        "gauss:relative_l2<=0%",
        "max_abs<=1000%",
    ] {
        let (code, text) = judged(gate);
        assert_eq!(code, 100, "{gate}: {text}");
    }
    let (_, text) = judged("relative_l2<=10%");
    let line = "1 of 2 records worsen by more; the worst: fp8 at gauss in draw-2 (local): 0.5000 → 0.7500, worse by +0.250 (+50.0 %)";
    assert!(text.contains(line), "{text}");
    let (code, text) = said(&new, &base, &["--worsening", "relative_l2<=0"]);
    assert_eq!(code, 0, "a smaller error is no worsening: {text}");
    assert_eq!(
        said(&new, &base, &["--worsening", "cosine<=0"]).0,
        100,
        "a smaller cosine is one"
    );

    for (gate, words) in [
        (
            "gaus:relative_l2<=1%",
            "was measured at no site that matches 'gaus'; did you mean 'gauss'?",
        ),
        (
            "kl<=1e-4",
            "worsening 'kl<=1e-4' matches nothing: kl was measured in neither run",
        ),
        (
            "relative_l3<=1%",
            "no metric 'relative_l3'; did you mean 'relative_l2'?",
        ),
        ("relative_l2>=1%", "expected [PATTERN:]METRIC<=CHANGE"),
        (
            "relative_l2<=-1%",
            "'-1%' is not a change; expected a number of at least 0",
        ),
        ("relative_l2<=nan", "is not a change"),
        ("relative_l2<=much", "expected a number, or one with % behind it"),
    ] {
        refused(&base, &new, &["--worsening", gate], words);
    }
}

#[test]
fn gates_of_a_file_narrow_phase_and_recipes() {
    let folder = tempfile::tempdir().unwrap();
    let base = swept(folder.path(), "base", &format!("{TRIP}{NVFP4}"), &[]);
    let new = altered(&base, "new", |record| {
        if record.recipe == "nvfp4" && record.metric == "relative_l2" {
            record.value *= 2.0;
        }
    });
    let file = folder.path().join("rules.toml");
    let judged = |text: &str| {
        std::fs::write(&file, text).unwrap();
        diff(&base, &new, &["--rules", path(&file)])
    };
    let all = "[[change]]\nmetric = \"relative_l2\"\nworsening = \"5%\"\nwhy = \"noise\"\n";
    assert_eq!(code(&judged(all)), 100);
    let narrow = format!("{all}at = \"gauss\"\nphase = \"local\"\nrecipes = [\"fp8\"]\n");
    let output = judged(&narrow);
    assert_eq!(code(&output), 0, "{}", stdout(&output));
    assert!(
        stdout(&output).contains("gauss:relative_l2<=5% (local) of fp8"),
        "{}",
        stdout(&output)
    );
    for (text, words) in [
        (
            narrow.replace("local", "cumulative"),
            "was not measured there in that phase and those recipes",
        ),
        (all.replace("metric", "metrics"), "line 2: unknown field `metrics`"),
        (
            all.replace("5%", "some"),
            "change of relative_l2: 'some' is not a change",
        ),
        (String::new(), "missing field `change`"),
    ] {
        let output = judged(&text);
        assert_eq!(code(&output), 2, "{text}");
        let error = stderr(&output);
        assert!(
            error.contains(words) && error.contains("rules.toml"),
            "'{words}' is not in: {error}"
        );
    }
}

#[test]
fn times_are_apart_from_numerics() {
    let folder = tempfile::tempdir().unwrap();
    let measured = swept(folder.path(), "measured", TRIP, &[]);
    let timed = |name: &str, us: f64| {
        altered(&measured, name, |record| match record.metric.as_str() {
            "max_abs" => (record.metric, record.value, record.worst) = ("us_cold".into(), us, None),
            "relative_l2" => (record.metric, record.value) = ("of_copy".into(), 10.0 / us),
            _ => {}
        })
    };
    let (base, new) = (timed("base", 10.0), timed("new", 10.4));
    let (code, found) = json(&base, &new, &["--identical"]);
    assert_eq!(code, 0, "times are never the same: {found}");
    assert_eq!(
        (&found["numbers"]["worse"], &found["times"]["worse"]),
        (&0.into(), &2.into()),
        "{found}"
    );
    assert_eq!(said(&base, &new, &["--worsening", "us_cold<=3%"]).0, 100);
    assert_eq!(said(&base, &new, &["--worsening", "us_cold<=5%"]).0, 0);
}

#[test]
fn the_worst_come_first_in_text_and_markdown() {
    let folder = tempfile::tempdir().unwrap();
    let base = swept(folder.path(), "base", &format!("{TRIP}{NVFP4}{COSINE}"), &[]);
    let new = altered(&base, "new", |record| match record.metric.as_str() {
        "relative_l2" if record.recipe == "nvfp4" => record.value *= 3.0,
        "relative_l2" => record.value *= 2.0,
        _ => {}
    });
    let page = folder.path().join("diff.md");
    let (code, found) = json(&base, &new, &["--top", "1", "--markdown", path(&page)]);
    assert_eq!(code, 0, "{found}");
    let worst = found["numbers"]["worst"].as_array().unwrap();
    assert_eq!(
        (worst.len(), &worst[0]["recipe"], &found["numbers"]["worse"]),
        (1, &"nvfp4".into(), &2.into())
    );
    assert_eq!(worst[0]["per_cent"].as_f64().map(f64::round), Some(200.0));
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.starts_with("## PASS: what became worse\n"), "{page}");
    for words in [
        "2 places are worse, 1 shown",
        "| nvfp4 | local | gauss |",
        "| +200 |",
        "### Verdicts: 0 changed",
    ] {
        assert!(page.contains(words), "'{words}' is not in: {page}");
    }
}

#[test]
fn a_run_that_is_not_whole_is_not_compared() {
    let folder = tempfile::tempdir().unwrap();
    let base = swept(folder.path(), "base", &format!("{TRIP}{COSINE}"), &[]);
    let new = altered(&base, "new", |_| {});
    assert_eq!(said(&base, &new, &["--identical"]).0, 0);
    let cell = new.join("cells/fp8__local__draw-1.jsonl");
    let text = std::fs::read_to_string(&cell).unwrap();
    std::fs::write(&cell, text.replacen("\"n\":", "\"n\": ", 1)).unwrap();
    refused(
        &base,
        &new,
        &[],
        "fp8__local__draw-1.jsonl: not a finished cell of this run",
    );
    std::fs::remove_file(&cell).unwrap();
    for (base, new) in [(&base, &new), (&new, &base)] {
        let output = diff(base, new, &[]);
        assert_eq!(code(&output), 103, "{}", stdout(&output));
        assert!(
            stderr(&output).contains("1 of 2 cells are missing"),
            "{}",
            stderr(&output)
        );
    }
    refused(&base, &folder.path().join("none"), &[], "none: there is no such folder");
    refused(&base, folder.path(), &[], "not a run: it has no run.json");
}

#[test]
fn a_narrow_terminal_breaks_no_number() {
    let folder = tempfile::tempdir().unwrap();
    let base = swept(folder.path(), "base", TRIP, &[]);
    let new = swept(folder.path(), "new", TRIP, &["--seed", "1"]);
    let narrow = ulplab(&["diff", path(&base), path(&new)]).env("COLUMNS", "60").output();
    let text = stdout(&narrow.unwrap());
    let of = |metric: &str| {
        text.lines()
            .position(|line| line.split_whitespace().any(|word| word == metric))
    };
    let first = [of("relative_l2"), of("sqnr")].into_iter().flatten().min();
    assert!(first.is_some() && of("nsr").is_none(), "{text}");
    assert!(!text.contains("-\n"), "{text}");
}
