//! Operations and cases of the user's.

use super::*;

/// Reads and writes safetensors in plain Python; both programs begin with it.
pub const FILES: &str = r#"
import json, math, struct, sys

def read(path):
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        data = file.read()
    meta = header.pop("__metadata__")
    kinds = {"F64": "d", "F32": "f", "I32": "i"}
    tensors = {}
    for name, tensor in header.items():
        begin, end = tensor["data_offsets"]
        kind = kinds[tensor["dtype"]]
        values = struct.unpack(f"<{(end - begin) // struct.calcsize(kind)}{kind}", data[begin:end])
        tensors[name] = (tensor["dtype"], tensor["shape"], list(values))
    return tensors, meta

def write(path, meta, tensors):
    kinds = {"F64": "d", "F32": "f", "I32": "i"}
    header, data = {}, b""
    for output in json.loads(meta["outputs"]):
        name, dtype, shape = output["name"], output["dtype"], output["shape"]
        part = struct.pack(f"<{len(tensors[name])}{kinds[dtype]}", *tensors[name])
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(part)]}
        data += part
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + data)
"#;

/// In f64: the sums of rows over the root of their length, and which entry is largest.
const REFERENCE: &str = r#"
how, inputs, outputs = sys.argv[1:]
tensors, meta = read(inputs)
dtype, (rows, cols), x = tensors["x"]
assert dtype == "F64" and tensors["shift"][0] == "I32", tensors
assert (rows, cols) == (int(meta["T"]), int(meta["C"])) and meta["case"], meta
if how == "broken":
    sys.exit("no GPU for the reference")
row = lambda t: x[t * cols : (t + 1) * cols]
shift = lambda t: tensors["shift"][2][t]
y = [(math.fsum(row(t)) + shift(t)) * float(meta["scale"]) for t in range(rows)]
bound = [2**-17 * (math.fsum(map(abs, row(t))) + abs(shift(t))) for t in range(rows)]
top = [max(range(cols), key=lambda c: row(t)[c]) for t in range(rows)]
if how == "nan":
    y[rows - 1] = math.nan
if how == "negative":
    bound[0] = -1.0
outs = {"y": y, "top": top, "y.bound": bound}
write(outputs, meta, outs)
"#;

/// In f32, one addition after the other.
pub const CANDIDATE: &str = r#"
how, inputs, outputs = sys.argv[1:]
tensors, meta = read(inputs)
f32 = lambda x: struct.unpack("<f", struct.pack("<f", x))[0]
dtype, (rows, cols), x = tensors["x"]
assert dtype == "F32", dtype
y, top = [], []
for t in range(rows):
    row, total = x[t * cols : (t + 1) * cols], 0.0
    for value in row:
        total = f32(total + value)
    total = f32(total + tensors["shift"][2][t])
    y.append(f32(total * float(meta["scale"])))
    top.append(row.index(max(row)))
if how == "off":
    y[1] = f32(y[1] + 0.01)
if how == "last":
    top[-1] += 1
if how == "nan":
    y[0] = math.nan
if how == "sometimes" and x[0] < 0:
    y[0] = f32(y[0] + 1)
write(outputs, meta, {"y": y, "top": top})
"#;

const BOUND: &str = "bound = { by_reference = true }";

/// An experiment with an operation `sums`, its reference run in one way and its candidate in another.
pub fn own(folder: &Path, reference: &str, candidate: &str) -> String {
    for (name, text) in [("reference.py", REFERENCE), ("candidate.py", CANDIDATE)] {
        std::fs::write(folder.join(name), format!("{FILES}{text}")).unwrap();
    }
    let (home, python) = (path(folder), python());
    format!(
        r#"
name = "own"
question = "Right?"
kind = "kernels"

[[op]]
name = "sums"
doc = "sums of rows, and where each is largest"
sizes = ["T", "C"]
scalars = {{ scale = 0.5 }}
inputs = [
    {{ name = "x", dtype = "f32", shape = ["T", "C"] }},
    {{ name = "shift", dtype = "i32", shape = ["T"], values = {{ integers = [-3, 3] }} }},
]
outputs = [
    {{ name = "y", dtype = "f32", shape = ["T"], {BOUND}, why = "C additions" }},
    {{ name = "top", dtype = "i32", shape = ["T"], equal = true, why = "an index" }},
]
reference = ["{python}", "-SE", "{home}/reference.py", "{reference}"]

[[case]]
op = "sums"
name = "small"
T = 3
C = 40

[[case]]
op = "sums"
name = "edges"
inputs = "edges"
T = 5
C = 33
scale = 2

[[command]]
op = "sums"
name = "candidate"
doc = "one addition after the other"
run = ["{python}", "-SE", "{home}/candidate.py", "{candidate}"]
{NO_VIOLATIONS}"#
    )
}

