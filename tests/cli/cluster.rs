//! Runs that several tasks share: what schedulers tell them, merging, how far they are, Slurm's scripts, and the templates.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use ulplab::Exit;
use yaml_rust2::{Yaml, YamlLoader};

use super::*;

/// Twelve cells of milliseconds, and a gate that holds.
fn shared() -> String {
    format!("{}{NVFP4}{COSINE}", TRIP.replace("draws = 2", "draws = 6"))
}

#[track_caller]
fn swept_to(file: &Path, out: &Path, more: &[&str]) {
    let output = run(&[&["sweep", path(file), "--out", path(out)], more].concat());
    assert_eq!(code(&output), 0, "{}", stderr(&output));
}

/// Merged records are those of one process, byte for byte.
#[track_caller]
fn same_records(one: &Path, other: &Path) {
    for name in ["records.parquet", "summary.parquet"] {
        assert!(
            fs::read(one.join(name)).unwrap() == fs::read(other.join(name)).unwrap(),
            "{name} differs"
        );
    }
    assert!(records(one) == records(other), "records.jsonl differs");
}

#[test]
fn a_share_is_taken_from_the_scheduler_and_said() {
    let folder = tempfile::tempdir().unwrap();
    let file = write(folder.path(), &shared());
    let planned = |partition: &str, environment: &[(&str, &str)]| {
        let mut command = ulplab(&["sweep", path(&file), "--dry-run", "--partition", partition]);
        for (name, value) in environment {
            command.env(name, value);
        }
        command.output().unwrap()
    };
    let slurm = [
        ("SLURM_ARRAY_TASK_ID", "5"),
        ("SLURM_ARRAY_TASK_COUNT", "3"),
        ("SLURM_ARRAY_TASK_MIN", "1"),
        ("SLURM_ARRAY_TASK_MAX", "5"),
        ("SLURM_ARRAY_TASK_STEP", "2"),
    ];
    let third = planned("slice", &slurm);
    says(
        &stderr(&third),
        "--partition slice:3/3, from SLURM_ARRAY_TASK_ID=5, SLURM_ARRAY_TASK_COUNT=3, array 1-5:2",
    );
    says(
        &stderr(&third),
        "slice:3/3: 4 of 12 cells, 33.3 % of the estimated cost",
    );
    let given = planned("slice:3/3", &[("CI_NODE_INDEX", "1"), ("CI_NODE_TOTAL", "3")]);
    assert_eq!(
        stdout(&given),
        stdout(&third),
        "what is given comes before the environment"
    );
    let none = planned("slice", &[]);
    assert_eq!(code(&none), 2);
    says(&stderr(&none), "give it: --partition slice:M/N");
    let wrong = planned("slice:4/3", &[]);
    assert_eq!(code(&wrong), 2);
    says(
        &stderr(&wrong),
        "'slice:4/3' is not a partition: expected slice:M/N or hash:M/N with 1 <= M <= N",
    );
}

#[test]
fn folders_that_are_not_shared_are_merged() {
    let folder = tempfile::tempdir().unwrap();
    let file = write(folder.path(), &shared());
    let at = |name: &str| folder.path().join(name);
    swept_to(&file, &at("alone"), &[]);
    for m in ["1", "2", "3"] {
        swept_to(&file, &at(m), &["--partition", &format!("hash:{m}/3")]);
    }
    let [one, two, three, out] = ["1", "2", "3", "out"].map(at);
    let some = run(&["merge", path(&one), path(&three), "--out", path(&out)]);
    assert_eq!(code(&some), 103, "{}", stderr(&some));
    let missing: Vec<String> = stdout(&some).lines().map(String::from).collect();
    let of_two = fs::read_dir(two.join("cells")).unwrap().count();
    assert_eq!(missing.len(), of_two, "{missing:?}");
    assert!(of_two > 0 && missing[0].contains("/local/draw-"), "{missing:?}");
    // One came twice, and one copy was damaged on the way.
    let cell = fs::read_dir(one.join("cells")).unwrap().next().unwrap().unwrap();
    fs::copy(cell.path(), two.join("cells").join(cell.file_name())).unwrap();
    fs::write(cell.path(), "{").unwrap();
    fs::remove_dir_all(&out).unwrap();
    let all = [path(&one), path(&two), path(&three)];
    let merged = run(&[&["merge"], &all[..], &["--out", path(&out)]].concat());
    assert_eq!(code(&merged), 0, "{}", stderr(&merged));
    says(&stderr(&merged), "the cell is taken from");
    says(&stdout(&merged), "PASS: 2 checks pass");
    same_records(&at("alone"), &out);
    let unnamed = run(&["merge", all[0], all[1]]);
    assert_eq!(code(&unnamed), 2);
    says(&stderr(&unnamed), "--out DIR");
}

