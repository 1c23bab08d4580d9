//! What a user is told of a program that is wrong, wherever verdicts are shown, and what is kept of it.

use std::collections::HashMap;

use ulplab::ops;
use ulplab::ops::{Data, Outputs};

use super::*;

/// RMSNorm in plain Python, which leaves out what is beyond column 256.
const RMSNORM: &str = r#"
import json, struct, sys

inputs, outputs = sys.argv[1:]
with open(inputs, "rb") as file:
    header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    data = file.read()
def values(name):
    first, end = header[name]["data_offsets"]
    return struct.unpack(f"<{(end - first) // 4}f", data[first:end])
given = header["__metadata__"]
rows, cols, eps = int(given["T"]), int(given["C"]), float(given["eps"])
x, weight = values("x"), values("weight")
out = []
for row in range(rows):
    here = x[row * cols : (row + 1) * cols]
    scale = (sum(x * x for x in here) / cols + eps) ** -0.5
    y = [x * scale * w for x, w in zip(here, weight)]
    out += y[:256] + [0.0] * len(y[256:])
y = {"dtype": "F32", "shape": [rows, cols], "data_offsets": [0, 4 * len(out)]}
text = json.dumps({"y": y}).encode()
with open(outputs, "wb") as file:
    file.write(len(text).to_bytes(8, "little") + text + struct.pack(f"<{len(out)}f", *out))
"#;

/// A sweep of that program on a case of 7 rows of 333 columns, with what is kept of it.
fn sweep(folder: &Path) -> Output {
    let script = folder.join("rmsnorm.py");
    std::fs::write(&script, RMSNORM).unwrap();
    let text = format!(
        r#"
name = "wrong"
question = "Right?"
kind = "kernels"
model = "dsv4-mini"
tokens = 8
[[window]]
text = "alice"
offset = 0
[[command]]
op = "rmsnorm"
name = "mine"
doc = ""
run = ["python3", "{}"]{NO_VIOLATIONS}"#,
        path(&script)
    );
    let (run_folder, kept) = (folder.join("run"), folder.join("kept"));
    let (out, keep) = (path(&run_folder), path(&kept));
    let only = ["--only", "**/f32.random.7x333", "--seed", "3"];
    let file = write(folder, &text);
    run(&[
        &["kernels", "check", path(&file), "--out", out, "--keep-failed", keep][..],
        &only[..],
    ]
    .concat())
}

fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn what_is_wrong_is_said_everywhere() {
    let folder = tempfile::tempdir().unwrap();
    let output = sweep(folder.path());
    assert_eq!(code(&output), 100, "{}{}", stdout(&output), stderr(&output));
    let judged = run(&["gate", path(&folder.path().join("run")), "--json"]);
    let verdict = first(&judged);
    assert_eq!(verdict["failures"]["cells"], 1);
    let failure = &verdict["failures"]["worst"][0];
    let message = failure["message"].as_str().unwrap();
    assert!(
        message.starts_with("y[") && message.contains(", got 0, bound "),
        "{message}"
    );
    let pattern = "all of columns 256 to 332, the tail beyond a multiple of 256, where 0 was found: never written?";
    assert!(
        message.ends_with(&format!("; 539 of 2,331 wrong, {pattern}")),
        "{message}"
    );
    assert_eq!(
        (&failure["pattern"], &failure["window"]),
        (&pattern.into(), &"f32.random.7x333".into())
    );
    let why = failure["why"].as_str().unwrap();
    assert!(
        why.starts_with("f32 arithmetic: half of the error of a sum of 333 squares"),
        "{why}"
    );
    let (want, bound) = (
        failure["worst"]["want"].as_f64().unwrap(),
        failure["bound"].as_f64().unwrap(),
    );
    assert!(want.abs() > bound && bound > 0.0 && failure["worst"]["got"] == 0.0);

    let table = words(&stdout(&output));
    assert!(
        table.contains("rmsnorm.mine, case by case") && table.contains("f32.random.7x333 WRONG 539"),
        "{table}"
    );
    assert!(table.contains(message) && table.contains(why), "{table}");
    let report = |file: &str| std::fs::read_to_string(folder.path().join("run").join(file)).unwrap();
    let plain = |text: &str| words(&text.replace('\\', "").replace("&gt;", ">").replace("&lt;", "<"));
    for file in ["report.md", "junit.xml", "report.html"] {
        let text = plain(&report(file));
        for shown in [message, why] {
            assert!(text.contains(shown), "{file}: '{shown}' is not in: {text}");
        }
    }
    assert!(report("report.html").contains("<td>WRONG</td>") && report("report.md").contains("| WRONG |"));
}

