//! What programs leave that is no file of outputs: it must neither hold up a run nor fill its memory, and is kept.

use std::process::Stdio;
use std::time::{Duration, Instant};

use super::*;

/// An identity in plain Python, that misbehaves as its first argument says: as candidate, which may serve, or reference.
const PROGRAM: &str = r#"
import json, os, struct, sys, time

how, serves = sys.argv[1], len(sys.argv) == 2

def leave(inputs, outputs):
    with open(inputs, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        data = file.read()
    (wanted, *bounds) = json.loads(header["__metadata__"]["outputs"])
    kind = {"F32": "f", "F64": "d"}[wanted["dtype"]]
    count = wanted["shape"][0] * wanted["shape"][1]
    begin, end = header["x"]["data_offsets"]
    values = list(struct.unpack(f"<{count}{kind}", data[begin:end]))
    if how == "fifo":
        os.mkfifo(outputs)
        return
    if how == "sparse":
        with open(outputs, "wb") as file:
            file.truncate(200 << 30)
        return
    if how == "folder":
        os.mkdir(outputs)
        return
    if how == "crash":
        sys.stderr.write("out of memory\n")
        sys.stderr.flush()
        os._exit(3)
    if how == "segv":
        os.kill(os.getpid(), 11)
    if how == "hang":
        time.sleep(600)
    if how == "nothing":
        return
    if how == "negative":
        # Not quite, so that it takes the bound to see it.
        values = [-x * (1 + 2e-7) for x in values]
    if how == "exchanged":
        cols = wanted["shape"][1]
        values = values[:cols] + values[2 * cols : 3 * cols] + values[cols : 2 * cols] + values[3 * cols :]
    if how == "moved":
        cols = wanted["shape"][1]
        rows = [values[at : at + cols] for at in range(0, count, cols)]
        values = [x for row in rows for x in row[2:] + row[:2]]
    if how == "seventh":
        cols = wanted["shape"][1]
        values = [-x if at % cols % 7 == 0 else x for at, x in enumerate(values)]
    if how in ("marginal", "marginal_nan"):
        cols = wanted["shape"][1]
        off = float("nan") if how == "marginal_nan" else 1e-2
        values = [x + off * (1 + at % 3) if at // cols == 2 else x for at, x in enumerate(values)]
        for at in (3, 8, 4 * cols + 20):
            values[at] += 1.5e-6
    if how == "huge":
        values = [1e38] * count
    dtype, kind = ("F64", "d") if how == "dtype" else (wanted["dtype"], kind)
    out = struct.pack(f"<{count}{kind}", *values)
    tensors = {wanted["name"]: {"dtype": dtype, "shape": wanted["shape"], "data_offsets": [0, len(out)]}}
    for bound in bounds:
        part = struct.pack(f"<{count}d", *[1e300 if how == "absurd" else 1e-6] * count)
        tensors[bound["name"]] = {**bound, "data_offsets": [len(out), len(out) + len(part)]}
        del tensors[bound["name"]]["name"]
        out += part
    text = json.dumps(tensors).encode()
    with open(outputs, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + out)

if not serves:
    leave(*sys.argv[2:])
    sys.exit()
for line in sys.stdin:
    request = json.loads(line)
    leave(request["inputs"], request["outputs"])
    print(json.dumps({"error": "no room"} if how == "refuse" else {"ok": True}), flush=True)
"#;

const BOUND: &str = "{ absolute = 1e-6 }";

/// An experiment with an identity of 5 rows of 30 numbers.
fn text(folder: &Path, reference: &str, candidate: &str, mode: &str) -> String {
    let script = folder.join("program.py");
    std::fs::write(&script, PROGRAM).unwrap();
    let (script, python) = (path(&script), python());
    format!(
        r#"
name = "left"
question = "Right?"
kind = "kernels"

[[op]]
name = "same"
doc = "x"
sizes = ["T", "C"]
inputs = [{{ name = "x", dtype = "f32", shape = ["T", "C"], values = {{ uniform = [1, 2] }} }}]
outputs = [{{ name = "y", dtype = "f32", shape = ["T", "C"], bound = {BOUND}, why = "nothing is computed" }}]
reference = ["{python}", "-SE", "{script}", "{reference}"]

[[case]]
op = "same"
name = "small"
T = 5
C = 30

[[command]]
op = "same"
name = "mine"
doc = ""
run = ["{python}", "-SE", "{script}", "{candidate}"]
mode = "{mode}"
timeout = 5

[[gate]]
metric = "violations"
at = "y"
phase = "local"
statistic = "max"
require = "<= 0"
recipes = ["**"]
why = "nothing is computed"
"#
    )
}

/// A sweep that must end within a minute, whatever programs leave.
fn sweep(folder: &Path, text: &str) -> Output {
    let (out, keep) = (folder.join("run"), folder.join("kept"));
    let file = write(folder, text);
    let mut command = ulplab(&["kernels", "check", path(&file), "--out", path(&out)]);
    command.args(["--keep-failed", path(&keep)]);
    let (stdout, stderr) = (folder.join("stdout"), folder.join("stderr"));
    let to = |file: &Path| Stdio::from(std::fs::File::create(file).unwrap());
    let mut child = command.stdout(to(&stdout)).stderr(to(&stderr)).spawn().unwrap();
    let began = Instant::now();
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break status,
            None if began.elapsed() > Duration::from_secs(60) => {
                child.kill().unwrap();
                panic!("it waits: {}", std::fs::read_to_string(stderr).unwrap());
            }
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    let [stdout, stderr] = [stdout, stderr].map(|file| std::fs::read(file).unwrap());
    Output { status, stdout, stderr }
}

const SPARSE: &str = "left outputs.safetensors of 214748364800 bytes, expected about ";

#[test]
fn what_is_no_file_of_outputs_fails_its_case_at_once() {
    for mode in ["once", "serve"] {
        for (how, why) in [
            ("fifo", "expected a regular file"),
            ("folder", "is a folder, expected a file"),
            ("sparse", SPARSE),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let output = sweep(folder.path(), &text(folder.path(), "right", how, mode));
            let error = stderr(&output);
            assert_eq!(code(&output), 100, "{mode}, {how}: {error}");
            assert!(error.contains(why), "{mode}, {how}: '{why}' is not in: {error}");
        }
    }
}

#[test]
fn what_is_no_file_of_outputs_ends_a_reference_at_once() {
    for (how, why) in [("fifo", "expected a regular file"), ("sparse", SPARSE)] {
        let folder = tempfile::tempdir().unwrap();
        let output = sweep(folder.path(), &text(folder.path(), how, "right", "once"));
        let error = stderr(&output);
        assert_eq!(code(&output), 101, "{how}: {error}");
        assert!(error.contains(why), "{how}: '{why}' is not in: {error}");
    }
}

/// Inputs and what is wanted are kept of a case that left nothing to judge, and so is the file in the place of its outputs.
/// The gate looks at `y` alone, which none of them has: they must fail all the same, and the verdict begins with the reason.
#[test]
fn a_case_without_outputs_is_kept_and_fails_every_gate() {
    for (how, mode, headline, left) in [
        ("crash", "once", "did not run: exited with status 3", false),
        ("segv", "once", "did not run: ended by signal 11", false),
        (
            "hang",
            "once",
            "did not run: took longer than its timeout of 5 s",
            false,
        ),
        (
            "nothing",
            "once",
            "nothing to judge, it left no outputs.safetensors",
            false,
        ),
        ("dtype", "once", "nothing to judge, it left 'y' as F64", true),
        ("refuse", "serve", "did not run: answered with the error: no room", true),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let output = sweep(folder.path(), &text(folder.path(), "right", how, mode));
        assert_eq!(code(&output), 100, "{how}: {}{}", stdout(&output), stderr(&output));
        let judged = run(&["gate", path(&folder.path().join("run")), "--json"]);
        let verdict = first(&judged);
        let message = verdict["message"].as_str().unwrap();
        assert!(message.starts_with(headline), "{how}: {message}");
        let kept = folder.path().join("kept");
        let capsule = tensors_in(&kept.join("same.mine.small.safetensors"));
        let names: Vec<&str> = capsule.tensors().map(|tensor| tensor.name).collect();
        assert!(
            names.len() == 3 && ["in.x", "want.y", "bound.y"].iter().all(|name| names.contains(name)),
            "{names:?}"
        );
        let given = capsule.metadata();
        assert!(given["failures"].contains(headline.split(": ").last().unwrap().split("it ").last().unwrap()));
        assert!(
            given["again"].contains("--only same.mine/local/small --seed 0 "),
            "{}",
            given["again"]
        );
        assert_eq!(kept.join("same.mine.small.left").is_file(), left, "{how}");
        if left {
            let bytes = std::fs::read(kept.join("same.mine.small.left")).unwrap();
            let name = folder.path().join("left.safetensors");
            assert!(TensorFile::from_bytes(&name, bytes).unwrap().get("y").is_some());
        }
    }
}

#[test]
fn a_folder_that_cannot_be_written_is_noticed_before_the_run() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("kept"), "a file").unwrap();
    let output = sweep(folder.path(), &text(folder.path(), "right", "right", "once"));
    assert_eq!(code(&output), 96, "{}", stderr(&output));
    assert!(stderr(&output).contains("kept"), "{}", stderr(&output));
    assert!(!folder.path().join("run").exists());
}

