//! Programs as variants of an operation.

use super::*;

/// Exchanges keys and values, as its first argument says; in plain Python, as any machine has it.
const TRANSPOSE: &str = r#"
import json, os, sys

how, inputs, outputs = sys.argv[1:]
with open(inputs, "rb") as file:
    header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    data = file.read()
given = header["__metadata__"]
b, h, k, v, size = (int(given[name]) for name in ("B", "H", "K", "V", "size"))
assert given["op"] == "state_transpose" and header["x"]["shape"] == [b, h, k, v], header
(y,) = json.loads(given["outputs"])
assert y == {"name": "y", "dtype": header["x"]["dtype"], "shape": [b, h, v, k]}, y
out = bytearray()
for matrix in range(b * h):
    for col in range(v):
        for row in range(k):
            at = ((matrix * k + row) * v + col) * size
            out += data[at : at + size]
if how == "wrong":
    out[:size], out[-size:] = out[-size:], out[:size]
if how == "restless":
    seen = inputs + ".seen"
    out[0] ^= os.path.exists(seen)
    open(seen, "w").close()
if how == "crash":
    sys.exit("out of luck")
if how == "silent":
    sys.exit()
y["data_offsets"] = [0, len(out)]
if how == "shape":
    y["shape"] = [b, h, k, v]
meta = {"us": "fast" if how == "boast" else "12.5"}
name = y.pop("name")
written = {"__metadata__": meta, "z" if how == "name" else name: y}
text = json.dumps(written).encode()
with open(outputs, "wb") as file:
    file.write(len(text).to_bytes(8, "little") + text + out)
"#;

/// A sweep of a program for each way, on the cases that match.
fn sweep(folder: &Path, ways: &[&str], cases: &[&str]) -> Output {
    std::fs::write(folder.join("transpose.py"), TRANSPOSE).unwrap();
    let script = folder.join("transpose.py");
    let command = |way: &&str| {
        let nondeterministic = if *way == "free" {
            "nondeterministic = \"it may\""
        } else {
            ""
        };
        let run = if *way == "absent" {
            r#"["no-such-program"]"#.into()
        } else {
            format!(r#"["{}", "-SE", "{}", "{way}"]"#, python(), path(&script))
        };
        format!(
            "[[command]]\nop = \"state_transpose\"\nname = \"{way}\"\ndoc = \"\"\nrun = {run}\n{nondeterministic}\n"
        )
    };
    let commands: String = ways.iter().map(command).collect();
    let text = "name = \"programs\"\nquestion = \"Right?\"\nkind = \"kernels\"\nmodel = \"dsv4-mini\"\ntokens = 8\n\
                [[window]]\ntext = \"alice\"\noffset = 0\n";
    let file = folder.join("programs.toml");
    std::fs::write(&file, format!("{text}{commands}{NO_VIOLATIONS}")).unwrap();
    let out = folder.join("run");
    let mut args = vec!["sweep", path(&file), "--out", path(&out)];
    cases.iter().for_each(|case| args.extend(["--only", case]));
    run(&args)
}

/// Nothing fails; cases were left out, so that it does not pass either.
#[track_caller]
fn partly(output: &Output) {
    let said = stdout(output);
    assert_eq!(code(output), 4, "{said}{}", stderr(output));
    assert!(
        said.contains("NOT JUDGED: 0 checks pass, 0 fail, 1 not judged") && said.contains(": holds on "),
        "{said}"
    );
}

#[test]
fn a_right_program_violates_nothing_and_a_wrong_one_does() {
    let folder = tempfile::tempdir().unwrap();
    let cases = ["**.wide", "**.tall", "**.odd", "**.column"];
    let output = sweep(folder.path(), &["right"], &cases);
    partly(&output);
    assert!(stdout(&output).contains("8 cells"), "{}", stdout(&output));
    let page = std::fs::read_to_string(folder.path().join("run/report.html")).unwrap();
    assert!(page.contains("<th>claimed µs</th>") && page.contains("<td>12.5</td>"));

    let folder = tempfile::tempdir().unwrap();
    let output = sweep(folder.path(), &["wrong"], &["**/f32.odd"]);
    assert_eq!(code(&output), 100, "{}{}", stdout(&output), stderr(&output));
    assert!(
        stdout(&output).contains("max of violations at y (local) is 2"),
        "{}",
        stdout(&output)
    );
    let page = std::fs::read_to_string(folder.path().join("run/report.html")).unwrap();
    assert!(!page.contains("claimed"), "a wrong program's time is of no interest");
    let output = run(&["bisect", path(&folder.path().join("run"))]);
    assert_eq!(code(&output), 2);
    says(
        &stderr(&output),
        "'programs' is of kind 'kernels': bisect searches in models",
    );
}

#[test]
fn two_runs_must_agree() {
    let folder = tempfile::tempdir().unwrap();
    let output = sweep(folder.path(), &["restless"], &["**/bf16.column"]);
    assert_eq!(code(&output), 100);
    assert!(
        stdout(&output).contains("violations at rerun (local) is 1"),
        "{}",
        stdout(&output)
    );
    let folder = tempfile::tempdir().unwrap();
    partly(&sweep(folder.path(), &["free"], &["**/bf16.column"]));
}

/// A program that is not there is a slip of the file's, and no wrong kernel.
#[test]
fn programs_that_are_not_there_are_missed_before_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let output = sweep(folder.path(), &["right", "absent"], &["**/f32.column"]);
    assert_eq!(code(&output), 2, "{}", stdout(&output));
    let why = "command 'state_transpose.absent': cannot start 'no-such-program': no folder of $PATH has it";
    assert!(stderr(&output).contains(why), "{}", stderr(&output));
    assert!(!folder.path().join("run").exists());
}

