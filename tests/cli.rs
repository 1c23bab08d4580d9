//! The command line as a user drives it: exit codes, errors, files, interruption.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "what was measured is shown with --nocapture"
)]

#[path = "cli/array.rs"]
mod array;
#[path = "cli/attestations.rs"]
mod attestations;
#[path = "cli/audit.rs"]
mod audit;
#[path = "cli/baseline.rs"]
mod baseline;
#[path = "cli/bench.rs"]
mod bench;
#[path = "cli/bench_formats.rs"]
mod bench_formats;
#[path = "cli/bench_kernels.rs"]
mod bench_kernels;
#[path = "cli/bisect.rs"]
mod bisect;
#[path = "cli/bisect_ends.rs"]
mod bisect_ends;
#[path = "cli/bisect_search.rs"]
mod bisect_search;
#[path = "cli/bring.rs"]
mod bring;
#[path = "cli/calibrations.rs"]
mod calibrations;
#[path = "cli/capsule.rs"]
mod capsule;
#[path = "cli/checkpoint.rs"]
mod checkpoint;
#[path = "cli/cluster.rs"]
mod cluster;
#[path = "compare.rs"]
mod compare;
#[path = "cli/diff.rs"]
mod diff;
#[path = "cli/errors.rs"]
mod errors;
#[path = "cli/examples.rs"]
mod examples;
#[path = "cli/exit_codes.rs"]
mod exit_codes;
#[path = "cli/external.rs"]
mod external;
#[path = "cli/failures.rs"]
mod failures;
#[path = "cli/false_pass.rs"]
mod false_pass;
#[path = "cli/gates.rs"]
mod gates;
#[path = "cli/hostile.rs"]
mod hostile;
#[path = "cli/interruption.rs"]
mod interruption;
#[path = "cli/kernels.rs"]
mod kernels;
#[path = "cli/kernels_compare.rs"]
mod kernels_compare;
#[path = "cli/keys.rs"]
mod keys;
#[path = "cli/left.rs"]
mod left;
#[path = "cli/limits.rs"]
mod limits;
#[path = "cli/losses.rs"]
mod losses;
#[path = "cli/mix.rs"]
mod mix;
#[path = "cli/mix_search.rs"]
mod mix_search;
#[path = "cli/newcomer.rs"]
mod newcomer;
#[path = "cli/other_kinds.rs"]
mod other_kinds;
#[path = "cli/own_cases.rs"]
mod own_cases;
#[path = "cli/own_ops.rs"]
mod own_ops;
#[path = "cli/partitions.rs"]
mod partitions;
#[path = "cli/peers.rs"]
mod peers;
#[path = "cli/probe.rs"]
mod probe;
#[path = "cli/programs.rs"]
mod programs;
#[path = "cli/recurrence.rs"]
mod recurrence;
#[path = "cli/serving.rs"]
mod serving;
#[path = "cli/sources.rs"]
mod sources;
#[path = "cli/summary.rs"]
mod summary;
#[path = "cli/swap_ffn.rs"]
mod swap_ffn;
#[path = "cli/sweep.rs"]
mod sweep;
#[path = "cli/terminal.rs"]
mod terminal;
#[path = "cli/tokens.rs"]
mod tokens;
#[path = "tools.rs"]
mod tools;
#[path = "cli/trace.rs"]
mod trace;
#[path = "cli/unreadable.rs"]
mod unreadable;
#[path = "cli/verdicts.rs"]
mod verdicts;
#[path = "cli/watch.rs"]
mod watch;
#[path = "cli/workers.rs"]
mod workers;
#[path = "cli/written.rs"]
mod written;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use ulplab::tensorfile::TensorFile;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// `ulplab` in the project's root, so that it finds `datasets/`.
fn ulplab(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ulplab"));
    command.current_dir(root()).env_remove("ULPLAB_DATASETS").args(args);
    command
}

fn run(args: &[&str]) -> Output {
    ulplab(args).output().expect("ulplab starts")
}

/// The interpreter that `python3` starts, without a script of an environment in front of it.
fn python() -> &'static str {
    static PYTHON: std::sync::LazyLock<String> = std::sync::LazyLock::new(|| {
        let asked = Command::new("python3")
            .args(["-c", "import sys; print(sys.executable)"])
            .output();
        stdout(&asked.expect("there is a python3")).trim().into()
    });
    &PYTHON
}

