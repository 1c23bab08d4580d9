//! PASS is said of a whole run in which every rule was judged, and of nothing else.

use super::*;

/// Sweeps the text; the output, and the folder of the run.
fn sweep(folder: &Path, text: &str, more: &[&str]) -> (Output, PathBuf) {
    let out = folder.join("run");
    let output = run(&[&["sweep", path(&write(folder, text)), "--out", path(&out)], more].concat());
    (output, out)
}

/// The exit code, and what is printed.
#[track_caller]
fn said(text: &str, more: &[&str]) -> (i32, String) {
    let folder = tempfile::tempdir().unwrap();
    let (output, _) = sweep(folder.path(), text, more);
    assert_eq!(stderr(&output), "");
    (code(&output), stdout(&output))
}

#[test]
fn an_interval_needs_two_windows() {
    let interval = COSINE.replace("\"min\"", "\"ci_low\"");
    let text = format!("{TRIP}{NVFP4}{COSINE}{interval}");
    let (code, table) = said(&text, &[]);
    assert_eq!(code, 0, "{table}");
    assert!(table.contains("PASS 2 gates"), "{table}");

    let (code, table) = said(&text, &["--set", "draws=1"]);
    assert_eq!(code, 4, "{table}");
    assert!(
        table.contains("PARTLY JUDGED: 2 checks pass, 0 fail, 2 not judged"),
        "{table}"
    );
    assert!(table.contains("changed by --set 'draws=1'"), "{table}");
    let why = "NOT JUDGED fp8, nvfp4: an interval needs at least 2 windows, and one was measured at gauss";
    assert!(table.contains(why) && table.contains("1 of 2 judged"), "{table}");
    assert!(!table.contains('±'), "there is no interval to show: {table}");

    // What one window is enough to see is not excused by it.
    let (code, table) = said(&text.replace(">= 0.98", ">= 0.9999"), &["--set", "draws=1"]);
    assert_eq!(code, 100, "{table}");
    assert!(table.contains("FAIL: 0 checks pass, 2 fail, 2 not judged"), "{table}");
}

#[test]
fn what_was_not_selected_is_not_judged() {
    let text = format!("{TRIP}{NVFP4}{COSINE}");
    let one_recipe = ["--only", "fp8/**"];
    let (code, table) = said(&text, &one_recipe);
    assert_eq!(code, 4, "{table}");
    let line =
        "PARTLY JUDGED: 1 check passes, 0 fail, 1 not judged; 2 of 4 cells selected by --only fp8/**; 2 cells in ";
    assert!(table.contains(line), "{table}");
    assert!(
        table.contains("NOT JUDGED nvfp4: none of its cells was selected"),
        "{table}"
    );
    assert!(table.contains("1 recipe was not selected"), "{table}");
    let rows = table.lines().filter(|line| line.starts_with("nvfp4"));
    assert_eq!(rows.count(), 0, "a recipe that was not measured has no row: {table}");

    let one_window = ["--skip", "*/local/draw-2"];
    let (code, table) = said(&text, &one_window);
    assert_eq!(code, 4, "{table}");
    assert!(
        table.contains(
            "NOT JUDGED: 0 checks pass, 0 fail, 2 not judged; 2 of 4 cells selected by --skip */local/draw-2"
        ),
        "{table}"
    );
    let why = "NOT JUDGED fp8: holds on 1 of 2 cells, and the others were not selected: min of cosine at gauss";
    assert!(table.contains(why) && !table.contains("PASS"), "{table}");

    let (code, table) = said(&text.replace(">= 0.98", ">= 0.9999"), &one_window);
    assert_eq!(code, 100, "what fails on a part fails on the whole: {table}");
    let named = "FAIL fp8: min of cosine at gauss";
    assert!(table.contains(named), "{table}");
    assert!(!table.contains("fp8: fp8"), "a recipe is named once: {table}");
}

