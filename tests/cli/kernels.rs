//! Kernels, as far as no GPU is needed.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use ulplab::backend::cuda::Source;

use super::*;

/// A probe that nothing was selected for has found nothing.
#[test]
fn a_probe_must_match_an_instruction() {
    let output = run(&["kernels", "probe", "--only", "e4m3.n65.*"]);
    assert_eq!(code(&output), 4);
    let error = stderr(&output);
    assert!(
        error.contains("'e4m3.n65.*' matches no instruction; did you mean 'e4m3.n64.*'?"),
        "{error}"
    );
}

#[test]
fn a_fault_must_exist() {
    let plant = |words: &[&str]| run(&[&["kernels", "mutants", "--dry-run"], words].concat());
    let output = plant(&["rope.cos_sin_swaped"]);
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(error.contains("did you mean 'rope.cos_sin_swapped'?"), "{error}");
    let cells = |words: &[&str]| {
        let output = plant(words);
        assert_eq!(code(&output), 0, "{words:?}: {}", stderr(&output));
        stdout(&output).lines().count()
    };
    let all = cells(&[]);
    assert_eq!(cells(&["rope.cos_sin_swapped"]), all);
    assert_eq!(cells(&["experiments/kernels.toml"]), all);
    assert!(cells(&["rope.cos_sin_swapped", "experiments/outside.toml"]) < all);
    let output = plant(&["kernels", "rope.cos_sin_swapped"]);
    assert_eq!(code(&output), 2);
    assert!(
        stderr(&output).contains("expected OP.MUTANT before the experiment"),
        "{}",
        stderr(&output)
    );
}

/// What compiling RMSNorm alone says after an edit of its file; nothing where there is no compiler.
fn compiled(from: &str, to: &str, more: &[&str]) -> Option<(i32, String)> {
    let folder = tempfile::tempdir().unwrap();
    copy_folder(Path::new("kernels"), folder.path());
    let file = folder.path().join("rmsnorm.cu");
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.contains(from), "no '{from}'");
    std::fs::write(&file, text.replacen(from, to, 1)).unwrap();
    if ulplab::backend::cuda::Toolkit::open().is_err() {
        eprintln!("there is no NVRTC: nothing is compiled");
        return None;
    }
    let mut command = assert_cmd::Command::new(env!("CARGO_BIN_EXE_ulplab"));
    let output = command
        .args(["kernels", "check", "--device", "compile"])
        .args(["--only", "rmsnorm.*/local/*.random.*"])
        .args(more)
        .env("ULPLAB_KERNELS", folder.path())
        .output()
        .unwrap();
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    Some((output.status.code().unwrap(), said.concat()))
}

#[test]
fn only_what_is_selected_is_compiled() {
    let Some((code, said)) = compiled("/*", "/*", &[]) else {
        return;
    };
    // Nothing was run and not everything was selected: no PASS, and no exit code of one.
    assert!(
        code == 4 && said.contains("\nATTESTED: 1 of 1 files") && !said.contains("PASS"),
        "{code} {said}"
    );
    assert!(said.contains("the others were not selected"), "{said}");
    assert!(said.contains("rmsnorm_") && said.contains("registers"), "{said}");
    assert!(!said.contains("rope_") && !said.contains("quantize"), "{said}");
    let Some((_, said)) = compiled("/*", "/*", &["--json"]) else {
        return;
    };
    let kernels = said
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let kernels: Vec<_> = kernels.filter(|line| line["type"] == "kernel").collect();
    assert!(!kernels.is_empty(), "{said}");
    for kernel in kernels {
        assert!(kernel["compiled"]["registers"].as_u64().unwrap() > 0, "{kernel}");
        assert!(
            kernel["compiled"]["parameters"].as_array().unwrap().len() > 3,
            "{kernel}"
        );
    }
}