fn sweep(folder: &Path, text: &str) -> Output {
    run(&["sweep", path(&write(folder, text)), "--out", path(&folder.join("run"))])
}

/// The violations at a site of a case.
fn violations(folder: &Path, case: &str, site: &str) -> f64 {
    let all = measurements(&folder.join("run"));
    let mut all = all.iter();
    let found = all.find(|record| record["window"] == case && record["site"] == site);
    found.unwrap()["metrics"]["violations"].as_f64().unwrap()
}

#[test]
fn a_right_candidate_passes_and_wrong_ones_do_not() {
    let folder = tempfile::tempdir().unwrap();
    let output = sweep(folder.path(), &own(folder.path(), "right", "right"));
    assert_eq!(code(&output), 0, "{}{}", stdout(&output), stderr(&output));
    for (how, site, count) in [("off", "y", 1.0), ("last", "top", 1.0), ("nan", "y", 1.0)] {
        let folder = tempfile::tempdir().unwrap();
        let output = sweep(folder.path(), &own(folder.path(), "right", how));
        assert_eq!(code(&output), 100, "{how}: {}{}", stdout(&output), stderr(&output));
        for case in ["small", "edges"] {
            assert_eq!(violations(folder.path(), case, site), count, "{how}");
        }
    }
}

/// A fault that needs certain numbers is found by many draws, which say the seed that shows it.
#[test]
fn of_many_draws_the_wrong_ones_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let drawn = |how: &str, draws: &str| {
        let text = own(folder.path(), "right", how);
        text.replace("kind = \"kernels\"", &format!("kind = \"kernels\"\n{draws}"))
    };
    let output = sweep(folder.path(), &drawn("sometimes", "draws = 12"));
    let text = stdout(&output);
    assert_eq!(code(&output), 100, "{text}{}", stderr(&output));
    let wrong = violations(folder.path(), "small", "draws");
    assert!(0.0 < wrong && wrong < 12.0, "{wrong}");
    // The worst of the draws stands for the output.
    assert_eq!(violations(folder.path(), "small", "y"), 1.0);
    let both = wrong + violations(folder.path(), "edges", "draws");
    assert!(text.contains(&format!("{both} of 24 (≤ 0.")), "{text}");
    let (_, seed) = text
        .split_once(&format!("{wrong} of 12 draws are wrong, the first with seed "))
        .unwrap();
    let seed: String = seed.chars().take_while(char::is_ascii_digit).collect();
    assert!(text.contains("seed "), "{text}");
    // What is kept is the first that is wrong, and names the command that shows it alone.
    let file = write(folder.path(), &drawn("sometimes", "draws = 12"));
    let [all, one, kept] = ["all", "one", "kept"].map(|name| folder.path().join(name));
    let check = |more: &[&str]| {
        let output = run(&[&["kernels", "check", path(&file)][..], more].concat());
        assert_eq!(code(&output), 100, "{}{}", stdout(&output), stderr(&output));
    };
    check(&["--out", path(&all), "--keep-failed", path(&kept)]);
    let capsule = tensors_in(&kept.join("sums.candidate.small.safetensors"));
    let given = capsule.metadata();
    let only = "sums.candidate/local/small";
    let again = format!(
        "ulplab kernels check {} --set 'draws=1' --only {only} --seed {seed} --keep-failed DIR",
        path(&file)
    );
    assert_eq!(given["again"], again);
    check(&["--set", "draws=1", "--only", only, "--seed", &seed, "--out", path(&one)]);
    for draws in ["draws = 0", "draws = 99999999999"] {
        let output = sweep(folder.path(), &drawn("right", draws));
        assert_eq!(code(&output), 2);
        says(&stderr(&output), &format!("{draws}, expected 1 to 65536"));
    }
}

/// A bound of the file's binds as the reference's own does.
#[test]
fn a_bound_may_be_relative_and_absolute() {
    for (bound, exit) in [
        ("relative = 1e-4, absolute = 1e-4", 0),
        ("relative = 1e-9", 100),
        ("absolute = 1e-9", 100),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let text = own(folder.path(), "right", "right").replace(BOUND, &format!("bound = {{ {bound} }}"));
        let text = text.replace(
            "shape = [\"T\", \"C\"] }",
            "shape = [\"T\", \"C\"], values = { uniform = [1, 2] } }",
        );
        let output = sweep(folder.path(), &text);
        assert_eq!(code(&output), exit, "{bound}: {}{}", stdout(&output), stderr(&output));
    }
}