fn code(output: &Output) -> i32 {
    output.status.code().expect("ulplab was not killed")
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// An experiment of seconds: `recipes` and `gates` are TOML.
fn experiment(folder: &Path, recipes: &str, gates: &str) -> PathBuf {
    let text = format!(
        r#"
name = "test"
question = "Does it work?"
model = "dsv4-mini"
tokens = 136
phases = ["local", "cumulative"]

[[window]]
text = "alice"
offset = 20000
{recipes}
{gates}
"#
    );
    write(folder, &text)
}

/// The same experiment on a window of other length: fewer tokens take less time.
fn on_tokens(count: usize, folder: &Path, recipes: &str, gates: &str) -> PathBuf {
    let text = std::fs::read_to_string(experiment(folder, recipes, gates)).expect("it was written");
    write(folder, &text.replace("tokens = 136", &format!("tokens = {count}")))
}

fn write(folder: &Path, text: &str) -> PathBuf {
    let file = folder.join("experiment.toml");
    std::fs::write(&file, text).expect("the test folder can be written");
    file
}

/// Everything a run measured, in its order, without the line that says when and how.
fn records(run: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(run.join("records.jsonl")).expect("a finished run has its records");
    text.lines().skip(1).map(String::from).collect()
}

/// The same as JSON, a measured place each.
fn measurements(run: &Path) -> Vec<serde_json::Value> {
    let lines = records(run);
    lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The first line of the output, as JSON.
fn first(output: &Output) -> serde_json::Value {
    let text = stdout(output);
    serde_json::from_str(text.lines().next().unwrap()).unwrap()
}

const FP8: &str = r#"
[[recipe]]
name = "v4_fp8"
doc = "DeepSeek-V4's record"
round = [{ at = "layers.*.attention.kv.*", format = "v4_fp8" }]
"#;

const PASSING: &str = r#"
[[gate]]
metric = "cosine"
at = "layers.*.attention.kv.window"
phase = "local"
statistic = "min"
require = ">= 0.999"
recipes = ["v4_fp8"]
why = "e4m3 keeps about 0.9997 of a vector"
"#;

/// Two formats on drawn numbers: a run of milliseconds.
const TRIP: &str = r#"
name = "trip"
question = "What is left?"
kind = "round_trip"
draws = 2
shape = [4, 128]

[[source]]
name = "gauss"
from = "gaussian"

[[recipe]]
name = "fp8"
doc = "E4M3"
format = "e4m3"
"#;

const NVFP4: &str = r#"
[[recipe]]
name = "nvfp4"
doc = "NVFP4"
format = "nvfp4"
"#;

const COSINE: &str = r#"
[[gate]]
metric = "cosine"
at = "gauss"
phase = "local"
statistic = "min"
require = ">= 0.98"
recipes = ["*"]
why = "most of it"
"#;

/// The gate of an experiment of kernels and programs: every output is right.
const NO_VIOLATIONS: &str = r#"
[[gate]]
metric = "violations"
at = "**"
phase = "local"
statistic = "max"
require = "<= 0"
recipes = ["**"]
why = "each output has a bound"
"#;

/// The tensors of a safetensors file, with its metadata.
fn tensors_in(file: &Path) -> TensorFile {
    TensorFile::from_bytes(file, std::fs::read(file).unwrap()).unwrap()
}

fn path(path: &Path) -> &str {
    path.to_str().expect("test paths are UTF-8")
}

/// A text contains these words.
#[track_caller]
fn says(text: &str, words: &str) {
    assert!(text.contains(words), "'{words}' is not in: {text}");
}

/// A change of an experiment is refused with these words, and leaves no run behind.
#[track_caller]
fn refuses(text: &str, change: [&str; 2], words: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let changed = text.replacen(change[0], change[1], 1);
    assert_ne!(changed, text, "'{}' is not in the file", change[0]);
    let out = folder.path().join("run");
    let output = run(&["sweep", path(&write(folder.path(), &changed)), "--out", path(&out)]);
    let error = stderr(&output);
    assert_eq!(code(&output), 2, "{change:?}: {error}");
    for word in words {
        assert!(error.contains(word), "{change:?}: '{word}' is not in: {error}");
    }
    assert!(!out.exists(), "a refused experiment leaves no run behind");
}

/// The records of an experiment that runs to its end, whatever its gates say.
#[track_caller]
fn swept(text: &str, more: &[&str]) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let output = run(&[&["sweep", path(&write(folder.path(), text)), "--out", path(&out)], more].concat());
    assert!([0, 100].contains(&code(&output)), "{}", stderr(&output));
    records(&out)
}

/// A page of findings, filled from a run.
#[track_caller]
fn filled(out: &Path, template: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let (from, page) = (folder.path().join("page.md"), folder.path().join("filled.md"));
    std::fs::write(&from, template).unwrap();
    let output = run(&["report", path(out), "--findings", path(&from), "-o", path(&page)]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    std::fs::read_to_string(page).unwrap()
}

/// Copies the files of a folder, and of those in it, to a folder that is there.
fn copy_folder(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let copy = to.join(path.file_name().unwrap());
        if path.is_dir() {
            std::fs::create_dir(&copy).unwrap();
            copy_folder(&path, &copy);
        } else {
            std::fs::copy(&path, copy).unwrap();
        }
    }
}
