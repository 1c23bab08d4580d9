//! SIGINT and SIGKILL in the middle of a run: nothing finished is lost, nothing is run twice, nothing reads as complete.

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant, SystemTime};

use super::*;

/// Starts a sweep of nine cells and waits for the first of them to finish.
fn start(file: &Path, out: &Path) -> Child {
    let mut child = ulplab(&["sweep", path(file), "--out", path(out), "--threads", "1"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let started = Instant::now();
    while finished(out).is_empty() {
        assert!(
            child.try_wait().unwrap().is_none(),
            "the sweep ended before its first cell"
        );
        assert!(
            started.elapsed() < Duration::from_secs(120),
            "no cell finished in two minutes"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    child
}

/// The finished cells with the time each was written.
fn finished(out: &Path) -> BTreeMap<PathBuf, SystemTime> {
    let Ok(entries) = std::fs::read_dir(out.join("cells")) else {
        return BTreeMap::new();
    };
    entries
        .map(|entry| entry.unwrap().path())
        .filter(|file| file.extension().is_some_and(|extension| extension == "jsonl"))
        .map(|file| (file.clone(), file.metadata().unwrap().modified().unwrap()))
        .collect()
}

/// Four recipes in two phases, and the check of the reference. Each cell takes far longer than it takes to see that one is finished and
/// to send a signal.
fn many(folder: &Path) -> PathBuf {
    let named = |at| FP8.replace("name = \"v4_fp8\"", &format!("name = \"fp8_{at}\""));
    let recipes: String = (0..4).map(named).collect();
    on_tokens(72, folder, &recipes, &PASSING.replace("[\"v4_fp8\"]", "[\"fp8_*\"]"))
}

fn signal(child: &Child, name: &str) {
    let status = Command::new("kill")
        .args([name, &child.id().to_string()])
        .status()
        .unwrap();
    assert!(status.success());
}

fn goes_on(file: &Path, out: &Path) {
    let gate = run(&["gate", path(out)]);
    assert_eq!(
        code(&gate),
        103,
        "an interrupted run is not complete: {}",
        stderr(&gate)
    );
    let before = finished(out);
    let resumed = run(&["sweep", path(file), "--out", path(out), "--resume"]);
    assert_eq!(code(&resumed), 0, "{}", stderr(&resumed));
    let after = finished(out);
    assert_eq!(after.len(), 9);
    assert!(
        before.iter().all(|(cell, time)| after[cell] == *time),
        "a finished cell was run again"
    );
}

#[test]
fn sigint_keeps_what_is_finished() {
    let folder = tempfile::tempdir().unwrap();
    let file = many(folder.path());
    let out = folder.path().join("run");
    let child = start(&file, &out);
    signal(&child, "-INT");
    let output = child.wait_with_output().unwrap();
    assert_eq!(code(&output), 130, "{}", stderr(&output));
    assert!(stderr(&output).contains("--resume"), "{}", stderr(&output));
    assert!(finished(&out).len() < 9, "the signal came too late to test anything");
    goes_on(&file, &out);
}

#[test]
fn sigkill_keeps_what_is_finished() {
    let folder = tempfile::tempdir().unwrap();
    let file = many(folder.path());
    let out = folder.path().join("run");
    let mut child = start(&file, &out);
    signal(&child, "-KILL");
    assert_eq!(child.wait().unwrap().signal(), Some(9));
    assert!(finished(&out).len() < 9, "the signal came too late to test anything");
    goes_on(&file, &out);
}

#[test]
fn another_experiment_cannot_go_on_in_the_same_folder() {
    let folder = tempfile::tempdir().unwrap();
    let file = on_tokens(16, folder.path(), FP8, PASSING);
    let out = folder.path().join("run");
    assert_eq!(code(&run(&["sweep", path(&file), "--out", path(&out)])), 0);
    let again = run(&["sweep", path(&file), "--out", path(&out)]);
    assert_eq!(code(&again), 2);
    assert!(stderr(&again).contains("not empty"), "{}", stderr(&again));
    let other = run(&["sweep", path(&file), "--out", path(&out), "--resume", "--seed", "9"]);
    assert_eq!(code(&other), 2);
    let refusal = "holds a run of another seed (0, here 9); it cannot be continued";
    assert!(stderr(&other).contains(refusal), "{}", stderr(&other));
}

/// The signal comes while nothing is decided yet: `git` is asked for the commit before the first cell, and here it hangs.
#[test]
fn sigterm_before_the_first_cell_is_an_interruption() {
    use std::os::unix::fs::PermissionsExt;

    let folder = tempfile::tempdir().unwrap();
    let file = experiment(folder.path(), FP8, "");
    let (asked, git) = (folder.path().join("asked"), folder.path().join("git"));
    std::fs::write(&git, format!("#!/bin/sh\n: > '{}'\nexec sleep 20\n", path(&asked))).unwrap();
    std::fs::set_permissions(&git, std::fs::Permissions::from_mode(0o755)).unwrap();
    let paths = std::env::var("PATH").unwrap();
    let mut child = ulplab(&["sweep", path(&file), "--out", path(&folder.path().join("run"))])
        .env("PATH", format!("{}:{paths}", path(folder.path())))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let started = Instant::now();
    while !asked.exists() {
        assert!(started.elapsed() < Duration::from_secs(60), "git is never asked");
        std::thread::sleep(Duration::from_millis(5));
    }
    signal(&child, "-TERM");
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(!folder.path().join("run").exists());
}

/// Also of this kind: `gate --calibrate`, `front` and `bisect` of long windows, prefill, kv_cache.
#[test]
fn a_signal_ends_a_long_cell_within_a_second() {
    let folder = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(experiment(folder.path(), FP8, PASSING)).unwrap();
    let file = write(folder.path(), &text.replace("tokens = 136", "tokens = 4000"));
    let gates = folder.path().join("calibration.json");
    for words in [
        &["sweep", path(&file), "--out", path(&folder.path().join("run"))][..],
        &[
            "mix",
            path(&file),
            "--at",
            "layers.**.weight",
            "--formats",
            "nvfp4,bf16",
        ],
        &["gate", "--calibrate", path(&file), "-o", path(&gates)],
    ] {
        // One thread is enough for a long cell.
        let mut child = ulplab(words)
            .args(["--threads", "1"])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_secs(3));
        let ended = child.try_wait().unwrap();
        assert!(ended.is_none(), "{words:?}: {ended:?} before the signal");
        signal(&child, "-INT");
        let signalled = Instant::now();
        let output = child.wait_with_output().unwrap();
        assert_eq!(code(&output), 130, "{words:?}: {}", stderr(&output));
        // One second, and what a busy machine adds.
        assert!(
            signalled.elapsed() < Duration::from_secs(3),
            "{words:?}: {:?}",
            signalled.elapsed()
        );
        if words[0] == "sweep" {
            assert!(
                stderr(&output).contains("press Ctrl-C again to end at once"),
                "{}",
                stderr(&output)
            );
        }
    }
}

/// Files in `folder` that begin with a dot.
fn hidden_files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries
        .filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with('.'))
        .collect()
}

#[test]
fn an_interrupted_quantize_leaves_nothing_and_tidies_what_a_killed_one_left() {
    let folder = tempfile::tempdir().unwrap();
    let (input, out) = (
        folder.path().join("in.safetensors"),
        folder.path().join("out.safetensors"),
    );
    let elements = 1 << 23;
    let header = format!(
        r#"{{"w":{{"dtype":"F32","shape":[1024,{}],"data_offsets":[0,{}]}}}}"#,
        elements / 1024,
        4 * elements
    );
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.bytes());
    bytes.resize(bytes.len() + 4 * elements, 0x3c);
    std::fs::write(&input, bytes).unwrap();
    let words = [
        "quantize",
        path(&input),
        "--format",
        "nvfp4_search",
        "--threads",
        "1",
        "-o",
        path(&out),
    ];
    for name in ["-INT", "-KILL"] {
        let mut child = ulplab(&words)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let started = Instant::now();
        while hidden_files(folder.path()).is_empty() {
            assert!(child.try_wait().unwrap().is_none(), "it ended before it wrote");
            assert!(started.elapsed() < Duration::from_secs(100), "it never writes");
            std::thread::sleep(Duration::from_millis(2));
        }
        signal(&child, name);
        child.wait().unwrap();
        let left = hidden_files(folder.path());
        match name {
            "-INT" => assert_eq!(left, Vec::<PathBuf>::new()),
            _ => assert!(!out.exists()),
        }
    }
    assert_eq!(code(&run(&words)), 0);
    assert_eq!(hidden_files(folder.path()), Vec::<PathBuf>::new());
}