/// Each fails its own cell, with a reason; the others are run all the same.
#[test]
fn programs_that_fail_say_why() {
    let folder = tempfile::tempdir().unwrap();
    let ways = [
        ("crash", "exited with status 1; the end of its stderr:\n  out of luck"),
        ("silent", "left no outputs.safetensors"),
        ("shape", "left 'y' as F32 [2, 2, 131, 1], expected F32 [2, 2, 1, 131]"),
        ("name", "left 'z', which is no output"),
        ("boast", "us = 'fast' in the metadata, expected microseconds above 0"),
    ];
    let names: Vec<&str> = ways.iter().map(|(way, _)| *way).chain(["right"]).collect();
    let output = sweep(folder.path(), &names, &["**/f32.column"]);
    assert_eq!(code(&output), 100, "{}", stdout(&output));
    for (way, why) in ways {
        let line = format!("state_transpose.{way}/local/f32.column: ");
        let error = stderr(&output);
        let told = error
            .split(&line)
            .nth(1)
            .unwrap_or_else(|| panic!("nothing of {way} in {error}"));
        assert!(
            told.split("state_transpose.").next().unwrap().contains(why),
            "'{why}' is not in: {told}"
        );
        assert!(
            stdout(&output).contains(&format!("FAIL state_transpose.{way}")),
            "{}",
            stdout(&output)
        );
    }
    assert!(
        !stdout(&output).contains("FAIL state_transpose.right"),
        "{}",
        stdout(&output)
    );
}

#[test]
fn mistakes_in_commands() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |text: &str, words: &[&str]| {
        let file = folder.path().join("mistake.toml");
        std::fs::write(&file, text).unwrap();
        let output = run(&["sweep", path(&file), "--dry-run"]);
        assert_eq!(code(&output), 2, "{}", stderr(&output));
        for word in words {
            says(&stderr(&output), word);
        }
    };
    let text = std::fs::read_to_string(root().join("experiments/outside.toml")).unwrap();
    refused(
        &text.replace("op = \"rope\"", "op = \"rop\""),
        &["line 16", "no operation 'rop'; did you mean 'rope'?"],
    );
    let empty = text.replace(r#"["python3", "examples/rope_triton.py"]"#, "[]");
    refused(&empty, &["'rope.triton': run is empty, expected a program"]);
    let smoke = std::fs::read_to_string(root().join("experiments/smoke.toml")).unwrap();
    let command = &text[text.find("[[command]]").unwrap()..text.find("[[gate]]").unwrap()];
    refused(
        &format!("{smoke}\n{command}"),
        &["has no use for 'command'; it is for kind = \"kernels\""],
    );
}
