//! Files that programs are made of, and slips of experiment files with programs.

use super::*;

/// Copies its input by way of a module of its own.
const PROGRAM: &str = r#"
import json, sys
from helpers.copy import copied

inputs, outputs = sys.argv[1:]
with open(inputs, "rb") as file:
    header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    data = file.read()
text = json.dumps({"y": header["x"]}).encode()
with open(outputs, "wb") as file:
    file.write(len(text).to_bytes(8, "little") + text + copied(data))
"#;

/// An experiment of two cases with that program, and files that are watched.
fn experiment(folder: &Path, watch: &str) -> String {
    std::fs::create_dir_all(folder.join("helpers")).unwrap();
    std::fs::write(folder.join("program.py"), PROGRAM).unwrap();
    std::fs::write(folder.join("helpers/copy.py"), "def copied(data):\n    return data\n").unwrap();
    let case = |name: &str| {
        format!("[[case]]\nop = \"state_transpose\"\nname = \"{name}\"\ndtype = \"f32\"\nB = 2\nH = 3\nK = 1\nV = 1\n")
    };
    format!(
        r#"
name = "watch"
question = "Right?"
kind = "kernels"
cases = ["one", "two"]
{}{}
[[command]]
op = "state_transpose"
name = "copy"
doc = ""
run = ["python3", "{}"]
{watch}
{NO_VIOLATIONS}"#,
        case("one"),
        case("two"),
        path(&folder.join("program.py"))
    )
}

#[test]
fn an_edit_of_a_watched_file_is_another_run() {
    for (watch, exit) in [("watch = [\"helpers/**\", \"*.py\"]", 2), ("", 0)] {
        let folder = tempfile::tempdir().unwrap();
        let file = write(folder.path(), &experiment(folder.path(), watch));
        let out = folder.path().join("run");
        let partition = |partition: &str| run(&["sweep", path(&file), "--out", path(&out), "--partition", partition]);
        let output = partition("slice:1/2");
        assert_eq!(code(&output), 0, "{}{}", stdout(&output), stderr(&output));
        let helper = folder.path().join("helpers/copy.py");
        std::fs::write(&helper, "def copied(data):\n    return data[:]\n").unwrap();
        let output = partition("slice:2/2");
        assert_eq!(code(&output), exit, "{}{}", stdout(&output), stderr(&output));
        let why = "holds a run of another data (watched helpers/copy.py changed); it cannot be continued";
        assert_eq!(stderr(&output).contains(why), exit == 2, "{}", stderr(&output));
    }
}

#[test]
fn a_partition_may_be_an_operation() {
    let folder = tempfile::tempdir().unwrap();
    let file = write(folder.path(), &experiment(folder.path(), ""));
    let out = folder.path().join("run");
    let partition = |partition: &str| run(&["sweep", path(&file), "--out", path(&out), "--partition", partition]);
    let output = partition("op:state_transposed");
    assert_eq!(code(&output), 2, "{}", stdout(&output));
    let why = "--partition op:state_transposed: there is no cell of 'state_transposed'";
    assert!(stderr(&output).contains(why), "{}", stderr(&output));
    assert_eq!(code(&run(&["gate", path(&out)])), 103, "nothing was run");
    let output = partition("op:state_transpose:1/2");
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert_eq!(code(&run(&["gate", path(&out)])), 103, "the other half was not run");
    let output = partition("op:state_transpose:2/2");
    assert_eq!(code(&output), 0, "{}{}", stdout(&output), stderr(&output));
    assert!(
        stdout(&output).contains("PASS"),
        "it is all there is: {}",
        stdout(&output)
    );
    for wrong in ["op:", "op", "slice:0/2", "slice:3/2"] {
        let output = partition(wrong);
        assert_eq!(code(&output), 2, "{wrong}");
        assert!(
            stderr(&output).contains("expected slice:M/N or hash:M/N with 1 <= M <= N"),
            "{}",
            stderr(&output)
        );
    }
}