/// What is kept holds all that it takes to see the failure again.
#[test]
fn what_failed_is_kept_whole() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(code(&sweep(folder.path())), 100);
    let file = folder.path().join("kept/rmsnorm.mine.f32.random.7x333.safetensors");
    let capsule = tensors_in(&file);
    let numbers = |name: &str| -> Vec<f64> {
        let tensor = capsule.get(name).unwrap();
        match tensor.dtype {
            safetensors::Dtype::F64 => tensor
                .bytes
                .as_chunks()
                .0
                .iter()
                .map(|x| f64::from_le_bytes(*x))
                .collect(),
            _ => tensor
                .bytes
                .as_chunks()
                .0
                .iter()
                .map(|x| f32::from_le_bytes(*x).into())
                .collect(),
        }
    };
    let [got, want, bound] = ["got.y", "want.y", "bound.y"].map(numbers);
    assert_eq!(
        (got.len(), numbers("in.x").len(), numbers("in.weight").len()),
        (2331, 2331, 333)
    );
    let wrong = got
        .iter()
        .zip(&want)
        .zip(&bound)
        .filter(|((got, want), bound)| (*got - *want).abs() > **bound);
    assert_eq!(wrong.count(), 539);

    let given = capsule.metadata();
    assert_eq!((given["seed"].as_str(), given["left_out"].as_str()), ("3", "[]"));
    let file = folder.path().join("experiment.toml");
    let again = format!(
        "ulplab kernels check {} --only rmsnorm.mine/local/f32.random.7x333 --seed 3 --keep-failed DIR",
        path(&file)
    );
    assert_eq!(given["again"], again);
    let op = ops::find(&given["op"]).unwrap();
    let case = ops::case(op, &given["case"]).unwrap();
    let none = |_: &str| Err("no model".to_string());
    let problem = op.problem(&case, &Data::new(3, &none)).unwrap();
    let found = problem.judge(&Outputs(vec![("y", capsule.get("got.y").unwrap().bytes.to_vec())]));
    let said: Vec<serde_json::Value> = serde_json::from_str(&given["failures"]).unwrap();
    assert_eq!(said[0]["message"], found[0].failure.as_ref().unwrap().message);
    assert_eq!(capsule.get("in.x").unwrap().bytes, &problem.buffers[0].bytes[..]);
}