#[test]
fn what_is_no_part_of_a_run_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let file = write(folder.path(), &shared());
    let at = |name: &str| folder.path().join(name);
    let [own, other, out] = ["own", "other", "out"].map(at);
    swept_to(&file, &own, &["--partition", "slice:1/2"]);
    swept_to(&file, &other, &["--partition", "slice:2/2", "--seed", "9"]);
    let merge = |words: &str| {
        let output = run(&["merge", path(&own), path(&other), "--out", path(&out)]);
        assert_eq!(code(&output), 2, "{}", stderr(&output));
        says(&stderr(&output), words);
    };
    merge("other: its cells are not part of the run in");
    merge("another seed (0, here 9)");
    // The same run, but a cell that another machine computed otherwise, under a right digest.
    fs::remove_dir_all(&other).unwrap();
    swept_to(&file, &other, &["--partition", "slice:1/2"]);
    let cell = fs::read_dir(other.join("cells"))
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    let text = fs::read_to_string(&cell).unwrap();
    let changed = text.replacen("\"sqnr\":", "\"sqnr\":1", 1);
    assert_ne!(text, changed);
    let end = changed.rfind("\"blake3\":\"").unwrap() + "\"blake3\":\"".len();
    let digest = blake3::hash(&changed.as_bytes()[..end]).to_hex();
    fs::write(&cell, format!("{}{digest}\"}}\n", &changed[..end])).unwrap();
    merge("has other numbers than in");
    fs::write(other.join("cells/e4m3__local__draw-77.jsonl"), "").unwrap();
    merge("draw-77.jsonl: no cell that the run in this folder plans");
}

#[test]
fn status_tells_what_is_left_and_who_failed() {
    let folder = tempfile::tempdir().unwrap();
    let file = write(folder.path(), &shared());
    let out = folder.path().join("run");
    swept_to(&file, &out, &["--partition", "slice:1/3"]);
    // A task that was killed last year, and one that began a moment ago.
    let dead = r#"{"started_at": "2025-01-31T12:00:00Z", "seconds": 45.0, "partition": "slice:2/3", "threads": 1, "cells": 2, "cost": 2,
        "host": "n2", "task": "Slurm job 17_2"}"#;
    fs::write(out.join("sessions/dead.json"), dead).unwrap();
    let now = ulplab::run::now();
    let alive =
        format!(r#"{{"started_at": "{now}", "seconds": 0.0, "partition": "slice:3/3", "threads": 1, "cells": 0}}"#);
    fs::write(out.join("sessions/alive.json"), alive).unwrap();
    let text = stdout(&run(&["status", path(&out)]));
    says(&text, "trip: 4 of 12 cells are done, 33.3 % of the estimated cost");
    says(&text, "tasks: 1 at work, 1 done, 0 failed, 1 died");
    says(&text, "those at work have 4 cells to do");
    says(&text, "4 cells are missing, and no task at work has them in its share");
    says(
        &text,
        "last to fail: slice:2/3 on n2 (Slurm job 17_2), last heard of at 2025-01-31T12:00:45Z after 2 cells",
    );
    let status = first(&run(&["status", path(&out), "--json"]));
    assert_eq!(
        (status["done"].as_u64(), status["missing"].as_u64()),
        (Some(4), Some(4))
    );
    swept_to(&file, &out, &["--resume"]);
    let text = stdout(&run(&["status", path(&out)]));
    says(&text, "12 of 12 cells are done");
    says(&text, "its share has been done since");
}