/// No gate looks at what was left out, and yet the question of the experiment was not asked whole.
#[test]
fn a_part_is_no_whole_even_if_no_gate_looks_at_the_rest() {
    let text = format!("{TRIP}{NVFP4}{}", COSINE.replace("[\"*\"]", "[\"fp8\"]"));
    assert_eq!(said(&text, &[]).0, 0);
    let (code, table) = said(&text, &["--only", "fp8/**"]);
    assert_eq!(code, 4, "{table}");
    assert!(
        table.contains("PARTLY JUDGED: 1 check passes, 0 fail; 2 of 4 cells"),
        "{table}"
    );
    // A smaller question is one of its own.
    let (code, table) = said(&text, &["--set", "draws=1"]);
    assert!(code == 0 && table.contains("PASS: 1 check passes, 0 fail"), "{table}");
}

#[test]
fn a_model_partly_measured_has_no_smallest_format() {
    let folder = tempfile::tempdir().unwrap();
    let cumulative = PASSING.replace("local", "cumulative").replace(">= 0.999", ">= 0.99");
    let file = experiment(folder.path(), FP8, &format!("{PASSING}{cumulative}"));
    let out = folder.path().join("run");
    let skip = ["--set", "tokens=16", "--skip", "v4_fp8/cumulative/**"];
    let output = run(&[&["sweep", path(&file), "--out", path(&out)], &skip[..]].concat());
    let table = stdout(&output);
    assert_eq!(code(&output), 4, "{table}{}", stderr(&output));
    assert!(
        table.contains("PARTLY JUDGED: 1 check passes, 0 fail, 1 not judged"),
        "{table}"
    );
    assert!(
        !table.contains("smallest format") && table.contains("1 of 2 judged"),
        "{table}"
    );
    // The same of the stored run, in every report.
    assert_eq!(code(&run(&["gate", path(&out)])), 4);
    for file in ["report.html", "report.md", "report.txt"] {
        let page = std::fs::read_to_string(out.join(file)).unwrap();
        assert!(
            page.contains("PARTLY JUDGED") && !page.contains("smallest format"),
            "{file}"
        );
    }
    // What makes the same run again is given whole.
    let page = std::fs::read_to_string(out.join("report.html")).unwrap();
    let again = format!(
        "ulplab sweep {} --set &#39;tokens=16&#39; --skip &#39;v4_fp8/cumulative/**&#39; --seed 0",
        path(&file)
    );
    assert!(page.contains(&again), "'{again}' is not in the page");
}

#[test]
fn without_gates_nothing_is_judged() {
    let (code, table) = said(&format!("{TRIP}{NVFP4}"), &[]);
    assert!(
        code == 4 && table.contains("NOT JUDGED: 0 checks pass, 0 fail; no gate binds 2 recipes"),
        "{table}"
    );
    let (code, table) = said(&format!("{TRIP}{NVFP4}{COSINE}"), &["--set", "gate=[]"]);
    assert!(code == 4 && table.contains("NOT JUDGED"), "{table}");
}

/// What is bad as it should be passes nothing; if it is good, the measurement sees nothing.
#[test]
fn a_control_is_not_called_a_pass() {
    let control = COSINE
        .replace(">= 0.98", "<= 0.9999")
        .replace("[\"*\"]", "[\"nvfp4\"]\ncontrol = true");
    let first = COSINE.replace("[\"*\"]", "[\"fp8\"]");
    let text = format!("{TRIP}{NVFP4}{first}{control}");
    let (code, table) = said(&text, &[]);
    assert_eq!(code, 0, "{table}");
    assert!(
        table.contains("PASS: 1 check passes, 0 fail; 1 control holds; 4 cells"),
        "{table}"
    );
    let row = |name: &str| table.lines().find(|line| line.starts_with(name)).unwrap().to_string();
    assert!(
        row("fp8").ends_with("PASS cosine") && row("nvfp4").ends_with("control holds"),
        "{table}"
    );

    let (code, table) = said(&text.replace("<= 0.9999", "<= 0.9"), &[]);
    assert_eq!(code, 100, "{table}");
    assert!(table.contains("FAIL nvfp4: control fails: min of cosine"), "{table}");
    assert!(
        table.contains("it cannot tell bad from good") && !table.contains("furthest off"),
        "{table}"
    );
}

