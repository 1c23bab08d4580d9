//! Cases of the user's for operations that ulplab knows: sizes, numbers and tensors of their own.

use super::*;

/// RMSNorm of f32 rows in plain Python, computed in f64 and rounded once. It fails if the case is not what it expects.
const RMSNORM: &str = r#"
import json, struct, sys

expected, inputs, outputs = sys.argv[1:]
with open(inputs, "rb") as file:
    header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    data = file.read()
meta = header.pop("__metadata__")
for name, value in json.loads(expected).items():
    assert meta[name] == value, (name, meta[name], value)

def floats(name):
    begin, end = header[name]["data_offsets"]
    return struct.unpack(f"<{(end - begin) // 4}f", data[begin:end])

x, weight = floats("x"), floats("weight")
rows, cols, eps = int(meta["T"]), int(meta["C"]), float(meta["eps"])
y = []
for t in range(rows):
    row = x[t * cols : (t + 1) * cols]
    scale = (sum(v * v for v in row) / cols + eps) ** -0.5
    y += [v * scale * w for v, w in zip(row, weight)]
(output,) = json.loads(meta["outputs"])
name = output.pop("name")
out = struct.pack(f"<{len(y)}f", *y)
text = json.dumps({name: {**output, "data_offsets": [0, len(out)]}}).encode()
with open(outputs, "wb") as file:
    file.write(len(text).to_bytes(8, "little") + text + out)
"#;

/// An experiment of one case and a program that checks what it is given.
fn experiment(folder: &Path, case: &str, expected: &str) -> String {
    let script = folder.join("rmsnorm.py");
    std::fs::write(&script, RMSNORM).unwrap();
    let (script, python) = (path(&script), python());
    format!(
        r#"
name = "mine"
question = "Right?"
kind = "kernels"

[[case]]
op = "rmsnorm"
name = "mine"
dtype = "f32"
{case}

[[command]]
op = "rmsnorm"
name = "python"
doc = ""
run = ["{python}", "-SE", "{script}", '{expected}']
cases = ["mine"]
{NO_VIOLATIONS}"#
    )
}

/// A safetensors file of f32 tensors, all of the same small numbers.
fn tensors(folder: &Path, tensors: &[(&str, &[usize])]) -> PathBuf {
    let mut header = serde_json::Map::new();
    let mut data = Vec::new();
    for (name, shape) in tensors {
        let begin = data.len();
        for at in 0..shape.iter().product::<usize>() {
            data.extend((0.5 + (at % 7) as f32).to_le_bytes());
        }
        let entry = serde_json::json!({"dtype": "F32", "shape": shape, "data_offsets": [begin, data.len()]});
        header.insert(name.to_string(), entry);
    }
    let text = serde_json::Value::Object(header).to_string();
    let file = folder.join("tensors.safetensors");
    let bytes = [&(text.len() as u64).to_le_bytes()[..], text.as_bytes(), &data].concat();
    std::fs::write(&file, bytes).unwrap();
    file
}

fn sweep(folder: &Path, text: &str) -> Output {
    run(&["sweep", path(&write(folder, text)), "--out", path(&folder.join("run"))])
}

