//! Gates with a size and a power: calibrations, bounds from rates, paired tests, runs that end when they are decided.

use std::fs;

use serde_json::Value;

use super::*;

/// A gate with a number, one with a rate, and one on what rounds nothing.
const CALIBRATED: &str = r#"
[[gate]]
metric = "relative_l2"
at = "layers.*.attention.kv.window"
phase = "local"
statistic = "max"
flake = 1e-6
calibration = "calibration.json"
recipes = ["v4_fp8"]
why = "no right window fails it more often"

[[gate]]
metric = "relative_l2"
at = "layers.*.output"
phase = "cumulative"
statistic = "max"
require = "<= 10"
recipes = ["v4_fp8"]
why = "to be replaced by a rate"

[[gate]]
metric = "relative_l2"
at = "layers.*.output"
phase = "cumulative"
statistic = "max"
require = "<= 1e-4"
recipes = ["reference"]
why = "the reference's own rounding stays far below"
"#;

fn json(file: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap()
}

#[test]
fn a_rate_becomes_a_bound_by_a_calibration_of_the_same_gate() {
    let folder = tempfile::tempdir().unwrap();
    let file = experiment(folder.path(), FP8, CALIBRATED);
    let text = fs::read_to_string(&file)
        .unwrap()
        .replace("tokens = 136", "tokens = 16");
    let file = write(folder.path(), &text);
    let (calibration, out) = (folder.path().join("calibration.json"), folder.path().join("run"));
    let sweep = |out: &Path| run(&["sweep", path(&file), "--out", path(out)]);

    // Without the calibration nothing is run.
    let output = sweep(&out);
    assert_eq!(code(&output), 2, "{}", stdout(&output));
    assert!(stderr(&output).contains("calibration.json"), "{}", stderr(&output));

    let null = folder.path().join("null");
    let draw = |draws: &str| {
        let file = path(&file);
        run(&[
            "gate",
            "--calibrate",
            file,
            "-o",
            path(&calibration),
            "--draws",
            draws,
            "--effect",
            "3",
            "--null",
            path(&null),
        ])
    };
    let output = draw("22");
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let shown = stdout(&output);
    assert!(
        shown.contains("22 draws of each statistic, each over 1 window of 16 tokens from alice"),
        "{shown}"
    );
    assert!(shown.contains("0 of 22 (≤ 0.127)"), "{shown}");
    assert!(
        shown.contains("| 22 of 22 |"),
        "three times the error is noticed: {shown}"
    );
    let nothing = "The power on `reference` is not known: it rounds nothing, so that no noise stands for its error";
    assert!(shown.contains(nothing), "{shown}");
    let found = json(&calibration);
    let values = |gate: usize| found["gates"][gate]["recipes"][0]["null"].as_array().unwrap().clone();
    let mut distinct: Vec<String> = values(1).iter().map(Value::to_string).collect();
    distinct.sort();
    distinct.dedup();
    assert_eq!(distinct.len(), 22, "windows and orders of sums differ");

    // The run's bound is above all that was drawn; it is kept with the run.
    let output = sweep(&out);
    assert_eq!(code(&output), 0, "{}{}", stdout(&output), stderr(&output));
    let bound = json(&out.join("run.json"))["gate"].clone();
    let bound = if bound.is_null() {
        json(&out.join("run.json"))["experiment"]["gate"].clone()
    } else {
        bound
    };
    let require: f64 = bound[0]["require"]
        .as_str()
        .unwrap()
        .strip_prefix("<= ")
        .unwrap()
        .parse()
        .unwrap();
    let largest = values(0)
        .iter()
        .map(|value| value.as_f64().unwrap())
        .fold(0.0, f64::max);
    assert!(require > largest && require < 2.0 * largest, "{require} {largest}");
    assert_eq!(code(&run(&["gate", path(&out)])), 0);
    assert_eq!(code(&run(&["gate", path(&out), "--rules", path(&file)])), 0);

    // A calibration of something else gives no bound, and says what differs.
    for (from, to, says) in [
        (
            "tokens = 16",
            "tokens = 18",
            "windows of 16 tokens, and here they have 18",
        ),
        (
            "format = \"v4_fp8\"",
            "format = \"v4_nvfp4\"",
            "another definition of 'v4_fp8'",
        ),
        (
            "statistic = \"max\"\nflake",
            "statistic = \"mean\"\nflake",
            "does not have this gate on 'v4_fp8'",
        ),
        (
            "require = \"<= 10\"",
            "flake = 1e-6\ncalibration = \"calibration.json\"",
            "would notice no draw with an error 3 times as large",
        ),
        (
            "flake = 1e-6",
            "flake = 1e-6\nrequire = \"<= 1\"",
            "stand together, in place of 'require': 'require' is given too",
        ),
        (
            "flake = 1e-6\n",
            "",
            "stand together, in place of 'require': 'flake' is missing",
        ),
        (
            "calibration = \"calibration.json\"\n",
            "",
            "stand together, in place of 'require': 'calibration' is missing",
        ),
        (
            "\"calibration.json\"",
            "\"missing.json\"",
            "line 24: gate on relative_l2: ",
        ),
        (
            "\"calibration.json\"",
            "\"run/run.json\"",
            "run.json: it is no calibration",
        ),
        ("flake = 1e-6", "flake = 2.0", "2 is no rate"),
    ] {
        let changed = folder.path().join("changed.toml");
        assert!(text.contains(from), "{from}");
        fs::write(&changed, text.replace(from, to)).unwrap();
        let output = run(&["sweep", path(&changed), "--out", path(&folder.path().join("no"))]);
        assert_eq!(code(&output), 2, "{to}: {}", stdout(&output));
        assert!(stderr(&output).contains(says), "{to}: {}", stderr(&output));
    }

    // Half of what was drawn gives a bound that the recipe fails; a search has it from the calibration, or from the run.
    let mut halved = found;
    for value in halved["gates"][0]["recipes"][0]["null"].as_array_mut().unwrap() {
        *value = (value.as_f64().unwrap() / 2.0).into();
    }
    fs::write(&calibration, halved.to_string()).unwrap();
    let (failing, stated) = (folder.path().join("failing"), folder.path().join("stated.toml"));
    assert_eq!(code(&sweep(&failing)), 100);
    for of in [&file, &failing] {
        let output = run(&["bisect", path(of), "--cells", "3", "-o", path(&stated)]);
        assert_eq!(code(&output), 4, "{}{}", stdout(&output), stderr(&output));
        says(&stdout(&output), "'v4_fp8' of test fails");
        // The recipe that was found is of no calibration: its gate states the bound.
        let output = run(&[
            "sweep",
            path(&stated),
            "--out",
            path(&stated.with_extension("run")),
            "--dry-run",
        ]);
        assert_eq!(code(&output), 0, "{}", stderr(&output));
    }

    // The page of stored calibrations.
    let output = run(&["gate", "--calibrated", path(&calibration)]);
    assert!(
        stdout(&output).starts_with("# Size and power of the gates of experiments"),
        "{}",
        stdout(&output)
    );
    fs::write(&calibration, "{}").unwrap();
    let output = run(&["gate", "--calibrated", path(&calibration)]);
    assert_eq!(code(&output), 2, "{}", stderr(&output));
}