/// Nothing is judged by a reference that failed.
#[test]
fn a_reference_that_fails_ends_the_run() {
    for (how, why) in [
        (
            "broken",
            "exited with status 1; the end of its stderr:\n    no GPU for the reference",
        ),
        ("nan", "the reference left y[2] = NaN of finite inputs"),
        (
            "negative",
            "the reference left y.bound[0] = -1, expected a finite bound >= 0",
        ),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let output = sweep(folder.path(), &own(folder.path(), how, "right"));
        assert_eq!(code(&output), 101, "{how}: {}{}", stdout(&output), stderr(&output));
        for word in [why, "the reference failed: case 'small' of 'sums'"] {
            says(&stderr(&output), word);
        }
    }
}

/// The example of the documentation, in plain Python.
#[test]
fn the_shipped_example_passes() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let output = run(&["sweep", "experiments/own_op.toml", "--out", path(&out)]);
    assert_eq!(code(&output), 0, "{}{}", stdout(&output), stderr(&output));
    let ratios = records(&out)
        .iter()
        .filter(|line| line.contains("\"bound_ratio\""))
        .count();
    assert_eq!(ratios, 4, "a record for each case");
}

/// Inputs have the type that the case states, and can be drawn in every way there is.
#[test]
fn types_and_distributions() {
    for values in [
        "\"normal\"",
        "\"edges\"",
        "{ uniform = [-1, 3] }",
        "{ log_uniform = [1e-6, 1e3] }",
        "{ integers = [-8, 8] }",
    ] {
        let folder = tempfile::tempdir().unwrap();
        let text = own(folder.path(), "right", "right");
        let text = text.replace(
            "\"x\", dtype = \"f32\", shape = [\"T\", \"C\"]",
            &format!("\"x\", shape = [\"T\", \"C\"], values = {values}"),
        );
        let text = text
            .replace("op = \"sums\"\nname", "op = \"sums\"\ndtype = \"f32\"\nname")
            .replacen("dtype = \"f32\"\nname = \"candidate\"", "name = \"candidate\"", 1);
        let output = sweep(folder.path(), &text);
        assert_eq!(code(&output), 0, "{values}: {}{}", stdout(&output), stderr(&output));
    }
}

#[test]
fn mistakes_in_operations() {
    let folder = tempfile::tempdir().unwrap();
    let text = own(folder.path(), "right", "right");
    let cases: &[([&str; 2], &[&str])] = &[
        (
            [BOUND, "bound = {}"],
            &["operation 'sums': output 'y': bound: relative and absolute are 0"],
        ),
        ([BOUND, "bound = { absolute = inf }"], &["absolute = inf, expected"]),
        (
            [BOUND, "bound = { relative = -0.1 }"],
            &["relative = -0.1, absolute = 0, expected 0 <= relative < 1"],
        ),
        ([BOUND, "bound = { relativ = 0.1 }"], &["did you mean 'relative'?"]),
        (
            [
                "dtype = \"f32\", shape = [\"T\"], bound",
                "dtype = \"f8_e4m3\", shape = [\"T\"], bound",
            ],
            &["output 'y': F8_E4M3 is compared bit by bit only"],
        ),
        (
            [BOUND, "equal = false"],
            &["output 'y': neither equal nor bound is given"],
        ),
        (
            [BOUND, "equal = true, bound = { relative = 0.1 }"],
            &["equal and bound are both given"],
        ),
        (["why = \"an index\"", "why = \" \""], &["output 'top': why is empty"]),
        (
            [
                "dtype = \"i32\", shape = [\"T\"], equal",
                "dtype = \"int\", shape = [\"T\"], equal",
            ],
            &["dtype = 'int', expected one of f64, f32"],
        ),
        (
            ["integers = [-3, 3]", "integers = [-3, 3000000000]"],
            &["input 'shift': integers = [-3, 3000000000], expected numbers from -2147483648"],
        ),
        (
            ["values = { integers = [-3, 3] }", "values = \"normal\""],
            &["values of an integer type are { integers"],
        ),
        (["name = \"top\"", "name = \"x\""], &["the name 'x' is taken"]),
        (
            ["name = \"sums\"", "name = \"rope\""],
            &["operation 'rope': another operation has that name"],
        ),
        (
            ["shape = [\"T\"], values", "shape = [\"R\"], values"],
            &["case 'small' of 'sums': shape of 'shift'", "R"],
        ),
        (
            ["C = 40", "C = 0"],
            &["case 'small' of 'sums': C = 0, expected 1 to 2147483647"],
        ),
        (["C = 40", "C = \"40\""], &["C = '40', expected a whole number"]),
        (["C = 40", ""], &["size C is missing"]),
        (
            ["T = 3\nC = 40", "T = 2000000000\nC = 2000000000"],
            &["expected at most 4294967296 elements"],
        ),
        (
            ["scale = 2", "sale = 2"],
            &["case 'edges' of 'sums': unknown key 'sale'; did you mean 'scale'?; it may set T, C, scale"],
        ),
        (["scale = 2", "scale = nan"], &["scale = NaN, expected a number"]),
        (
            ["name = \"edges\"", "name = \"small\""],
            &["another case has that name"],
        ),
        (
            ["inputs = \"edges\"", "inputs = \"edge\""],
            &["inputs = 'edge', expected random or edges"],
        ),
        (
            [
                "op = \"sums\"\nname = \"candidate\"",
                "op = \"sum\"\nname = \"candidate\"",
            ],
            &["'sum.candidate': no operation 'sum'; did you mean 'sums'?"],
        ),
        (
            ["op = \"sums\"\nname = \"edges\"", "op = \"sum\"\nname = \"edges\""],
            &["case 'edges': no operation 'sum'; did you mean 'sums'?"],
        ),
        (
            ["reference = [", "reference = []\n#"],
            &["operation 'sums': reference is empty"],
        ),
        (
            ["kind = \"kernels\"", "kind = \"kernels\"\ncases = [\"smal\"]"],
            &["cases: 'smal' matches no case", "did you mean 'small'?"],
        ),
    ];
    for (change, words) in cases {
        refuses(&text, *change, words);
    }
    let none = text.replace("[[case]]", "[[other]]");
    refuses(
        &none,
        ["[[other]]", "[[others]]"],
        &["unknown fields `other`, `others`"],
    );
}