/// Starts each job as Slurm does, one after the other, and ends as `sbatch --wait` does.
const SBATCH: &str = r#"#!/bin/bash
for script; do true; done
echo "$@" >>"$0.log"
log=$(sed -n 's/^#SBATCH --output=//p' "$script")
if grep -q -- --array "$script"; then
    n=$(sed -n 's/^#SBATCH --array=1-\([0-9]*\).*/\1/p' "$script")
    for i in $(seq "$n"); do
        SLURM_ARRAY_JOB_ID=17 SLURM_ARRAY_TASK_ID=$i sh "$script" >"${log/\%a/$i}" 2>&1
    done
    echo '17;cluster'
else
    echo 18
    sh "$script" >"$log" 2>&1
fi
"#;

#[test]
fn an_array_of_slurm_is_submitted_merged_and_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let file = write(folder.path(), &shared());
    let failing = folder.path().join("failing.toml");
    fs::write(&failing, COSINE.replace("0.98", "0.9999999")).unwrap();
    let sbatch = folder.path().join("sbatch");
    fs::write(&sbatch, SBATCH).unwrap();
    fs::set_permissions(&sbatch, fs::Permissions::from_mode(0o755)).unwrap();
    let paths = format!("{}:{}", path(folder.path()), std::env::var("PATH").unwrap());
    let at = |name: &str| folder.path().join(name);
    swept_to(&file, &at("alone"), &[]);
    for (name, more, verdict) in [("array", &[][..], 0), ("failing", &["--rules", path(&failing)], 100)] {
        let out = at(name);
        let submit = [
            "submit",
            path(&file),
            "--slurm",
            "--tasks",
            "3",
            "--out",
            path(&out),
            "--wait",
        ];
        let output = ulplab(&[&submit, more].concat()).env("PATH", &paths).output().unwrap();
        assert_eq!(code(&output), verdict, "{}\n{}", stdout(&output), stderr(&output));
        says(&stdout(&output), "array: job 17");
        says(
            &stdout(&output),
            if verdict == 0 {
                "PASS: 2 checks pass"
            } else {
                "FAIL: 0 checks pass, 2 fail"
            },
        );
    }
    same_records(&at("alone"), &at("array"));
    says(
        &fs::read_to_string(at("sbatch.log")).unwrap(),
        "--parsable --dependency=afterany:17 --wait",
    );
    assert_eq!(
        fs::read_dir(at("array").join("jobs")).unwrap().count(),
        2 + 3 + 1,
        "two scripts and four logs"
    );
}

#[test]
fn scripts_of_slurm_are_shown_and_mistakes_are_told_before_anything_is_submitted() {
    let folder = tempfile::tempdir().unwrap();
    let file = write(folder.path(), &shared());
    let out = folder.path().join("with space");
    let submit = |experiment: &str, more: &[&str]| {
        let words = [&["submit", experiment, "--slurm", "--out", path(&out)], more].concat();
        ulplab(&words).env("PATH", "/nowhere").output().unwrap()
    };
    let options = [
        "--tasks",
        "40",
        "--parallel",
        "2",
        "--cpus",
        "4",
        "--time",
        "00:30:00",
        "--account",
        "lab",
    ];
    let more = [
        "--partition-name",
        "long",
        "--sbatch=--mem=8G",
        "--seed",
        "3",
        "--max-memory",
        "1G",
        "--print",
    ];
    let printed = submit(path(&file), &[&options[..], &more].concat());
    assert_eq!(code(&printed), 0, "{}", stderr(&printed));
    let text = stdout(&printed);
    // No more tasks than cells.
    for line in [
        "#SBATCH --array=1-12%2",
        "#SBATCH --cpus-per-task=4",
        "#SBATCH --time=00:30:00",
        "#SBATCH --account=lab",
        "#SBATCH --partition=long",
        "#SBATCH --mem=8G",
        "#SBATCH --signal=B:TERM@60",
        "/with space/jobs/%a.log\"",
        "--seed 3 --max-memory 1073741824 --out '",
        "--partition \"slice:$SLURM_ARRAY_TASK_ID/12\" --threads 4",
        " merge '",
    ] {
        says(&text, line);
    }
    assert!(!text.contains("--gres"), "numbers on the CPU need no GPU: {text}");
    says(
        &stdout(&submit("experiments/kernels.toml", &["--print"])),
        "#SBATCH --gres=gpu:1",
    );
    assert!(!stdout(&submit("experiments/kernels.toml", &["--print", "--gres", "none"])).contains("--gres"));
    assert!(!out.exists(), "--print leaves nothing behind");
    for (more, exit, words) in [
        (&[][..], 96, "sbatch cannot be started"),
        (
            &["--partition", "slice:1/2"],
            2,
            "--tasks N makes N slices, and --partition-name is Slurm's partition",
        ),
        (&["--set", "tokens=2"], 2, "tokens"),
        (&["--account", "a\nb"], 2, "a script for sbatch cannot hold this option"),
    ] {
        let output = submit(path(&file), more);
        assert_eq!(code(&output), exit, "{more:?}: {}", stderr(&output));
        says(&stderr(&output), words);
    }
}

