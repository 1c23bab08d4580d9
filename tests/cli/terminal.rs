//! What leaves the program: to a terminal, to a pipe that is closed, from a panic.

use std::io::Write;
use std::process::Stdio;

use ulplab::output::{CleanWriter, width_of};

use super::*;

/// Runs with an output that nobody reads.
fn unread(args: &[&str]) -> Output {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let child = ulplab(args).stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn a_reader_that_goes_away_ends_nothing() {
    for (args, expected) in [
        (&["list", "formats"][..], 0),
        (&["sweep", "experiments/smoke.toml", "--dry-run"], 0),
        (&["compare", "no-such.npy", "nor-this.npy"], 2),
    ] {
        let output = unread(args);
        assert_eq!(code(&output), expected, "{args:?}: {}", stderr(&output));
        assert!(
            !stderr(&output).contains("panicked") && !stderr(&output).contains("stdout"),
            "{}",
            stderr(&output)
        );
    }
    let doctor = unread(&["doctor"]);
    assert_eq!(code(&doctor), code(&run(&["doctor"])), "{}", stderr(&doctor));
    assert!(!stderr(&doctor).contains("panicked"));
}

#[test]
fn a_sweep_that_nobody_reads_has_its_files_and_its_verdict() {
    let folder = tempfile::tempdir().unwrap();
    let file = experiment(folder.path(), FP8, PASSING);
    let out = folder.path().join("run");
    let output = unread(&["sweep", path(&file), "--set", "tokens=16", "--out", path(&out)]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(out.join("report.html").is_file());
    assert_eq!(code(&unread(&["report", path(&out)])), 0);
}

/// A disk that is full is no reader that went away.
#[test]
fn what_cannot_be_printed_is_an_error() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = ulplab(&["list", "formats"])
        .stdout(full)
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    assert_eq!(code(&output), 96, "{}", stderr(&output));
    assert!(stderr(&output).contains("stdout: cannot write"), "{}", stderr(&output));
}

#[test]
fn control_characters_do_not_reach_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let evil = "a\\u001b[2J\\u009b31m\\u0007\\rb";
    let file = experiment(
        folder.path(),
        &FP8.replace("name = \"v4_fp8\"", &format!("name = \"{evil}\"")),
        "",
    );
    let output = run(&["sweep", path(&file), "--dry-run"]);
    let error = stderr(&output);
    assert_eq!(code(&output), 2, "{error}");
    assert!(
        error.contains("\u{fffd}[2J") && error.contains("is not a name"),
        "{error:?}"
    );
    let control = |c: char| c.is_control() && c != '\n';
    assert!(!error.contains(control), "{error:?}");

    let printed = |text: &str, colour| {
        let mut bytes = Vec::new();
        write!(CleanWriter::new(&mut bytes, colour), "{text}").unwrap();
        String::from_utf8(bytes).unwrap()
    };
    assert_eq!(
        printed("tab\there\nline\r\u{1b}[31m\u{7f}\u{85}ü", false),
        "tab\there\nline\u{fffd}\u{fffd}[31m\u{fffd}\u{fffd}ü"
    );
    assert_eq!(
        printed("\x1b[32mPASS\x1b[0m \x1b[2J", true),
        "\x1b[32mPASS\x1b[0m \u{fffd}[2J"
    );
}

#[test]
fn a_terminal_without_columns_has_some() {
    assert_eq!(width_of(Some(80), None), 80);
    assert_eq!(width_of(Some(0), None), 120);
    assert_eq!(width_of(Some(0), Some("100")), 100);
    assert_eq!(width_of(None, Some("0")), 120);
    assert_eq!(width_of(None, Some("wide")), 120);
}

#[test]
fn a_panic_is_a_bug_and_ends_in_one() {
    let before = std::panic::take_hook();
    let here = ulplab::cli::guarded(|| panic!("by the test, on purpose"));
    let there = ulplab::cli::guarded(|| {
        rayon::scope(|scope| scope.spawn(|_| panic!("by the test, on purpose, in a thread")));
        Ok(ulplab::Exit::Pass)
    });
    let fine = ulplab::cli::guarded(|| Ok(ulplab::Exit::GateFailed));
    std::panic::set_hook(before);
    assert_eq!(
        [here, there, fine],
        [ulplab::Exit::Bug, ulplab::Exit::Bug, ulplab::Exit::GateFailed]
    );
}

#[test]
fn threads_have_a_sane_number() {
    for number in ["100000", "0", "-1"] {
        let output = run(&["list", "formats", &format!("--threads={number}")]);
        assert_eq!(code(&output), 2, "{number}");
        assert!(
            stderr(&output).contains("1..=1024") || number == "-1",
            "{}",
            stderr(&output)
        );
    }
}
