//! Kernels, as far as no GPU is needed.

use ulplab::backend::cuda::Source;
use ulplab::backend::cuda::toolkit::FLAGS;
use ulplab::ops::{digest, find};
use ulplab::studies::kernels::attest::{Attestation, VariantResult, VerifiedFile};

use super::*;

/// A probe that nothing was selected for has found nothing.
#[test]
fn a_probe_must_match_an_instruction() {
    let output = run(&["probe", "--only", "e4m3.n65.*"]);
    assert_eq!(code(&output), 4);
    let error = stderr(&output);
    assert!(
        error.contains("instructions are named like 'e4m3.n8.shared'"),
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

/// Attestations, as a run on a card writes them, of all files of a folder; every variant ran, every fault was noticed.
fn attested(kernels: &Path) -> Attestation {
    let sources = Source::read_all(kernels).unwrap().into_iter();
    let one_case = VariantResult {
        cases: 1,
        ..VariantResult::default()
    };
    let verified = |source: Source| {
        let case = find(&source.op).unwrap().cases().swap_remove(0).name;
        let noticed = format!("{case}: 1 of 2 rerun");
        let variants = source.header.variants.iter().map(|variant| variant.name.clone());
        let faults = source.header.mutants.iter().flat_map(|mutant| {
            let named = source
                .header
                .variants
                .iter()
                .filter(|variant| mutant.is_of(&variant.name));
            let noticed = noticed.clone();
            named.map(move |variant| (format!("{} {}", variant.name, mutant.name), noticed.clone()))
        });
        let verified = VerifiedFile {
            at: "2026-01-01T00:00:00Z".into(),
            driver: "13.0".into(),
            arch: "sm_90a".into(),
            nvrtc: "13.0".into(),
            flags: FLAGS.iter().map(ToString::to_string).collect(),
            kernels: source.digest().to_hex().to_string(),
            judgement: digest(find(&source.op).unwrap()).into(),
            variants: variants.map(|name| (name, one_case.clone())).collect(),
            mutants: faults.collect(),
        };
        (source.op.clone(), verified)
    };
    Attestation {
        device: "NVIDIA card".into(),
        ops: sources.map(verified).collect(),
    }
}

/// A changed kernel, a changed judgement, a variant that was left out and a file nobody verified are named; there is nothing
/// to name where all is as it was verified.
#[test]
fn attestations_name_what_changed() {
    let folder = tempfile::tempdir().unwrap();
    copy_folder(Path::new("kernels"), folder.path());
    let results = tempfile::tempdir().unwrap();
    let as_verified = attested(folder.path());
    let gate = || {
        let spelled = [
            ["gate", "--attested", path(results.path())].to_vec(),
            ["kernels", "attest", "--check", path(results.path())].to_vec(),
        ];
        let said = spelled.map(|words| {
            let mut command = assert_cmd::Command::new(env!("CARGO_BIN_EXE_ulplab"));
            let output = command
                .args(words)
                .env("ULPLAB_KERNELS", folder.path())
                .output()
                .unwrap();
            (output.status.code(), stdout(&output))
        });
        assert_eq!(said[0], said[1]);
        said.into_iter().next().unwrap()
    };
    assert_eq!(gate(), (Some(2), String::new()), "an empty folder attests nothing");
    as_verified.clone().write(results.path()).unwrap();
    let (code, said) = gate();
    assert_eq!(code, Some(0), "{said}");

    let mut other = as_verified.clone();
    other.ops.get_mut("rope").unwrap().judgement = "0".repeat(64);
    other.ops.get_mut("delta_prefill").unwrap().variants.remove("chunks");
    other.write(results.path()).unwrap();
    let (code, said) = gate();
    assert_eq!(code, Some(100));
    assert!(
        said.contains("rope.cu: its cases, bounds or judgement changed"),
        "{said}"
    );
    assert!(
        said.contains("delta_prefill.cu: variant 'chunks' was not run"),
        "{said}"
    );
    as_verified.write(results.path()).unwrap();

    let file = folder.path().join("rope.cu");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace("ec - os", "ec + os")).unwrap();
    let (code, said) = gate();
    assert_eq!(code, Some(100));
    assert!(
        said.contains("rope.cu: the kernel changed since it was verified"),
        "{said}"
    );
    // No other file is made of this one.
    let [file, renamed] = ["quantize.cu", "quantize_new.cu"].map(|name| folder.path().join(name));
    std::fs::rename(file, renamed).unwrap();
    let (code, said) = gate();
    assert_eq!(code, Some(100));
    assert!(
        said.contains("quantize_new.cu: was never verified") && said.contains("'quantize' is attested"),
        "{said}"
    );
}

/// What one device saw of each kernel says nothing of all kernels on one device. And whatever is stored in an attestation is looked at.
#[test]
fn attestations_are_of_one_device_and_plausible() {
    let results = tempfile::tempdir().unwrap();
    let gate = || {
        let output = run(&["kernels", "attest", "--check", path(results.path())]);
        (code(&output), stdout(&output) + &stderr(&output))
    };
    let whole = attested(&root().join("kernels"));
    let split = whole.ops.keys().nth(whole.ops.len() / 2).unwrap().clone();
    let part = |name: &str, first: bool| {
        let mut part = Attestation {
            device: name.into(),
            ..whole.clone()
        };
        part.ops.retain(|op, _| (*op < split) == first);
        part.write(results.path()).unwrap()
    };
    let one = part("NVIDIA one", true);
    part("NVIDIA two", false);
    let (exit, said) = gate();
    assert_eq!(exit, 4, "{said}");
    let all = whole.ops.len();
    says(&said, &format!("NVIDIA one: {} of {all}", all / 2));
    let words = format!(
        "NOT JUDGED: each of {all} files of kernels is unchanged since a device verified it, and no device saw all"
    );
    says(&said, &words);
    let file = part("NVIDIA two", true);
    let (exit, said) = gate();
    assert_eq!(exit, 0, "{said}");
    let words = format!("PASS: {all} of {all} files of kernels are unchanged since NVIDIA two verified them");
    says(&said, &words);

    // Bytes that were changed are noticed by the seal, whatever they say.
    let bytes = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, bytes.replacen("\"cases\": 1", "\"cases\": 2", 1)).unwrap();
    let (exit, said) = gate();
    assert!(exit == 2 && said.contains("kernels.json: damaged or edited"), "{said}");
    // What was sealed and cannot be is named. Also of this kind: other keys of variants and operations.
    type Edit = fn(&mut VerifiedFile);
    let edits: [(Edit, i32, &str); 16] = [
        (|v| v.variants.values_mut().for_each(|v| v.cases = 0), 2, "cases is 0"),
        (
            |v| v.variants.values_mut().for_each(|v| v.bound_ratio = Some(999.0)),
            2,
            "bound_ratio is 999",
        ),
        (
            |v| v.variants.values_mut().for_each(|v| v.bound_ratio = Some(-0.5)),
            2,
            "bound_ratio is -0.5",
        ),
        (|v| v.nvrtc = "1.0".into(), 2, "nvrtc is '1.0'"),
        (|v| v.nvrtc.clear(), 2, "nvrtc is ''"),
        (|v| v.driver = "new".into(), 2, "driver is 'new'"),
        (|v| v.arch = "sm_20".into(), 2, "arch is 'sm_20'"),
        (|v| v.arch.clear(), 2, "arch is ''"),
        (|v| v.at = "yesterday".into(), 2, "at is 'yesterday'"),
        (|v| v.kernels = "1".into(), 2, "kernels is '1'"),
        (|v| v.judgement.clear(), 2, "judgement is ''"),
        (
            |v| v.mutants.values_mut().for_each(|noticed| *noticed = "x".into()),
            100,
            "was noticed by 'x', which is no check",
        ),
        (
            |v| v.mutants.values_mut().for_each(String::clear),
            100,
            "went unnoticed",
        ),
        (|v| v.mutants.clear(), 100, "was not planted"),
        (|v| v.variants.clear(), 100, "was not run"),
        (|v| v.flags.clear(), 100, "the flags changed"),
    ];
    std::fs::remove_file(one).unwrap();
    for (edit, expected, words) in edits {
        let mut edited = Attestation {
            device: "NVIDIA two".into(),
            ..whole.clone()
        };
        edit(edited.ops.get_mut("rope").unwrap());
        std::fs::write(&file, ulplab::run::seal::json(&edited)).unwrap();
        let (exit, said) = gate();
        assert!(exit == expected && said.contains(words), "{words}: {exit} {said}");
    }
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
            "\"weight\"",
            "\"wieght\"",
            "'wieght' is no buffer, scratch, scalar or size of the operation; did you mean 'weight'?",
        ),
        ("\"x\", ", "", "arguments, and"),
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
        .args(["kernels", "list"])
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