/// The page of a run with many recipes shows those that fail, and says what it leaves out.
#[test]
fn the_page_of_a_wide_run_is_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let recipe = |at: usize| NVFP4.replace("\"nvfp4\"\ndoc", &format!("\"r{at}\"\ndoc"));
    let head = TRIP.replace("[4, 128]", "[1, 16]").replace("draws = 2", "draws = 1");
    let many: String = (0..520).map(recipe).collect();
    // Only the one of the file itself, E4M3, is bound, by a gate that it fails.
    let gate = COSINE.replace("0.98", "0.99999999").replace("[\"*\"]", "[\"fp8\"]");
    let (file, out) = (
        write(folder.path(), &format!("{head}{many}{gate}")),
        folder.path().join("run"),
    );
    let output = run(&["sweep", path(&file), "--out", path(&out)]);
    assert_eq!(code(&output), 100, "{}", stderr(&output));
    let page = fs::read_to_string(out.join("report.html")).unwrap();
    says(&page, "This page shows 500 of 521 recipes");
    says(&page, "<th scope=\"row\">fp8</th>");
    assert!(page.len() < 5_000_000, "{} bytes", page.len());
}

fn template(file: &str) -> Vec<Yaml> {
    let text = fs::read_to_string(root().join(file)).unwrap();
    YamlLoader::load_from_str(&text).unwrap_or_else(|error| panic!("{file}: {error}"))
}

#[track_caller]
fn parses(words: &[&str]) {
    if let Err(error) = ulplab::cli::command().try_get_matches_from(words) {
        panic!("{words:?}: {error}");
    }
}

/// The job for the shares and the one that merges them agree with each other and with the program.
#[test]
fn the_template_of_kubernetes_agrees_with_the_program() {
    let jobs = template("examples/kubernetes.yaml");
    let [sweep, merge] = &jobs[..] else {
        panic!("{} documents", jobs.len())
    };
    let command = |job: &Yaml| -> Vec<String> {
        let container = &job["spec"]["template"]["spec"]["containers"][0];
        let words = container["command"].as_vec().unwrap().iter();
        words.map(|word| word.as_str().unwrap().to_string()).collect()
    };
    let (swept, merged) = (command(sweep), command(merge));
    for words in [&swept, &merged] {
        parses(&words.iter().map(String::as_str).collect::<Vec<_>>());
    }
    let out = swept.iter().position(|word| word == "--out").unwrap();
    assert_eq!(
        merged.last(),
        swept.get(out + 1),
        "what is merged is not what was swept"
    );
    assert!(
        swept.windows(2).any(|pair| pair == ["--partition", "slice"]),
        "{swept:?}"
    );
    let spec = &sweep["spec"];
    assert_eq!(spec["completionMode"].as_str(), Some("Indexed"));
    let container = &spec["template"]["spec"]["containers"][0];
    let count = container["env"]
        .as_vec()
        .unwrap()
        .iter()
        .find(|env| env["name"].as_str() == Some("JOB_COMPLETIONS"));
    let count: i64 = count.unwrap()["value"].as_str().unwrap().parse().unwrap();
    assert_eq!(spec["completions"].as_i64(), Some(count));
    let rules = spec["podFailurePolicy"]["rules"].as_vec().unwrap();
    let fails = rules
        .iter()
        .find(|rule| rule["action"].as_str() == Some("FailIndex"))
        .unwrap();
    assert_eq!(fails["onExitCodes"]["containerName"], container["name"]);
    let codes = fails["onExitCodes"]["values"].as_vec().unwrap();
    for exit in [Exit::GateFailed, Exit::Usage, Exit::ReferenceFailed] {
        assert!(codes.contains(&Yaml::Integer(exit as i64)), "{exit:?} is retried");
    }
    // What another try may mend is tried again.
    for exit in [Exit::Pass, Exit::Setup, Exit::Interrupted, Exit::Bug] {
        assert!(!codes.contains(&Yaml::Integer(exit as i64)), "{exit:?} is not retried");
    }
    assert_eq!(
        merge["spec"]["suspend"].as_bool(),
        Some(true),
        "it would merge before there is anything"
    );
}