#[test]
fn mistakes_of_a_header_are_found_without_a_gpu() {
    for (from, to, expected) in [
        (
            "entry = \"rmsnorm_simple",
            "entry = \"rmsnorm_simpel",
            "did you mean 'rmsnorm_simple",
        ),
        (
            "block = [\"ceil(C, 512) * 32\"]\nargs = [\"x\", \"weight\"",
            "block = [\"ceil(C, 512) * 32\"]\nargs = [\"x\", \"wieght\"",
            "'wieght' is no buffer, scratch, scalar or size of the operation; did you mean 'weight'?",
        ),
        (
            "block = [\"ceil(C, 512) * 32\"]\nargs = [\"x\", ",
            "block = [\"ceil(C, 512) * 32\"]\nargs = [",
            "arguments, and",
        ),
        ("grid = [\"", "grid = [\"TT + ", "no size 'TT'"),
        ("block = [128]", "block = [2048]", "a block has 2048 threads"),
    ] {
        let Some((code, said)) = compiled(from, to, &[]) else {
            return;
        };
        assert_eq!(code, 2, "{to}: {said}");
        assert!(said.contains(expected) && said.contains("rmsnorm.cu"), "{to}: {said}");
    }
}

/// A key that a header does not have is named with its line and the key that was meant; nothing is compiled for it.
#[test]
fn a_header_with_an_unknown_key_names_its_line() {
    let folder = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string("kernels/rmsnorm.cu").unwrap();
    let file = folder.path().join("rmsnorm.cu");
    std::fs::write(&file, text.replacen("block = [128]", "blok = [128]", 1)).unwrap();
    let mut command = assert_cmd::Command::new(env!("CARGO_BIN_EXE_ulplab"));
    let output = command
        .args(["kernels", "list", "rmsnorm"])
        .env("ULPLAB_KERNELS", folder.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        error.contains("rmsnorm.cu: header, line 9: unknown field `blok`"),
        "{error}"
    );
    assert!(error.contains("did you mean 'block'?"), "{error}");
}

/// The descriptions of all operations with kernels.
static DESCRIBED: LazyLock<BTreeMap<&str, String>> = LazyLock::new(|| {
    let described = |op: &&dyn ulplab::ops::Op| {
        let output = run(&["kernels", "describe", op.name()]);
        assert_eq!(code(&output), 0, "{}: {}", op.name(), stderr(&output));
        (op.name(), stdout(&output))
    };
    ulplab::ops::OPS.iter().map(described).collect()
});