/// Every operation, output and judgement is listed, in lines that fit; `list kernels` says the same.
#[test]
fn the_list_names_every_operation_and_how_its_outputs_are_judged() {
    let output = run(&["kernels", "list"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let text = stdout(&output);
    assert_eq!(stdout(&run(&["list", "kernels"])), text);
    for line in text.lines() {
        assert!(line.chars().count() <= 100, "too long: {line}");
    }
    let output = run(&["kernels", "list", "--json"]);
    let all: Vec<serde_json::Value> = serde_json::from_slice(&output.stdout).unwrap();
    let rules = ["equal", "within", "rms", "admissible", "finite", "custom"];
    for op in ulplab::ops::OPS {
        let listed = all.iter().find(|listed| listed["op"] == op.name());
        let listed = listed.unwrap_or_else(|| panic!("{} is not listed", op.name()));
        assert!(text.contains(&format!("{}: ", op.name())), "{}", op.name());
        let outputs = listed["outputs"].as_array().unwrap();
        assert!(!outputs.is_empty(), "{} has no outputs", op.name());
        for output in outputs {
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
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
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

#[test]
fn old_spellings_are_answered_with_the_new_ones() {
    for (old, new) in [
        (
            &["bench", "pair", "a.b/c", "a.d/c"][..],
            "ulplab kernels compare a.b/c a.d/c",
        ),
        (&["trace", "rope"], "ulplab kernels trace rope"),
        (
            &["sweep", "kernels", "--device", "compile"],
            "ulplab kernels check kernels --device compile",
        ),
        (&["sweep", "kernels", "--timed"], "ulplab kernels time kernels"),
        (
            &["sweep", "kernels", "--mutant", "rope.halves"],
            "ulplab kernels mutants rope.halves kernels",
        ),
        (&["sweep", "kernels", "--mutants"], "ulplab kernels mutants kernels"),
        (
            &["sweep", "kernels", "--mutants", "--attest", "out"],
            "ulplab kernels attest out kernels",
        ),
        (
            &["sweep", "kernels", "--peers", "p.json"],
            "ulplab kernels check kernels --peers p.json",
        ),
        (
            &["sweep", "kernels", "--keep-failed", "kept"],
            "ulplab kernels check kernels --keep-failed kept",
        ),
    ] {
        let output = run(old);
        assert_eq!(code(&output), 2, "{old:?}");
        let error = stderr(&output);
        assert!(error.contains(&format!("is now `{new}`\n")), "{old:?}: {error}");
    }
}

/// What checks attestations runs nothing, and takes nothing that a run takes.
#[test]
fn attestations_are_written_to_a_folder_or_checked() {
    let output = run(&["kernels", "attest"]);
    assert!(
        code(&output) == 2 && stderr(&output).contains("<DIR>"),
        "{}",
        stderr(&output)
    );
    let output = run(&["kernels", "attest", "--check", "--only", "rope.*/**"]);
    let error = stderr(&output);
    assert!(
        code(&output) == 2 && error.contains("--check") && error.contains("--only"),
        "{error}"
    );
    let output = run(&["kernels", "attest", "out", "--dry-run", "--only", "rope.*/**"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(stdout(&output).lines().all(|cell| cell.starts_with("rope.")));
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
    let source = Source::read(&folder.path().join("rope.cu")).unwrap();
    let names: Vec<&str> = source.includes.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["lib/math.cuh", "lib/types.cuh", "rope/turn.cuh"]);
    let digest = source.digest();
    std::fs::write(folder.path().join("lib/types.cuh"), "// changed\n").unwrap();
    assert_ne!(Source::read(&folder.path().join("rope.cu")).unwrap().digest(), digest);
}