/// The matrix has all slices that its commands speak of, and what is uploaded is what is downloaded and merged.
#[test]
fn the_workflow_of_github_agrees_with_the_program() {
    let workflow = &template("examples/github-actions.yml")[0];
    let jobs = &workflow["jobs"];
    let steps = |job: &str| {
        jobs[job]["steps"]
            .as_vec()
            .unwrap_or_else(|| panic!("no job {job}"))
            .clone()
    };
    let commands = |job: &str| -> Vec<String> {
        let runs = steps(job)
            .into_iter()
            .filter_map(|step| step["run"].as_str().map(String::from));
        runs.filter(|run| run.starts_with("ulplab ")).collect()
    };
    for (job, verb) in [("sweep", "sweep"), ("slice", "sweep"), ("merge", "merge")] {
        let commands = commands(job);
        assert_eq!(commands.len(), 1, "{job}: {commands:?}");
        let typed = commands[0]
            .replace("$EXPERIMENT", "experiments/smoke.toml")
            .replace("${{ matrix.slice }}", "1");
        let words: Vec<&str> = typed.split_whitespace().collect();
        assert_eq!(words[1], verb);
        parses(&words);
    }
    let slices = jobs["slice"]["strategy"]["matrix"]["slice"].as_vec().unwrap();
    let numbers: Vec<i64> = slices.iter().filter_map(Yaml::as_i64).collect();
    let all: Vec<i64> = (1..=slices.len() as i64).collect();
    assert_eq!(numbers, all);
    says(
        &commands("slice")[0],
        &format!("slice:${{{{ matrix.slice }}}}/{}", slices.len()),
    );
    assert_eq!(
        jobs["slice"]["strategy"]["fail-fast"].as_bool(),
        Some(false),
        "one slice would end the others"
    );
    assert_eq!(
        (jobs["merge"]["needs"].as_str(), jobs["merge"]["if"].as_str()),
        (Some("slice"), Some("always()"))
    );
    let with = |job: &str, action: &str| {
        let found = steps(job)
            .into_iter()
            .find(|step| step["uses"].as_str().is_some_and(|uses| uses.starts_with(action)));
        found.unwrap_or_else(|| panic!("{job}: no {action}"))["with"].clone()
    };
    let name = with("slice", "actions/upload-artifact")["name"]
        .as_str()
        .unwrap()
        .to_string();
    let download = with("merge", "actions/download-artifact");
    let pattern = download["pattern"].as_str().unwrap().trim_end_matches('*').to_string();
    assert!(name.starts_with(&pattern), "{name} is not downloaded by {pattern}*");
    says(
        &commands("merge")[0],
        &format!("merge {}/*", download["path"].as_str().unwrap()),
    );
    let kept = with("merge", "actions/upload-artifact")["path"]
        .as_str()
        .unwrap()
        .to_string();
    for report in ["report.html", "junit.xml"] {
        says(&kept, report);
    }
}
