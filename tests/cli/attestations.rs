//! Attestations of kernels: what changed since a device saw them, and what no device can have written.

use ulplab::backend::cuda::Toolkit;
use ulplab::backend::cuda::toolkit::FLAGS;
use ulplab::backend::cuda::{Mutant, Source};
use ulplab::ops::find;
use ulplab::provenance;
use ulplab::studies::kernels::attest::{Attestation, VariantResult, VerifiedFile};
use ulplab::studies::kernels::digests::{CodeDigests, Digests};

use super::*;

/// Attestations, as a run on a card writes them, of all files of a folder; every variant ran, every fault was noticed.
fn attested(kernels: &Path) -> Attestation {
    let sources = Source::read_all(kernels, &ulplab::ops::COMPOSITIONS)
        .unwrap()
        .into_iter();
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
            judgement: provenance::judgement(&source.op).unwrap().into(),
            variants: variants.map(|name| (name, one_case.clone())).collect(),
            mutants: faults.collect(),
            digests: None,
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
        let mut command = ulplab(&["kernels", "attest", "--check", path(results.path())]);
        let output = command.env("ULPLAB_KERNELS", folder.path()).output().unwrap();
        (output.status.code(), stdout(&output))
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

/// A kernel that is written in another way is as it was verified while its machine code, its launches and its faults are.
#[test]
fn rewritten_kernels_are_as_they_were_verified() {
    // Tests run without a compiler, too; CI has one.
    let Ok(toolkit) = Toolkit::open() else { return };
    let folder = tempfile::tempdir().unwrap();
    copy_folder(Path::new("kernels"), folder.path());
    let results = tempfile::tempdir().unwrap();
    // Two variants and one fault are left, since each is compiled at each step. What is changed below is of the second one.
    let file = folder.path().join("diagonal_ssm.cu");
    let whole = std::fs::read_to_string(&file).unwrap();
    let (header, code) = whole.split_once("*/").unwrap();
    let mut parts = header.split("[[mutant]]");
    let (variants, fault) = (
        parts.next().unwrap(),
        parts.find(|part| part.contains("\"b_dropped\"")).unwrap(),
    );
    let two: Vec<&str> = variants.split("[[variant]]").take(3).collect();
    let two = two.join("[[variant]]");
    assert!(
        two.contains("diagonal_ssm_heads") && !two.contains("diagonal_ssm_rows"),
        "{two}"
    );
    std::fs::write(&file, format!("{two}[[mutant]]{fault}*/{code}")).unwrap();
    let mut as_verified = attested(folder.path());
    let source = Source::read(&file, &ulplab::ops::COMPOSITIONS).unwrap();
    let digests = Digests {
        code: Some(CodeDigests::new(&source, "sm_90a", &toolkit, None).unwrap()),
        judgement: Some(Default::default()),
        ..Digests::of_launches(&source, "sm_90a").unwrap()
    };
    as_verified.ops.get_mut("diagonal_ssm").unwrap().digests = Some(digests);
    as_verified.write(results.path()).unwrap();
    let gate = |text: &str| {
        std::fs::write(&file, text).unwrap();
        let mut command = assert_cmd::Command::new(env!("CARGO_BIN_EXE_ulplab"));
        let command = command.args(["kernels", "attest", "--check", path(results.path())]);
        let output = command.env("ULPLAB_KERNELS", folder.path()).output().unwrap();
        (output.status.code(), stdout(&output) + &stderr(&output))
    };
    let text = &source.text;
    let (code, said) = gate(&text.replacen("*/", "*/\n// A comment.\n", 1));
    assert_eq!(code, Some(0), "{said}");
    let (code, said) = gate(&text.replacen("__launch_bounds__(32, 8)", "__launch_bounds__(64, 8)", 1));
    assert_eq!(code, Some(100), "{said}");
    says(&said, "diagonal_ssm.cu: machine code of 'diagonal_ssm_");
    let planted = |fault: &&Mutant| text.contains(&format!("#ifdef {}\n", fault.define()));
    let fault = source.header.mutants.iter().find(planted).unwrap().define();
    let (code, said) = gate(&text.replace(&format!("#ifdef {fault}\n"), &format!("#ifdef {fault}_ELSEWHERE\n")));
    assert_eq!(code, Some(100), "{said}");
    let (code, said) = gate(&text.replacen("grid = [\"H / 32\"]", "grid = [\"H / 32 + 1\"]", 1));
    assert_eq!(code, Some(100), "{said}");
    says(&said, "diagonal_ssm.cu: launches of variant '");
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