/// An operation and cases of an experiment file are described, and their inputs are to be had as programs read them.
#[test]
fn own_operations_and_cases_are_described_and_dumped() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path();
    let file = write(home, &own(home, "right", "right"));
    let output = run(&["kernels", "describe", "sums", "--experiment", path(&file)]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    for line in [
        "shift   in        I32 [T]",
        "edges",
        "bound that the reference says",
        "scale",
        "C additions",
    ] {
        assert!(
            stdout(&output)
                .split_whitespace()
                .collect::<Vec<_>>()
                .join(" ")
                .contains(&line.split_whitespace().collect::<Vec<_>>().join(" ")),
            "'{line}' is not in: {}",
            stdout(&output)
        );
    }
    let to = home.join("dumped");
    let output = run(&[
        "kernels",
        "dump",
        "sums",
        "small",
        path(&to),
        "--experiment",
        path(&file),
    ]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    // A program takes the file as it is.
    let candidate = home.join("candidate.py");
    let inputs = to.join("inputs.safetensors");
    let got = home.join("got.safetensors");
    let ran = Command::new("python3")
        .args([path(&candidate), "right", path(&inputs), path(&got)])
        .status();
    assert!(ran.unwrap().success() && got.is_file());
    for name in ["want", "bound"] {
        assert!(to.join(format!("{name}.safetensors")).is_file());
    }
    for (args, hint) in [
        (
            &["kernels", "describe", "sums"][..],
            "no operation 'sums'; `ulplab kernels list` lists the shipped operations; give --experiment FILE for your own",
        ),
        (
            &["kernels", "dump", "rmsnorm", "mine", path(&to)],
            "`ulplab kernels describe rmsnorm` lists its cases; give --experiment FILE for your own",
        ),
        (
            &["kernels", "describe", "rmsnorm.simple"],
            "'rmsnorm.simple' is a kernel of the operation 'rmsnorm'",
        ),
        (
            &[
                "kernels",
                "dump",
                "sums",
                "smal",
                path(&to),
                "--experiment",
                path(&file),
            ],
            "sums has no case 'smal'; did you mean 'small'?",
        ),
        (
            &["kernels", "describe", "rope", "--experiment", "experiments/smoke.toml"],
            "kind = \"model\" has no operations",
        ),
    ] {
        let output = run(args);
        assert_eq!(code(&output), 2, "{args:?}");
        says(&stderr(&output), hint);
    }
    // A shipped operation with a case of the user's.
    let mine = "name = \"c\"\nquestion = \"?\"\nkind = \"kernels\"\nkernels = [\"rmsnorm.*\"]\n[[case]]\nop = \"rmsnorm\"\n\
                name = \"mine\"\ndtype = \"bf16\"\nT = 3\nC = 40\n";
    let file = write(home, mine);
    let output = run(&["kernels", "describe", "rmsnorm", "--experiment", path(&file)]);
    assert!(
        code(&output) == 0 && stdout(&output).contains("mine"),
        "{}",
        stderr(&output)
    );
    let output = run(&[
        "kernels",
        "dump",
        "rmsnorm",
        "mine",
        path(&to),
        "--experiment",
        path(&file),
    ]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
}