#[test]
fn slips_are_told_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let text = experiment(folder.path(), "watch = [\"program.py\"]");
    // `refuses` writes the experiment elsewhere: what is watched is looked for beside it.
    let file = |name: &str| format!("watch = [\"{}/{name}\"]", path(folder.path()));
    let text = text.replace("watch = [\"program.py\"]", &file("program.py"));
    for ([from, to], words) in [
        (
            [file("program.py"), file("*.cu")],
            "command 'state_transpose.copy': watch: ",
        ),
        ([file("program.py"), file("program.cu")], "matches no file below"),
        (
            ["\"python3\"".into(), "\"/nonexist\"".into()],
            "cannot start '/nonexist': there is no file that can be run",
        ),
        (
            ["\"python3\"".into(), "\"no-such-program\"".into()],
            "cannot start 'no-such-program': no folder of $PATH has it",
        ),
        (
            ["why = \"each".into(), "why = \"\" # \"".into()],
            "gate on violations: why is empty",
        ),
        (
            ["name = \"copy\"".into(), "name = \"c.d\"".into()],
            "'c.d' is not a name: letters, digits, '_' and '-' only",
        ),
        (["name = \"one\"".into(), "name = \"\"".into()], "its name is empty"),
    ] {
        refuses(&text, [&from, &to], &[words]);
    }
}

/// A file of kernels of an operation that ulplab does not have says what to do instead.
#[test]
fn kernels_of_no_operation() {
    let folder = tempfile::tempdir().unwrap();
    let kernels = folder.path().join("kernels");
    std::fs::create_dir(&kernels).unwrap();
    let header =
        "/*\n[[variant]]\nname = \"a\"\ndoc = \"x\"\n[[variant.launch]]\nentry = \"e\"\ngrid = [1]\nblock = [1]\n*/\n";
    std::fs::write(kernels.join("myop.cu"), header).unwrap();
    let file = write(
        folder.path(),
        "name = \"k\"\nquestion = \"?\"\nkind = \"kernels\"\nkernels = [\"**\"]\n",
    );
    let output = ulplab(&["sweep", path(&file), "--dry-run"])
        .env("ULPLAB_KERNELS", &kernels)
        .output()
        .unwrap();
    assert_eq!(code(&output), 2);
    for word in [
        "'myop.a': no operation 'myop'",
        "an [[op]] with programs",
        "Your own operation",
    ] {
        says(&stderr(&output), word);
    }
}

/// Mistakes of a header are told with the line of their key; one broken file stops no list.
#[test]
fn mistakes_of_headers_are_told_with_their_lines() {
    let folder = tempfile::tempdir().unwrap();
    let kernels = folder.path().join("kernels");
    std::fs::create_dir(&kernels).unwrap();
    let good = "/*\n[[variant]]\nname = \"fine\"\ndoc = \"x\"\n[[variant.launch]]\nentry = \"e\"\ngrid = [1]\nblock = [1]\n*/\n";
    std::fs::write(kernels.join("rope.cu"), good).unwrap();
    let list = || {
        let mut command = ulplab(&["kernels", "list", "rope"]);
        command.env("ULPLAB_KERNELS", &kernels).output().unwrap()
    };
    assert_eq!(code(&list()), 0, "{}", stderr(&list()));
    for (change, words) in [
        (["grid = [1]", "grdi = [1]"], "line 7: unknown field `grdi`"),
        (
            ["doc = \"x\"", "doc = \"x\"\ndok = \"x\""],
            "line 5: unknown field `dok`, expected one of `name`, `doc`",
        ),
        (["doc = \"x\"\n", ""], "header, line 2: missing field `doc`"),
        (
            ["[[variant.launch]]\nentry = \"e\"\ngrid = [1]\nblock = [1]\n", ""],
            "header: variant 'fine' has no launches; expected [[variant.launch]]",
        ),
    ] {
        let text = good.replace(change[0], change[1]);
        assert_ne!(text, good);
        std::fs::write(kernels.join("rmsnorm.cu"), text).unwrap();
        let output = list();
        assert_eq!(code(&output), 2, "{}", stdout(&output));
        says(&stderr(&output), words);
        assert!(stdout(&output).contains("rope.fine"), "{}", stdout(&output));
        let mut gate = ulplab(&["kernels", "attest", "--check"]);
        let output = gate.env("ULPLAB_KERNELS", &kernels).output().unwrap();
        assert_eq!(code(&output), 2, "{}{}", stdout(&output), stderr(&output));
        assert!(
            stderr(&output).contains(words) && stdout(&output).contains("FAIL"),
            "{}",
            stdout(&output)
        );
    }
}