#[test]
fn names_that_no_file_can_have_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let text = text(folder.path(), "right", "right", "once");
    for (name, what) in [("small", "case"), ("mine", "recipe")] {
        let long = "n".repeat(240);
        let change = [format!("name = \"{name}\""), format!("name = \"{long}\"")];
        let named = if what == "case" { long } else { format!("same.{long}") };
        refuses(
            &text,
            [&change[0], &change[1]],
            &[&format!("{what} '{named}'"), "at most 200"],
        );
    }
}

/// A bound that no finite number could fail is a slip, whoever says it.
#[test]
fn a_bound_that_nothing_could_fail_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let text = text(folder.path(), "absurd", "huge", "once");
    for absolute in ["1e300", "3.5e38"] {
        let change = [BOUND, &format!("{{ absolute = {absolute} }}")];
        let words = [
            "operation 'same': output 'y'",
            "the largest number of F32: nothing could fail it",
        ];
        refuses(&text, change, &words);
    }
    let output = sweep(folder.path(), &text.replace(BOUND, "{ by_reference = true }"));
    let error = stderr(&output);
    assert_eq!(code(&output), 101, "{error}");
    for word in [
        "'small' of 'same'",
        "y.bound[0, 0] = 1e300",
        "the largest number of F32",
    ] {
        assert!(error.contains(word), "'{word}' is not in: {error}");
    }
}