/// Every operation, output and judgement is listed, in lines that fit; `list kernels` says the same. A text takes fewer cases than JSON and
/// than a description: the rules of all are the same.
#[test]
fn the_list_names_every_operation_and_how_its_outputs_are_judged() {
    let output = run(&["kernels", "list"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let short = stdout(&output);
    assert_eq!(stdout(&run(&["list", "kernels"])), short);
    let output = run(&["kernels", "list", "--all"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let text = stdout(&output);
    for line in text.lines() {
        assert!(line.chars().count() <= 100, "too long: {line}");
    }
    let output = run(&["kernels", "list", "--json"]);
    let all: Vec<serde_json::Value> = serde_json::from_slice(&output.stdout).unwrap();
    let rules = ["equal", "within", "rms", "admissible", "finite", "custom"];
    for op in ulplab::ops::OPS.iter() {
        let listed = all.iter().find(|listed| listed["op"] == op.name());
        let listed = listed.unwrap_or_else(|| panic!("{} is not listed", op.name()));
        assert!(text.contains(&format!("{}: ", op.name())), "{}", op.name());
        let count = |key: &str| listed[key].as_array().unwrap().len().to_string();
        let mut lines = short.lines().filter(|line| line.split(' ').next() == Some(op.name()));
        let (line, other) = (lines.next().unwrap_or_default(), lines.next());
        let words: Vec<&str> = line.split_whitespace().collect();
        assert!(other.is_none() && line.ends_with(&format!("  {}", op.doc())), "{line}");
        assert_eq!(words[1..3], [&count("variants")[..], &count("cases")], "{line}");
        assert!(
            words[3].starts_with(char::is_alphabetic),
            "nothing is said of how it is judged: {line}"
        );
        let known = [
            ("equal", "bytes"),
            ("within", "bounds"),
            ("rms", "mean square"),
            ("admissible", "admissible codes"),
            ("finite", "finiteness"),
            ("custom", "own rule"),
        ];
        let of_rule = |rule: &str| {
            listed["outputs"]
                .as_array()
                .unwrap()
                .iter()
                .any(|output| output["rule"] == rule)
        };
        let judged_by: Vec<&str> = known
            .iter()
            .filter(|(rule, _)| of_rule(rule))
            .map(|(_, word)| *word)
            .collect();
        assert!(
            line.contains(&format!(" {}  ", judged_by.join(", "))),
            "{line}: {judged_by:?}"
        );
        let outputs = listed["outputs"].as_array().unwrap();
        assert!(!outputs.is_empty(), "{} has no outputs", op.name());
        let described = &DESCRIBED[op.name()];
        let (_, judgements) = described.split_once("\nhow outputs are judged\n").unwrap();
        assert_eq!(
            judgements.matches("\n    because: ").count(),
            outputs.len(),
            "{described}"
        );
        for output in outputs {
            let word = |key: &str| output[key].as_str();
            let such_as = word("such_as").map_or(String::new(), |case| format!(" (e.g. {case})"));
            let [name, how, why] = ["output", "how", "why"].map(|key| word(key).unwrap());
            says(described, &format!("\n  {name}{such_as}: {how}\n    because: {why}\n"));
            assert!(rules.contains(&output["rule"].as_str().unwrap()), "{output}");
            assert!(
                text.contains(&format!("\n    {} ", output["output"].as_str().unwrap())),
                "{output}"
            );
        }
        let named = listed["variants"].as_array().unwrap().iter();
        for one in named.chain(listed["mutants"].as_array().unwrap()) {
            let name = one["name"].as_str().unwrap();
            assert!(text.contains(&format!("    {name} ")), "{name}");
        }
        assert_eq!(listed["cases"].as_array().unwrap().len(), op.cases().len());
    }
    // A line for each operation, a heading, and where more is said.
    assert!(short.lines().count() <= all.len() + 3, "{short}");
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    // Sums of 4e17 terms there are none.
    assert!(!words.contains("1 term of") && words.contains("a missing term of any sum"));
    for rule in [
        "equal bytes",
        "each element within its own bound",
        "root-mean-square error of each group",
        "codes and scales that",
        "custom: ",
    ] {
        assert!(words.contains(rule), "nothing is judged by: {rule}");
    }
}

#[test]
fn one_operation_is_listed_with_its_cases() {
    let output = run(&["kernels", "list", "rope", "--cases"]);
    let text = stdout(&output);
    assert!(
        text.starts_with("rope: ") && text.contains("bf16.forward.t16384"),
        "{text}"
    );
    assert!(!text.contains("rmsnorm"), "{text}");
    let output = run(&["kernels", "list", "ropes"]);
    assert_eq!(code(&output), 2);
    assert!(
        stderr(&output).contains("no operation 'ropes'; did you mean 'rope'?"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn every_subcommand_has_help_with_examples() {
    for what in [
        "list", "check", "time", "compare", "trace", "mutants", "power", "attest",
    ] {
        let output = run(&["kernels", what, "--help"]);
        assert_eq!(code(&output), 0, "{what}");
        let help = stdout(&output);
        assert!(
            help.contains(&format!("Examples:\n  ulplab kernels {what}")),
            "{what}: {help}"
        );
    }
    let sweep = stdout(&run(&["sweep", "--help"]));
    for option in [
        "--device",
        "--timed",
        "--mutant",
        "--attest",
        "--peers",
        "--keep-failed",
    ] {
        assert!(!sweep.contains(option), "{option}");
    }
}

/// A kernel includes headers of folders below its own; they name others from that folder or from where they are. Each is read
/// once, and faults may be planted in all.
#[test]
fn headers_lie_in_folders() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["lib", "rope"] {
        std::fs::create_dir(folder.path().join(name)).unwrap();
    }
    let kernel = "/*\n[[variant]]\nname = \"a\"\ndoc = \"x\"\n[[variant.launch]]\nentry = \"e\"\ngrid = [1]\nblock = [1]\n\
                  [[mutant]]\nname = \"deep\"\ndoc = \"x\"\n*/\n#include \"lib/math.cuh\"\n#include \"rope/turn.cuh\"\n";
    for (name, text) in [
        ("rope.cu", kernel),
        (
            "lib/math.cuh",
            "#include \"types.cuh\"\n#include \"../rope/turn.cuh\"\n",
        ),
        ("lib/types.cuh", "#include \"lib/math.cuh\"\n"),
        (
            "rope/turn.cuh",
            "#include \"lib/math.cuh\"\n#include \"../lib/types.cuh\"\n#ifdef MUTANT_DEEP\n#endif\n",
        ),
    ] {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    let source = Source::read(&folder.path().join("rope.cu"), &ulplab::ops::COMPOSITIONS).unwrap();
    let names: Vec<&str> = source.includes.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["lib/math.cuh", "lib/types.cuh", "rope/turn.cuh"]);
    let digest = source.digest();
    std::fs::write(folder.path().join("lib/types.cuh"), "// changed\n").unwrap();
    assert_ne!(
        Source::read(&folder.path().join("rope.cu"), &ulplab::ops::COMPOSITIONS)
            .unwrap()
            .digest(),
        digest
    );
}

/// What a description says of sizes can be used: expressions over sizes that have names, or a range. Also of this kind: two block lengths by
/// format, records and pages, scales of a whole stack of experts, operations that are described from a single case.
#[test]
fn shapes_are_expressions_over_sizes() {
    let of = |op: &str| &DESCRIBED[op];
    for (op, words) in [
        (
            "fp8_gemm",
            &[
                "x_scale  in        F32 [B, ceil(K / 128)]",
                "w_scale  in        F32 [ceil(N / 128), ceil(K / 128)]",
            ][..],
        ),
        ("fp4_gemm", &["U8 [N, ceil(K / 16 or 32)]"]),
        (
            "record_attention",
            &[" to ", "depends on the case; `ulplab kernels dump record_attention`"],
        ),
        (
            "rmsnorm",
            &[
                "sizes  T C\n       S: numbers that kernels are launched with",
                "key    dtype: type of the activations: bf16, f32",
            ],
        ),
    ] {
        let text = of(op);
        for word in words {
            assert!(text.contains(word), "'{word}' is not in:\n{text}");
        }
    }
    assert!(!of("rmsnorm").contains("special"));
    for op in ulplab::ops::OPS.iter() {
        let text = of(op.name());
        let names: Vec<String> = op.cases().iter().map(|case| format!("in {}", case.name)).collect();
        for line in text
            .lines()
            .skip_while(|line| *line != "buffers")
            .take_while(|line| !line.starts_with("how"))
        {
            let shape = line.split(" (e.g.").next().unwrap();
            assert!(!names.iter().any(|name| shape.contains(name)), "{}: {line}", op.name());
            // A key has a word before its values.
            if let Some(key) = line.strip_prefix("key    ") {
                assert_eq!(key.split(": ").count(), 3, "{}: {line}", op.name());
            }
        }
    }
}

/// Sites stand below the models that have them, once each; of one model there are those that it has.
#[test]
fn sites_are_listed_by_family_and_by_model() {
    let all = stdout(&run(&["list", "sites"]));
    let mut here: Vec<&str> = Vec::new();
    let mut families = 0;
    for line in all.lines().filter(|line| !line.is_empty()) {
        match line.strip_prefix("  ") {
            Some(row) => {
                let name = row.split_whitespace().next().unwrap();
                assert!(!here.contains(&name), "'{name}' twice");
                here.push(name);
            }
            None => {
                assert!(line.contains("model_type"), "{line}");
                here.clear();
                families += 1;
            }
        }
    }
    assert_eq!(families, reference::paths::PATHS.len());
    let of = |model: &str| {
        let output = run(&["list", "sites", "--model", model]);
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        stdout(&output)
    };
    let dense = of("qwen3-mini");
    assert!(
        dense.contains("layers.*.attention.kv.key ") && dense.contains("layers.*.mlp.hidden "),
        "{dense}"
    );
    assert!(
        !dense.contains("experts.") && !dense.contains("indexer") && !dense.contains("router."),
        "{dense}"
    );
    assert_eq!(of("datasets/qwen3-mini"), dense);
    let sparse = of("dsv4-mini");
    assert!(
        sparse.contains("layers.*.attention.indexer.topk ") && sparse.contains("; in layers "),
        "{sparse}"
    );
    for (args, why) in [
        (&["list", "sites", "--model", "none"][..], "no data set 'none'"),
        (
            &["list", "formats", "--model", "qwen3-mini"],
            "--model is for `ulplab list sites`",
        ),
    ] {
        let output = run(args);
        assert_eq!(code(&output), 2, "{args:?}");
        assert!(stderr(&output).contains(why), "{}", stderr(&output));
    }
}
