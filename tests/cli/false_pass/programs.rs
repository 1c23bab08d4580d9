//! Programs that must not pass: they end well and leave nothing, less, more, or something else than the outputs of the case. Also of this
//! kind: files of other libraries, programs that serve several problems, larger outputs.

use std::fmt::Write as _;

use super::*;
use crate::own_ops::{CANDIDATE, FILES, own};

const RIGHT: &str = r#"write(outputs, meta, {"y": y, "top": top})"#;

/// What a program does in the place of writing its outputs, the check that would have let it pass, and what is said of it.
#[rustfmt::skip]
const PROGRAMS: &[(&str, &str, &str, &str)] = &[
    ("nothing", "the exit code", "pass", "left no outputs.safetensors"),
    ("says_pass", "its output", "print('PASS: 2 of 2')", "left no outputs.safetensors"),
    ("empty", "that there is a file", "open(outputs, 'wb').close()", "left no safetensors"),
    ("text", "that there is a file", "open(outputs, 'w').write('PASS')", "left no safetensors"),
    ("folder", "that there is a file", "import os; os.mkdir(outputs)", "left what cannot be read"),
    ("elsewhere", "the exit code", "write(outputs + '.tmp', meta, {'y': y, 'top': top})", "left no outputs.safetensors"),
    ("inputs", "that there is a file", "import os; os.symlink(inputs, outputs)", "left 'x', which is no output"),
    ("only_y", "the outputs that are there", "some = ['y']", "left no output 'top'"),
    ("only_top", "the outputs that are there", "some = ['top']", "left no output 'y'"),
    ("neither", "the outputs that are there", "some = []", "left no output"),
    ("one_more", "the outputs that are wanted", "more = {'z': ('F32', [1], [1.0])}", "left 'z', which is no output"),
    ("status", "the outputs", "RIGHT; sys.exit(1)", "exited with status 1"),
    ("signal", "the outputs", "RIGHT; import os; os.kill(os.getpid(), 9)", "ended by signal 9"),
    ("raises", "the outputs", "RIGHT; raise RuntimeError('late')", "exited with status 1"),
    ("f64", "the numbers", "kinds = {'y': 'F64'}", "left 'y' as F64 [3], expected F32 [3]"),
    ("i32", "the numbers", "kinds = {'y': 'I32'}; y = [int(v) for v in y]", "left 'y' as I32 [3], expected F32 [3]"),
    ("top_f32", "the numbers", "kinds = {'top': 'F32'}", "left 'top' as F32 [3], expected I32 [3]"),
    ("column", "as many elements", "shapes = {'y': [3, 1]}", "left 'y' as F32 [3, 1], expected F32 [3]"),
    ("row", "as many elements", "shapes = {'y': [1, 3]}", "left 'y' as F32 [1, 3], expected F32 [3]"),
    ("less", "the shorter of both", "shapes = {'y': [2]}; y = y[:2]", "left 'y' as F32 [2], expected F32 [3]"),
    ("more", "the shorter of both", "shapes = {'y': [4]}; y = y + [0.0]", "left 'y' as F32 [4], expected F32 [3]"),
    ("none", "all() of nothing", "shapes = {'y': [0]}; y = []", "left 'y' as F32 [0], expected F32 [3]"),
    ("cut", "the bytes that are there", "bytes_ = lambda raw: raw[:-4]", "left no safetensors"),
    ("longer", "the bytes that are wanted", "bytes_ = lambda raw: raw + b'1234'", "left no safetensors"),
    ("kind", "the size of elements", "bytes_ = lambda raw: raw.replace(b'F32', b'F33')", "left no safetensors"),
    ("shared", "the bytes that are there", "bytes_ = lambda raw: raw.replace(b'[12, 24]', b'[0, 12] ')", "left no safetensors"),
    ("nan", "a comparison that is False", "y = [math.nan] * rows", ""),
    ("infinite", "a ratio that is NaN", "y = [math.inf] * rows", ""),
    ("one_nan", "max() of the rest", "y[1] = math.nan", ""),
    ("zeros", "finite numbers", "y = [0.0] * rows", ""),
    ("tail", "all but the last row", "y[-1] = 0.0", ""),
    ("gain", "a cosine", "y = [1.001 * v for v in y]", ""),
    ("sign", "magnitudes", "y = [-v for v in y]", ""),
    ("turned", "a sum over rows", "y = y[1:] + y[:1]", ""),
    ("swapped", "sets of outputs", "y, top = [float(t) for t in top], [int(v) for v in y]", ""),
    ("below", "an index", "top = [-1] * rows", ""),
    ("beyond", "an index", "top = [t + 40 for t in top]", ""),
    ("next", "near enough", "top = [t + 1 for t in top]", ""),
    ("later", "the first call", "import os; there = os.path.exists(SEEN); open(SEEN, 'w').close(); y[0] += 9.0 * there", ""),
    ("at_first", "the last call", "import os; there = os.path.exists(SEEN); open(SEEN, 'w').close(); y[0] += 9.0 * (not there)", ""),
    ];