/// A gate may name an output; a name that none has is refused.
#[test]
fn a_gate_binds_an_output() {
    for (candidate, exit) in [("right", 0), ("negative", 100)] {
        let folder = tempfile::tempdir().unwrap();
        let output = sweep(folder.path(), &text(folder.path(), "right", candidate, "once"));
        assert_eq!(code(&output), exit, "{}{}", stdout(&output), stderr(&output));
    }
    let folder = tempfile::tempdir().unwrap();
    let text = text(folder.path(), "right", "right", "once");
    let words = ["gate: 'yy' matches no output of the operations; did you mean 'y'?"];
    refuses(&text, ["at = \"y\"", "at = \"yy\""], &words);
    let shipped = ["sweep", "experiments/outside.toml", "--dry-run", "--rules"];
    for (at, exit) in [
        ("x", 0),
        ("rerun", 0),
        ("graph", 0),
        ("batch", 0),
        ("large", 0),
        ("y", 2),
    ] {
        let rules = folder.path().join("rules.toml");
        let gate = text
            .split("[[gate]]")
            .nth(1)
            .unwrap()
            .replace("at = \"y\"", &format!("at = \"{at}\""));
        std::fs::write(&rules, format!("[[gate]]{gate}")).unwrap();
        let output = run(&[&shipped[..], &[path(&rules)]].concat());
        assert_eq!(code(&output), exit, "{at}: {}", stderr(&output));
    }
}

/// What is so of all wrong elements is said.
#[test]
fn relations_of_wrong_elements_are_named() {
    for (how, words) in [
        ("negative", &["every one, with the sign flipped"][..]),
        ("seventh", &["every 7th column, from 0 on", "with the sign flipped"]),
        ("exchanged", &["rows 1 to 2", "rows 1 and 2 are exchanged"]),
        (
            "moved",
            &["every one, each equal to the expected value 2 columns to its right, around the end of its row"],
        ),
        // Elements just outside a bound that is too tight do not hide the pattern of those that a mistake moved.
        (
            "marginal",
            &[
                "all in every second row, from 0 on",
                "; 30 of them 10 times outside or more, all of row 2; 3 less than 2 times: the bound may be too tight for these",
            ],
        ),
        (
            "marginal_nan",
            &["; 30 of them 10 times outside or more, all of row 2, NaN or infinite; 3 less than"],
        ),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let output = sweep(folder.path(), &text(folder.path(), "right", how, "once"));
        let judged = run(&["gate", path(&folder.path().join("run")), "--json"]);
        let verdict = first(&judged);
        let failure = &verdict["failures"]["worst"][0];
        for word in words {
            let pattern = failure["pattern"].as_str().unwrap();
            assert!(pattern.contains(word), "{how}: '{word}' is not in: {pattern}");
            assert!(failure["message"].as_str().unwrap().ends_with(pattern), "{failure}");
        }
        assert_eq!(code(&output), 100);
    }
}