#[test]
fn gates_of_another_file_judge_a_run() {
    let folder = tempfile::tempdir().unwrap();
    let (output, out) = sweep(folder.path(), &format!("{TRIP}{NVFP4}{COSINE}"), &[]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let rules = folder.path().join("rules.toml");
    let judged = |text: &str| {
        std::fs::write(&rules, text).unwrap();
        let output = run(&["gate", path(&out), "--rules", path(&rules)]);
        (code(&output), stdout(&output) + &stderr(&output))
    };
    assert_eq!(judged(&COSINE.replace(">= 0.98", ">= 0.5")).0, 0, "gates alone");
    assert_eq!(judged(&COSINE.replace(">= 0.98", ">= 0.9999")).0, 100);
    let refused = |text: &str, word: &str| {
        let (code, said) = judged(text);
        assert!(
            code == 2 && said.contains(word) && said.contains("rules.toml"),
            "{word}: {said}"
        );
    };
    refused("", "gate");
    refused("gate = []", "has no [[gate]]");
    refused(
        &format!("name = \"rules\"\n{COSINE}"),
        "neither an experiment (missing field `question`) nor a file with only [[gate]]",
    );
    refused(&format!("tolerance = 3\n{COSINE}"), "tolerance");
    refused(&COSINE.replace("require", "requires"), "requires");
    refused(&COSINE.replace("[\"*\"]", "[]"), "recipes = [] binds no recipe");
    for bound in [">= inf", ">= -inf", "<= 1e400"] {
        refused(&COSINE.replace(">= 0.98", bound), "is not finite");
    }
    for bound in [">= -1", ">= -1e300"] {
        refused(&COSINE.replace(">= 0.98", bound), "no measurement can break it");
    }
    refused(
        &COSINE.replace("[\"*\"]", "[\"reference\"]"),
        "'reference' matches no recipe",
    );

    // A sweep takes them too, and its folder keeps them.
    std::fs::write(&rules, COSINE.replace(">= 0.98", ">= 0.9999")).unwrap();
    let again = folder.path().join("again");
    let file = write(folder.path(), &format!("{TRIP}{NVFP4}{COSINE}"));
    let strict = run(&["sweep", path(&file), "--out", path(&again), "--rules", path(&rules)]);
    assert_eq!(code(&strict), 100, "{}", stderr(&strict));
    assert_eq!(code(&run(&["gate", path(&again)])), 100);
}

#[test]
fn verdicts_in_json_say_where_they_are_from() {
    let folder = tempfile::tempdir().unwrap();
    let (output, out) = sweep(folder.path(), &format!("{TRIP}{NVFP4}{COSINE}"), &["--json"]);
    let lines = stdout(&output);
    let verdict: serde_json::Value = serde_json::from_str(lines.lines().next().unwrap()).unwrap();
    assert_eq!(
        (&verdict["status"], &verdict["site"]),
        (&"pass".into(), &"gauss".into())
    );
    assert_eq!(verdict["windows"], 2);
    let window = verdict["window"].as_str().unwrap();
    let least = records(&out)
        .iter()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
        .find(|record| record["recipe"] == "fp8" && record["metrics"]["cosine"] == verdict["value"])
        .expect("a record of that value");
    assert_eq!(least["window"], window);
}

#[test]
fn a_gate_beyond_the_last_token_says_what_it_needs() {
    let output = run(&[
        "sweep",
        "experiments/swap_ffn.toml",
        "--dry-run",
        "--set",
        "shape=[1,16]",
    ]);
    let error = stderr(&output);
    assert_eq!(code(&output), 2, "{error}");
    for word in [
        "'residual.lanes.64' needs 64 tokens",
        "shape = [1, 16] has 16",
        "--rules FILE",
    ] {
        assert!(error.contains(word), "'{word}' is not in: {error}");
    }
}

#[test]
fn what_is_done_with_kernels_is_refused_elsewhere() {
    for before in [
        &["check"][..],
        &["check", "--device", "compile"],
        &["time"],
        &["mutants"],
        &["mutants", "rope.halves"],
        &["attest", "x"],
    ] {
        let output = run(&[&["kernels"], before, &["experiments/smoke.toml", "--dry-run"]].concat());
        assert_eq!(code(&output), 2, "{before:?}");
        let error = stderr(&output);
        assert!(
            error.contains("this is not an experiment of kernels"),
            "{before:?}: {error}"
        );
    }
}

/// Compiled is not run, and not run is neither passed nor failed; not even where a kernel changed.
#[test]
fn kernels_that_cannot_run_are_not_judged() {
    if ulplab::backend::cuda::Device::open().is_ok() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let kernels = folder.path().join("kernels");
    std::fs::create_dir(&kernels).unwrap();
    copy_folder(&root().join("kernels"), &kernels);
    for entry in std::fs::read_dir(&kernels).unwrap() {
        let file = entry.unwrap().path();
        if file.extension().is_some_and(|extension| extension == "cu") && !file.ends_with("scale_layout.cu") {
            std::fs::remove_file(&file).unwrap();
        }
    }
    let check = |run: &str| {
        ulplab(&["kernels", "check", "--out", path(&folder.path().join(run))])
            .env("ULPLAB_KERNELS", &kernels)
            .output()
            .unwrap()
    };
    let output = check("run");
    let said = stdout(&output) + &stderr(&output);
    if ulplab::backend::cuda::Toolkit::open().is_err() {
        assert!(code(&output) == 96 && said.contains("NVRTC"), "{said}");
        return;
    }
    assert_eq!(code(&output), 4, "{said}");
    let last = stdout(&output);
    assert!(
        last.lines()
            .last()
            .unwrap()
            .starts_with("NOT RUN: kernels were compiled, and none of "),
        "{said}"
    );
    // A mistake of a header was found without a GPU.
    let file = kernels.join("scale_layout.cu");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replacen("args = [\"x\", ", "args = [\"z\", ", 1)).unwrap();
    let output = check("mistaken");
    let said = stdout(&output) + &stderr(&output);
    assert!(code(&output) == 2 && said.contains("FAIL "), "{said}");
}