#[test]
fn too_few_draws_give_no_bound() {
    let folder = tempfile::tempdir().unwrap();
    let file = experiment(folder.path(), FP8, CALIBRATED);
    let text = fs::read_to_string(&file).unwrap().replace("tokens = 136", "tokens = 8");
    let file = write(folder.path(), &text);
    let (calibration, null) = (folder.path().join("calibration.json"), folder.path().join("null"));
    let output = run(&[
        "gate",
        "--calibrate",
        path(&file),
        "-o",
        path(&calibration),
        "--draws",
        "3",
        "--effect",
        "2",
        "--null",
        path(&null),
    ]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let output = run(&["sweep", path(&file), "--out", path(&folder.path().join("run"))]);
    assert_eq!(code(&output), 2, "{}", stdout(&output));
    let says = "3 draws support no threshold for 1e-6 false alarms: a tail takes at least 20 draws; 2995731 draws need no tail";
    assert!(stderr(&output).contains(says), "{}", stderr(&output));
}

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
    let recipes = FP8.replace("v4_fp8\"\ndoc", "same\"\ndoc").replace("v4_fp8", "v4_bf16")
        + &FP8.replace("v4_fp8\"\ndoc", "broken\"\nnoise = true\ngain = 60\ndoc");
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

#[test]
fn the_page_is_of_the_stored_calibrations() {
    let folder = fs::read_dir(root().join("experiments/results")).unwrap();
    let mut stored: Vec<PathBuf> = folder.map(|entry| entry.unwrap().path()).collect();
    stored.retain(|file| path(file).ends_with(".calibration.json"));
    stored.sort();
    let files: Vec<&str> = stored.iter().map(|file| path(file)).collect();
    let output = run(&[&["gate", "--calibrated"], &files[..]].concat());
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let page = fs::read_to_string(root().join("docs/findings/gates-of-models.md")).unwrap();
    assert_eq!(
        stdout(&output),
        page,
        "print it again: ulplab gate --calibrated experiments/results/*.calibration.json"
    );
}

/// Draws of a calibration are no run that its user asked to judge.
#[test]
fn the_newest_run_is_none_of_a_calibration() {
    let folder = tempfile::tempdir().unwrap();
    let file = write(folder.path(), &format!("{TRIP}{COSINE}"));
    let here = |args: &[&str]| ulplab(args).current_dir(folder.path()).output().unwrap();
    let output = here(&["sweep", path(&file)]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let output = here(&["gate", "--calibrate", path(&file), "-o", "trip.json", "--draws", "1"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(
        stdout(&output).starts_with("1 draw of each statistic"),
        "{}",
        stdout(&output)
    );
    assert!(folder.path().join("runs/trip-null").is_dir());
    let output = here(&["gate"]);
    assert_eq!(code(&output), 0, "{}{}", stdout(&output), stderr(&output));
    assert!(stderr(&output).contains("runs/trip/"), "{}", stderr(&output));
}

/// Kernels have no draws: the reason is told, whatever names them.
#[test]
fn kernels_are_not_calibrated() {
    for experiment in ["kernels", "own_op"] {
        let file = root().join(format!("experiments/{experiment}.toml"));
        let output = run(&["gate", "--calibrate", path(&file), "-o", "/dev/null"]);
        assert_eq!(code(&output), 2, "{}", stdout(&output));
        let says = "gates of kind = \"kernels\" are not calibrated: right kernels run on a GPU";
        assert!(stderr(&output).contains(says), "{}", stderr(&output));
    }
}
