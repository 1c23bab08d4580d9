//! Programs that stay alive, and programs that hang.

use std::time::Instant;

use super::*;

/// Copies states of one element a matrix, where transposing changes nothing, and then misbehaves as its first argument says.
const SERVER: &str = r#"
import json, os, subprocess, sys, time

how, folder = sys.argv[1:3]
open(os.path.join(folder, "started-" + how), "a").write("x")

def compute(inputs, outputs):
    with open(inputs, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        data = file.read()
    given = header.pop("__metadata__")
    (y,) = json.loads(given["outputs"])
    if how == "hang" and given["case"] == "second":
        child = subprocess.Popen(["sleep", "600"])
        open(os.path.join(folder, "child"), "w").write(str(child.pid))
        time.sleep(600)
    if how == "crash" and given["case"] == "second":
        sys.stderr.write("out of memory\n")
        sys.stderr.flush()
        os._exit(3)
    if how == "refuse" and given["case"] == "second":
        raise ValueError("C must be a multiple of 8")
    name = y.pop("name")
    text = json.dumps({name: {**y, "data_offsets": [0, len(data)]}}).encode()
    with open(outputs, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + data)

if how == "once":
    time.sleep(600)
for line in sys.stdin:
    request = json.loads(line)
    if how == "chatty":
        print("loading weights", flush=True)
    if how == "mute":
        print("done!", flush=True)
        time.sleep(600)
    try:
        compute(request["inputs"], request["outputs"])
        answer = {"ok": how != "not_ok"}
    except ValueError as error:
        answer = {"error": str(error)}
    print(json.dumps(answer), flush=True)
    if how == "twice":
        print(json.dumps(answer), flush=True)
"#;

/// A sweep of one program on three small cases.
fn sweep(folder: &Path, how: &str, settings: &str) -> Output {
    let file = experiment(folder, how, settings);
    run(&["sweep", path(&file), "--out", path(&folder.join("run"))])
}

fn experiment(folder: &Path, how: &str, settings: &str) -> PathBuf {
    let script = folder.join("server.py");
    std::fs::write(&script, SERVER).unwrap();
    let (script, home) = (path(&script), path(folder));
    let case = |name: &&str| {
        format!("[[case]]\nop = \"state_transpose\"\nname = \"{name}\"\ndtype = \"f32\"\nB = 2\nH = 3\nK = 1\nV = 1\n")
    };
    let cases: String = ["first", "second", "third"].iter().map(case).collect();
    let text = format!(
        r#"
name = "serving"
question = "Right?"
kind = "kernels"
cases = ["first", "second", "third"]
{cases}
[[command]]
op = "state_transpose"
name = "{how}"
doc = ""
run = ["python3", "{script}", "{how}", "{home}"]
{settings}
{NO_VIOLATIONS}"#
    );
    write(folder, &text)
}

/// What failed in a cell of the run, if anything did.
fn failure(folder: &Path, case: &str) -> Option<String> {
    let all = measurements(&folder.join("run"));
    let failed = all
        .iter()
        .filter(|record| record["window"] == case)
        .find(|record| record["site"] == "program")?;
    let violations = &failed["metrics"]["violations"];
    assert!(violations.is_null(), "what failed is no number: {violations}");
    Some(failed["failures"]["violations"]["message"].as_str().unwrap().into())
}

fn started(folder: &Path, how: &str) -> usize {
    std::fs::read(folder.join(format!("started-{how}"))).unwrap().len()
}

#[test]
fn a_program_that_serves_is_started_once() {
    for how in ["right", "chatty"] {
        let folder = tempfile::tempdir().unwrap();
        let output = sweep(folder.path(), how, "mode = \"serve\"");
        assert_eq!(code(&output), 0, "{}{}", stdout(&output), stderr(&output));
        assert_eq!(started(folder.path(), how), 1, "three cases, two runs each");
    }
}

#[test]
fn a_crash_an_error_and_a_hang_fail_their_own_case() {
    let cases = [
        (
            "crash",
            2,
            "exited with status 3 without an answer, after 2 answers; the end of its stderr:\n  out of memory",
        ),
        ("refuse", 1, "answered with the error: C must be a multiple of 8"),
        ("hang", 2, "took longer than its timeout of 4 s and was killed"),
    ];
    for (how, starts, why) in cases {
        let folder = tempfile::tempdir().unwrap();
        let output = sweep(folder.path(), how, "mode = \"serve\"\ntimeout = 4");
        assert_eq!(code(&output), 100, "{how}: {}{}", stdout(&output), stderr(&output));
        let message = failure(folder.path(), "second").unwrap_or_default();
        assert!(message.contains(why), "'{why}' is not in: {message}");
        for case in ["first", "third"] {
            assert_eq!(failure(folder.path(), case), None, "{how}: {case}");
        }
        assert_eq!(started(folder.path(), how), starts, "{how}");
        // What a program that is killed has started is killed, too.
        assert!(how != "hang" || !running(&folder.path().join("child")));
    }
}

/// Whether the process whose id is in a file still runs.
fn running(child: &Path) -> bool {
    let child = std::fs::read_to_string(child).unwrap();
    let state = std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
    state
        .rsplit(") ")
        .next()
        .is_some_and(|rest| rest.starts_with(['S', 'R', 'D']))
}

/// SIGINT ends a program that hangs, with all that it started.
#[test]
fn an_interrupted_run_ends_its_programs() {
    let folder = tempfile::tempdir().unwrap();
    let file = experiment(folder.path(), "hang", "mode = \"serve\"");
    let mut sweep = ulplab(&["sweep", path(&file), "--out", path(&folder.path().join("run"))]);
    let mut sweep = sweep.stderr(std::process::Stdio::null()).spawn().unwrap();
    let (child, began) = (folder.path().join("child"), Instant::now());
    while std::fs::read_to_string(&child).unwrap_or_default().is_empty() {
        assert!(began.elapsed().as_secs() < 120, "it never hangs");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let signalled = Command::new("kill").args(["-INT", &sweep.id().to_string()]).status();
    assert!(signalled.unwrap().success());
    assert_eq!(sweep.wait().unwrap().code(), Some(130));
    assert!(!running(&child));
}

#[test]
fn answers_that_are_none_are_shown() {
    let cases = [
        (
            "mute",
            "took longer than its timeout of 4 s and was killed; its stdout held 'done!', which is no answer",
        ),
        (
            "not_ok",
            "answered '{\"ok\": false}', expected {\"ok\": true} or {\"error\": \"…\"}",
        ),
    ];
    for (how, why) in cases {
        let folder = tempfile::tempdir().unwrap();
        let output = sweep(folder.path(), how, "mode = \"serve\"\ntimeout = 4\ncases = [\"first\"]");
        assert_eq!(code(&output), 100, "{how}: {}{}", stdout(&output), stderr(&output));
        let message = failure(folder.path(), "first").unwrap_or_default();
        assert!(message.contains(why), "'{why}' is not in: {message}");
    }
}

/// An answer too many is noticed before the next request, or meets no file: which of them, and in which case, is a matter of
/// time.
#[test]
fn an_answer_too_many_does_not_pass_for_the_next() {
    let folder = tempfile::tempdir().unwrap();
    let output = sweep(folder.path(), "twice", "mode = \"serve\"\ntimeout = 60");
    assert_eq!(code(&output), 100, "{}{}", stdout(&output), stderr(&output));
    let messages = ["first", "second", "third"].map(|case| failure(folder.path(), case));
    assert!(
        messages.iter().any(Option::is_some),
        "a second run meets the first one's second answer"
    );
}

#[test]
fn a_program_started_for_every_run_has_a_timeout_too() {
    let folder = tempfile::tempdir().unwrap();
    let began = Instant::now();
    let output = sweep(folder.path(), "once", "timeout = 0.3\ncases = [\"first\"]");
    assert_eq!(code(&output), 100, "{}{}", stdout(&output), stderr(&output));
    let message = failure(folder.path(), "first").unwrap_or_default();
    assert!(message.contains("took longer than its timeout of 0.3 s"), "{message}");
    assert!(began.elapsed().as_secs() < 60);
}

#[test]
fn settings_of_programs_are_checked() {
    let folder = tempfile::tempdir().unwrap();
    for (settings, why) in [
        ("timeout = 0", "timeout = 0, expected seconds above 0"),
        ("timeout = nan", "timeout = NaN, expected seconds above 0"),
        ("mode = \"stay\"", "unknown variant `stay`, expected `once` or `serve`"),
        (
            "cases = [\"fist\"]",
            "'fist' matches no case; cases are named like 'f32.b1'; did you mean 'first'?",
        ),
        (
            "cases = [\"f32.b1\"]\nnondeterminstic = \"\"",
            "did you mean 'nondeterministic'?",
        ),
    ] {
        let output = sweep(folder.path(), "right", settings);
        assert_eq!(code(&output), 2, "{settings}: {}", stderr(&output));
        says(&stderr(&output), why);
    }
}