/// Writes what the lines before say, or all that is right.
const WRITES: &str = r#"
outs = [dict(one) for one in json.loads(meta["outputs"]) if one["name"] in some]
for one in outs:
    one["dtype"] = kinds.get(one["name"], one["dtype"])
    one["shape"] = shapes.get(one["name"], one["shape"])
outs += [{"name": name, "dtype": kind, "shape": shape} for name, (kind, shape, _) in more.items()]
values = {"y": y, "top": top, **{name: value for name, (_, _, value) in more.items()}}
write(outputs, {"outputs": json.dumps(outs)}, values)
raw = open(outputs, "rb").read()
open(outputs, "wb").write(bytes_(raw))
"#;

#[test]
fn programs_that_must_not_pass() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path();
    let text = own(home, "right", "right");
    let at = |words: &str| text.find(words).unwrap_or_else(|| panic!("no '{words}'"));
    // One case, and a program for each row beside the right one.
    let (edges, command, gate) = (
        at("[[case]]\nop = \"sums\"\nname = \"edges\""),
        at("[[command]]"),
        at("[[gate]]"),
    );
    let (head, right, end) = (&text[..edges], &text[command..gate], &text[gate..]);
    let mut all = format!("{head}{right}");
    for (name, _, code, _) in PROGRAMS {
        let seen = home.join(format!("{name}.seen"));
        let code = code
            .replace("RIGHT", RIGHT)
            .replace("SEEN", &format!("{:?}", path(&seen)));
        let numbers = ["some", "more", "kinds", "shapes", "bytes_", "y", "top"];
        let changes = numbers
            .iter()
            .any(|word| code.split(['=', ' ', '[', ',']).any(|part| part == *word));
        let before = "some, more, kinds, shapes, bytes_ = ['y', 'top'], {}, {}, {}, bytes\n";
        let script = match changes && !code.contains("write(") {
            true => CANDIDATE.replace(RIGHT, &format!("{before}{code}{WRITES}")),
            false => CANDIDATE.replace(RIGHT, &code),
        };
        std::fs::write(home.join(format!("{name}.py")), format!("{FILES}{script}")).unwrap();
        let one = right.replace("candidate.py", &format!("{name}.py"));
        all += &one.replace("name = \"candidate\"", &format!("name = \"{name}\""));
    }
    all += end;
    let out = home.join("run");
    let output = run(&["sweep", path(&write(home, &all)), "--out", path(&out), "--json"]);
    assert_eq!(code(&output), 100, "{}{}", stdout(&output), stderr(&output));
    let lines = stdout(&output);
    let verdicts: Vec<serde_json::Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |name: &str| {
        verdicts
            .iter()
            .find(|verdict| verdict["recipe"] == format!("sums.{name}"))
    };
    assert_eq!(of("candidate").unwrap()["status"], "pass", "{lines}");
    let mut wrong = String::new();
    for (name, instead, _, words) in PROGRAMS {
        let verdict = of(name)
            .unwrap_or_else(|| panic!("no verdict of {name}: {lines}"))
            .to_string();
        if !verdict.contains("\"status\":\"fail\"") || !verdict.contains(words) {
            writeln!(wrong, "{name} ({instead}): '{words}' is not in {verdict}").unwrap();
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}