#[test]
fn gate_and_report_take_the_newest_run() {
    let folder = tempfile::tempdir().unwrap();
    let here = |args: &[&str]| ulplab(args).current_dir(folder.path()).output().expect("ulplab starts");
    for command in ["gate", "report"] {
        let output = here(&[command]);
        assert_eq!(code(&output), 2);
        assert!(
            stderr(&output).contains("runs: contains no run; name the folder of a run"),
            "{}",
            stderr(&output)
        );
    }
    let text = format!("{TRIP}{NVFP4}{COSINE}");
    // Alphabetically the last is first in time.
    for name in ["zebra", "ant"] {
        let file = write(folder.path(), &text.replace("\"trip\"", &format!("\"{name}\"")));
        let output = here(&["sweep", path(&file)]);
        assert_eq!(code(&output), 0, "{}", stderr(&output));
    }
    for command in ["gate", "report"] {
        let output = here(&[command]);
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        let said = stderr(&output);
        assert!(
            said.starts_with("runs/ant/") && said.ends_with(": the newest run\n"),
            "{said}"
        );
        assert!(stdout(&output).contains("runs/ant/"), "{}", stdout(&output));
    }
    let file = folder.path().join("runs/zebra/run.json");
    std::fs::write(&file, "{}").unwrap();
    let output = here(&["gate"]);
    assert_eq!(code(&output), 2);
    assert!(
        stderr(&output).contains("runs/zebra/run.json: missing field `started_at`"),
        "{}",
        stderr(&output)
    );
}