#[test]
fn only_kernels_and_programs_are_kept() {
    let output = run(&["kernels", "check", "smoke", "--dry-run", "--keep-failed", "kept"]);
    assert_eq!(code(&output), 2);
    assert!(
        stderr(&output).contains("smoke.toml: this is not an experiment of kernels; `ulplab sweep smoke` runs it"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn an_operation_is_described() {
    let output = run(&["kernels", "describe", "rmsnorm"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let text = stdout(&output);
    for line in [
        "  x       in        F32 or BF16 [T, C]",
        "  y       out       F32 or BF16 [T, C]",
        "  weight  in        F32 [C]",
        "  eps  f32, 0.000001",
        "key    dtype: type of the activations: bf16, f32",
        "each element must be within its bound",
        "then half a step of bf16",
        "bf16.random.7x333",
        "layers.*.input",
    ] {
        let line = line.replace(
            "F32 or BF16",
            if text.contains("F32 or BF16") {
                "F32 or BF16"
            } else {
                "BF16 or F32"
            },
        );
        assert!(text.contains(&line), "'{line}' is not in: {text}");
    }
    let output = run(&["kernels", "describe", "state_transpose", "--json"]);
    let described: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(
        described["buffers"][0]["shape"],
        serde_json::json!(["B", "H", "K", "V"])
    );
    assert_eq!(
        described["buffers"][1]["shape"],
        serde_json::json!(["B", "H", "V", "K"])
    );
    assert_eq!(described["judgements"][0]["how"], "bits must be equal");
    let output = run(&["kernels", "describe", "rmsnrm"]);
    assert_eq!(code(&output), 2);
    assert!(
        stderr(&output).contains("did you mean 'rmsnorm'?"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_case_is_dumped_as_programs_read_it() {
    let folder = tempfile::tempdir().unwrap();
    let dumped = |op: &str, case: &str| -> HashMap<&'static str, TensorFile> {
        let to = folder.path().join(op);
        let output = run(&["kernels", "dump", op, case, path(&to)]);
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        let file = |name: &'static str| {
            let file = to.join(format!("{name}.safetensors"));
            (name, tensors_in(&file))
        };
        ["inputs", "want", "bound"].map(file).into()
    };
    let names = |file: &TensorFile| {
        let mut names: Vec<String> = file.tensors().map(|tensor| tensor.name.to_string()).collect();
        names.sort();
        names
    };
    // Both of its elements and of its rows something is asked.
    let files = dumped("record_attention", "v4_fp8.bf16.b65.h1.w3.k4");
    for name in ["want", "bound"] {
        assert_eq!(names(&files[name]), ["out", "out.2"]);
    }
    let files = dumped("rmsnorm", "bf16.random.7x333");
    assert_eq!(names(&files["inputs"]), ["weight", "x"]);
    assert_eq!(files["inputs"].metadata()["eps"], "0.000001");
    for name in ["want", "bound"] {
        let y = files[name].get("y").unwrap();
        assert_eq!((y.dtype, y.shape), (safetensors::Dtype::F64, &[7, 333][..]));
    }
    assert!(files["want"].metadata()["y.judged"].contains("half a step of bf16"));
    // Where bits are compared there is no bound; of codes that a bound leaves open, numbers are wanted.
    let files = dumped("quantize", "mxfp8.f32.random.3x640");
    assert_eq!(
        (names(&files["want"]), names(&files["bound"]).len()),
        (vec!["data".into(), "scale".into()], 0)
    );
    let output = run(&["kernels", "dump", "rmsnorm", "bf16.random.7x33", path(folder.path())]);
    assert_eq!(code(&output), 2);
    assert!(stderr(&output).contains("did you mean"), "{}", stderr(&output));
}

/// The example for a debugger in `docs/kernels.md` is Python.
#[test]
fn the_example_of_a_dump_is_python() {
    let page = std::fs::read_to_string(root().join("docs/kernels.md")).unwrap();
    let examples: Vec<&str> = page
        .split("```python\n")
        .skip(1)
        .filter_map(|rest| rest.split("```").next())
        .collect();
    assert!(
        examples.iter().any(|example| example.contains("rms/bound.safetensors")),
        "{examples:?}"
    );
    for example in examples {
        // Without it `safetensors.numpy` ends at a tensor of bfloat16 or FP8. Of the kind: any page that loads files so.
        let loads = example.contains("safetensors.numpy");
        assert!(!loads || example.contains("import ml_dtypes"), "{example}");
        let parsed = Command::new("python3")
            .args(["-c", "import ast, sys; ast.parse(sys.argv[1])", example])
            .output()
            .unwrap();
        assert!(parsed.status.success(), "{}", String::from_utf8_lossy(&parsed.stderr));
    }
}
