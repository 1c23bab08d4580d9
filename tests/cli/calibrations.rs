//! Calibrations: what becomes a bound, and what is refused.

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

/// The bytes of a calibration with this content.
fn sealed(content: &Value) -> Vec<u8> {
    let mut content = content.clone();
    content.as_object_mut().unwrap().remove("blake3");
    ulplab::run::seal::json(&content)
}

fn json(file: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap()
}

#[test]
fn a_rate_becomes_a_bound_by_a_calibration_of_the_same_gate() {
    let folder = tempfile::tempdir().unwrap();
    let file = experiment(folder.path(), FP8, CALIBRATED);
    let text = fs::read_to_string(&file).unwrap().replace("tokens = 136", "tokens = 6");
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
    let output = draw("20");
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let shown = stdout(&output);
    assert!(
        shown.contains("20 draws of each statistic, each over 1 window of 6 tokens from alice"),
        "{shown}"
    );
    assert!(shown.contains("0 of 20 (≤ 0.139)"), "{shown}");
    assert!(
        shown.contains("| 20 of 20 |"),
        "three times the error is noticed: {shown}"
    );
    let nothing = "The power on `reference` is not known: it rounds nothing, so that no noise stands for its error";
    assert!(shown.contains(nothing), "{shown}");
    let found = json(&calibration);
    let values = |gate: usize| found["gates"][gate]["recipes"][0]["null"].as_array().unwrap().clone();
    let mut distinct: Vec<String> = values(1).iter().map(Value::to_string).collect();
    distinct.sort();
    distinct.dedup();
    assert_eq!(distinct.len(), 20, "windows and orders of sums differ");

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

    let refused = |file: &Path, says: &str| {
        let output = run(&["sweep", path(file), "--out", path(&folder.path().join("no"))]);
        assert_eq!(code(&output), 2, "{says}: {}", stdout(&output));
        assert!(stderr(&output).contains(says), "{says}: {}", stderr(&output));
    };

    // A calibration of something else gives no bound, and says what differs.
    for (from, to, says) in [
        (
            "tokens = 6",
            "tokens = 7",
            "its windows have 6 tokens, and here they have 7",
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
            "run.json: not a calibration file of this version",
        ),
        ("flake = 1e-6", "flake = 2.0", "2 is not a rate"),
    ] {
        let changed = folder.path().join("changed.toml");
        assert!(text.contains(from), "{from}");
        fs::write(&changed, text.replace(from, to)).unwrap();
        refused(&changed, says);
    }

    // So does one that was made by other definitions, or that was edited.
    for (edit, says) in [
        (
            (|found| found["draws"] = 23.into()) as fn(&mut Value),
            "it is of 23 draws, and max of `relative_l2`",
        ),
        (
            |found| found["definitions"]["metrics"]["relative_l2"] = "other".into(),
            "the definition of the metric 'relative_l2' changed since it was made",
        ),
        (
            |found| found["definitions"]["formats"]["v4_fp8"] = "other".into(),
            "the rule of the format 'v4_fp8' changed since it was made",
        ),
        (
            |found| found["definitions"] = serde_json::json!({ "formats": {}, "metrics": {} }),
            "does not store the definition of relative_l2",
        ),
    ] {
        let mut edited = found.clone();
        edit(&mut edited);
        fs::write(&calibration, sealed(&edited)).unwrap();
        refused(&file, says);
    }

    // Every edit of the file itself is noticed. Also of this kind: keys that are added, and bytes behind the end.
    let original = String::from_utf8(sealed(&found)).unwrap();
    let number = found["gates"][0]["recipes"][0]["null"][3].to_string();
    for (from, to) in [
        (&*number, "1.0"),
        ("\"effects\": [", "\"effects\": [], \"other\": ["),
        ("\"texts\": [", "\"texts\": [], \"other\": ["),
        ("\"version\": \"", "\"version\": \"1"),
        ("\"experiment\": \"", "\"experiment\": \"x"),
        ("\"data\": [", "\"data\": [], \"other\": ["),
        ("\"seed\": ", "\"seed\": 1"),
        ("\n}\n", "\n}\n\n"),
        ("\n}\n", "\n}"),
        ("\"draws\": 20", "\"draws\": 2"),
    ] {
        assert!(original.contains(from), "{from}");
        fs::write(&calibration, original.replacen(from, to, 1)).unwrap();
        refused(
            &file,
            "calibration.json: not a calibration file of this version of `ulplab gate --calibrate`: ",
        );
    }

    // Half of what was drawn gives a bound that the recipe fails; a search has it from the calibration, or from the run.
    let mut halved = found;
    for value in halved["gates"][0]["recipes"][0]["null"].as_array_mut().unwrap() {
        *value = (value.as_f64().unwrap() / 2.0).into();
    }
    fs::write(&calibration, sealed(&halved)).unwrap();
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

/// All stored calibrations and attestations are sealed. After an edit that is meant, ULPLAB_BLESS=1 seals them again.
#[test]
fn stored_results_are_sealed() {
    let results = root().join("experiments/results");
    let files = |folder: &Path| -> Vec<PathBuf> {
        fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect()
    };
    let mut stored = files(&results);
    let devices: Vec<PathBuf> = stored.iter().filter(|path| path.is_dir()).cloned().collect();
    stored.extend(devices.iter().flat_map(|device| files(device)));
    stored.retain(|file| path(file).ends_with(".calibration.json") || path(file).ends_with("/kernels.json"));
    assert!(stored.len() > 10, "{stored:?}");
    for file in stored {
        if std::env::var_os("ULPLAB_BLESS").is_some() {
            fs::write(&file, sealed(&json(&file))).unwrap();
        }
        let read = ulplab::run::seal::read_json::<Value>(&fs::read(&file).unwrap(), None);
        assert!(
            read.is_ok(),
            "{}: {}; ULPLAB_BLESS=1 seals it",
            file.display(),
            read.unwrap_err()
        );
    }
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