#[test]
fn sizes_and_numbers_reach_the_program_and_the_judge() {
    for eps in ["1e-3", "0.5"] {
        let folder = tempfile::tempdir().unwrap();
        let expected = r#"{"T": "3", "C": "77", "S": "4", "dtype": "f32", "case": "mine"}"#;
        let text = experiment(folder.path(), &format!("T = 3\nC = 77\neps = {eps}"), expected);
        let output = sweep(folder.path(), &text);
        assert_eq!(code(&output), 0, "{}{}", stdout(&output), stderr(&output));
        let lines = records(&folder.path().join("run"));
        let cells = lines.iter().filter(|line| line.contains("\"cell\""));
        let mine: Vec<bool> = cells.map(|line| line.contains("/local/mine\"")).collect();
        assert!(
            !mine.is_empty() && mine.iter().all(|mine| *mine),
            "no other case is run"
        );
    }
    // A program that takes another ε than the case's is wrong.
    let folder = tempfile::tempdir().unwrap();
    let text = experiment(folder.path(), "T = 3\nC = 77\neps = 0.5", "{}");
    let script = folder.path().join("rmsnorm.py");
    std::fs::write(&script, RMSNORM.replace(r#"float(meta["eps"])"#, "1e-6")).unwrap();
    let output = sweep(folder.path(), &text);
    assert_eq!(code(&output), 100, "{}{}", stdout(&output), stderr(&output));
}

/// Shapes fix sizes; what the file lacks is drawn; a changed file is another run.
#[test]
fn tensors_of_the_users_are_inputs() {
    let folder = tempfile::tempdir().unwrap();
    let file = tensors(folder.path(), &[("x", &[4, 19]), ("weight", &[19])]);
    let case = format!("tensors = \"{}\"", path(&file));
    let text = experiment(folder.path(), &case, r#"{"T": "4", "C": "19"}"#);
    let output = sweep(folder.path(), &text);
    assert_eq!(code(&output), 0, "{}{}", stdout(&output), stderr(&output));

    tensors(folder.path(), &[("x", &[4, 19])]);
    let (file, out) = (folder.path().join("experiment.toml"), folder.path().join("run"));
    let output = run(&["sweep", path(&file), "--out", path(&out), "--resume"]);
    assert_eq!(code(&output), 2, "{}{}", stdout(&output), stderr(&output));
    std::fs::remove_dir_all(&out).unwrap();
    let output = sweep(folder.path(), &text);
    assert_eq!(
        code(&output),
        0,
        "weights are drawn: {}{}",
        stdout(&output),
        stderr(&output)
    );
}

#[test]
fn mistakes_in_cases() {
    let folder = tempfile::tempdir().unwrap();
    let file = tensors(folder.path(), &[("x", &[4, 19]), ("weight", &[18])]);
    let file = path(&file);
    let text = experiment(folder.path(), "T = 3\nC = 77", "{}");
    let rope =
        |sizes: &str| format!("op = \"rope\"\nname = \"mine\"\ndirection = \"forward\"\n{sizes}\ndtype = \"f32\"");
    let also = "\n[[command]]\nop = \"rope\"\nname = \"python\"\ndoc = \"\"\nrun = [\"python3\"]\n\n[[gate]]";
    let cases: &[([&str; 2], &[&str])] = &[
        (
            ["T = 3", "t = 3"],
            &[
                "case 'mine' of 'rmsnorm': unknown key 't'",
                "it may set T, C, dtype, eps",
            ],
        ),
        (["T = 3", ""], &["size T is missing"]),
        (["T = 3", "T = 3.5"], &["T = 3.5, expected a whole number"]),
        (
            ["\"f32\"", "\"fp32\""],
            &["dtype = 'fp32', expected one of bf16, f32; did you mean 'f32'?"],
        ),
        (
            ["dtype = \"f32\"", ""],
            &["dtype is missing, expected one of bf16, f32"],
        ),
        (
            ["T = 3", "T = 3\neps = 0"],
            &["eps = 0, expected a number from 1e-12 to 1e0"],
        ),
        (
            ["T = 3", "T = 3\ninputs = \"ones\""],
            &["inputs = 'ones', expected random or edges or site:PATTERN"],
        ),
        (
            ["T = 3", "T = 3\ntensors = \"none.safetensors\""],
            &["none.safetensors: there is no such file or folder"],
        ),
        (
            ["name = \"mine\"\ndtype", "name = \"my case\"\ndtype"],
            &["its name holds more than letters"],
        ),
        (
            ["op = \"rmsnorm\"\nname = \"mine\"", "op = \"rope\"\nname = \"mine\""],
            &["no kernel or program of the experiment computes 'rope'"],
        ),
        (
            ["op = \"rmsnorm\"\nname = \"mine\"", "op = \"rmsnrm\"\nname = \"mine\""],
            &["no operation 'rmsnrm'; did you mean 'rmsnorm'?"],
        ),
        (["cases = [\"mine\"]", ""], &["some cases are what passes in a model"]),
        (
            ["T = 3", "T = 3\ninputs = \"site:layers.*.input\""],
            &["some cases are what passes in a model"],
        ),
    ];
    for (change, words) in cases {
        refuses(&text, *change, words);
    }
    let tensors = format!("tensors = \"{file}\"");
    refuses(
        &text,
        ["T = 3\nC = 77", &tensors],
        &["'weight' is [18], expected [C] = [19]"],
    );
    refuses(
        &text,
        ["T = 3\nC = 77", &format!("T = 5\n{tensors}")],
        &["'x' is [4, 19], expected [T, C] = [5, 19]"],
    );
    refuses(
        &text,
        ["T = 3", &format!("inputs = \"random\"\n{tensors}")],
        &["tensors and inputs are both given"],
    );
    let text = text.replace("[[gate]]", also);
    let whole = "op = \"rmsnorm\"\nname = \"mine\"\ndtype = \"f32\"\nT = 3\nC = 77";
    let odd = rope("T = 2\nH = 2\nD = 8\nR = 5");
    refuses(
        &text,
        [whole, &odd],
        &["case 'mine' of 'rope': R = 5, expected an even number of channels, at most D = 8"],
    );
    let mhc = text.replace("\"rope\"", "\"mhc_pre\"");
    refuses(
        &mhc,
        [whole, "op = \"mhc_pre\"\nname = \"mine\""],
        &["this operation takes no cases but its own"],
    );
}

/// A case of the user's with the sizes and keys of a shipped one has all that the shipped one has.
#[test]
fn what_follows_from_keys_is_as_in_shipped_cases() {
    use ulplab::ops;
    use ulplab::studies::kernels::KernelStudy;
    use ulplab::studies::kernels::operations::{Operation, OwnCase, Setting};

    let page = std::fs::read_to_string(root().join("docs/kernels.md")).unwrap();
    let mut tried = 0;
    for op in ops::all() {
        let Some(parameters) = op.parameters() else { continue };
        // The table of the documentation says the same.
        let code = |name: &str| format!("`{name}`");
        let tensors = parameters.tensors.iter();
        let tensors = tensors.map(|(name, shape)| match &shape[..] {
            [] => code(name),
            shape => format!("`{name}` [{}]", shape.join(", ")),
        });
        let columns: [Vec<String>; 5] = [
            vec![code(op.name())],
            parameters.sizes.iter().map(|size| code(size)).collect(),
            parameters.keys.iter().map(|(key, _)| code(key)).collect(),
            parameters.scalars.iter().map(|range| code(&range.name)).collect(),
            tensors.collect(),
        ];
        let row: String = columns
            .iter()
            .map(|names| format!("| {} ", names.join(", ")).replace("|  ", "| "))
            .collect();
        assert!(page.contains(&format!("{row}|\n")), "docs/kernels.md lacks: {row}|");
        if parameters.free {
            continue;
        }
        for case in op.cases() {
            // A case of the user's quantizes NVFP4 under a given magnitude.
            if case.dims.contains(&("FIND", 1)) {
                continue;
            }
            let sizes = parameters
                .sizes
                .iter()
                .map(|size| (size.clone(), Setting::Whole(case.dim(size) as i64)));
            let keys = parameters
                .keys
                .iter()
                .map(|(key, _)| (key.clone(), Setting::Text(case.key(key).into())));
            let study = KernelStudy {
                own_cases: vec![OwnCase {
                    op: op.name().into(),
                    name: "mine".into(),
                    inputs: None,
                    tensors: None,
                    timed: false,
                    settings: sizes.chain(keys).collect(),
                }],
                ..KernelStudy::default()
            };
            let cases = Operation::find(&study, op.name()).unwrap().cases().unwrap();
            let mine = cases.last().unwrap();
            assert_eq!(mine.name, "mine");
            assert_eq!(mine.keys, case.keys, "{} {}", op.name(), case.name);
            assert!(case.dims.iter().all(|dim| mine.dims.contains(dim)), "{mine:?} {case:?}");
            tried += 1;
        }
    }
    assert!(tried > 300, "{tried}");
}

/// Operations that have no kernels here take programs, with any sizes and keys.
#[test]
fn operations_on_tensors_take_programs() {
    let script = RMSNORM.replace(
        "    scale = (sum(v * v for v in row) / cols + eps) ** -0.5\n    y += [v * scale * w for v, w in zip(row, weight)]",
        "    mean = sum(row) / cols\n    scale = (sum((v - mean) ** 2 for v in row) / cols + eps) ** -0.5\n    y += [(v - mean) * scale * w for v, w in zip(row, weight)]",
    );
    let experiment = |folder: &Path, case: &str| {
        let text = experiment(folder, case, "{}").replace("op = \"rmsnorm\"", "op = \"layernorm\"");
        std::fs::write(folder.join("rmsnorm.py"), &script).unwrap();
        text
    };
    let case = "weight = \"given\"\nT = 3\nC = 50\neps = 0.25";
    for (case, expected) in [
        (case.to_string(), 0),
        // The program leaves out the bias.
        (format!("bias = \"given\"\n{case}"), 100),
        (case.replace("T = 3\n", ""), 2),
        (case.replace("given", "givn"), 2),
        (format!("chunk = 3\n{case}"), 2),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let output = sweep(folder.path(), &experiment(folder.path(), &case));
        assert_eq!(
            code(&output),
            expected,
            "{case}: {}{}",
            stdout(&output),
            stderr(&output)
        );
    }
}