/// As a process leaves it that was killed before its first cell was finished: for a minute nobody can tell whether it still works. Also of
/// this kind: it was killed before it wrote its session; it was the same experiment, without --resume.
#[test]
fn a_folder_of_a_killed_run_is_removed_or_used_again() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let file = write(folder.path(), &format!("{TRIP}{NVFP4}{COSINE}"));
    let sweep = |more: &[&str]| run(&[&["sweep", path(&file), "--out", path(&out)], more].concat());
    let killed = |sign: Option<&str>| {
        let _ = std::fs::remove_dir_all(&out);
        assert_eq!(code(&sweep(&[])), 0);
        for entry in std::fs::read_dir(&out).unwrap() {
            let entry = entry.unwrap().path();
            match entry.is_dir() {
                true => std::fs::read_dir(&entry)
                    .unwrap()
                    .for_each(|file| std::fs::remove_file(file.unwrap().path()).unwrap()),
                false if !entry.ends_with("run.json") => std::fs::remove_file(&entry).unwrap(),
                false => {}
            }
        }
        if let Some(sign) = sign {
            let session = format!(r#"{{"started_at": "{sign}", "seconds": 0.0, "threads": 1, "cells": 0}}"#);
            std::fs::write(out.join("sessions/killed.json"), session).unwrap();
        }
    };
    let now = jiff::Timestamp::now().to_string();
    let remove = format!("if no process works on it, `rm -r {}` removes it", path(&out));
    for (sign, more) in [
        (Some(&now[..]), &[][..]),
        (Some(&now), &["--seed", "9"]),
        (Some(&now), &["--seed", "9", "--resume"]),
        (None, &[]),
    ] {
        killed(sign);
        let output = sweep(more);
        assert_eq!(code(&output), 2, "{sign:?} {more:?}");
        assert!(stderr(&output).contains(&remove), "{}", stderr(&output));
    }
    let long_ago = "2026-01-01T00:00:00Z";
    for more in [&[][..], &["--seed", "9"], &["--resume"]] {
        killed(Some(long_ago));
        let output = sweep(more);
        assert_eq!(code(&output), 0, "{more:?}: {}", stderr(&output));
    }
}
