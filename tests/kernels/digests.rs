//! Digests of kernels and judgements: another way to write the same leaves them as they are; another kernel, launch or verdict does not.

use std::path::Path;

use tempfile::TempDir;
use ulplab::backend::cuda::{Source, Toolkit};
use ulplab::ops;
use ulplab::ops::judge::Rule;
use ulplab::ops::{Case, Data, Problem, Role};
use ulplab::studies::kernels::attest::Attestation;
use ulplab::studies::kernels::digests::{CodeDigests, Digests, JudgementDigests, of_case};

const ARCH: &str = "sm_90a";

/// Reads a file of kernels in which texts are replaced; each must be in the file, or in one that it includes from its folder.
fn edited(folder: &TempDir, op: &str, edits: &[(&str, &str, &str)]) -> Source {
    let kernels = Path::new(crate::ROOT).join("kernels");
    let copied = std::process::Command::new("cp")
        .args(["-r", "."])
        .arg(folder.path())
        .current_dir(kernels)
        .status();
    assert!(copied.unwrap().success());
    for (file, from, to) in edits {
        let file = folder.path().join(file);
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(text.contains(from), "{} has no '{from}'", file.display());
        std::fs::write(&file, text.replacen(from, to, 1)).unwrap();
    }
    Source::read(&folder.path().join(format!("{op}.cu")), &ulplab::ops::COMPOSITIONS).unwrap()
}

/// Machine code knows neither comments nor names nor the order of functions; a planted fault is its own code.
#[test]
fn machine_code_changes_with_what_runs() {
    // Tests run without a compiler, too; CI has one.
    let Ok(toolkit) = Toolkit::open() else { return };
    let digests = |op: &str, edits: &[(&str, &str, &str)]| {
        let folder = tempfile::tempdir().unwrap();
        CodeDigests::new(&edited(&folder, op, edits), ARCH, &toolkit, None).unwrap()
    };
    let same: [(&str, &[(&str, &str, &str)]); 5] = [
        (
            "rmsnorm",
            &[(
                "rmsnorm.cu",
                "// reference:",
                "// A comment,\n// in two lines.\n// reference:",
            )],
        ),
        ("rope", &[("rope.cu", "#include", "\n\n#include")]),
        (
            "rmsnorm",
            &[
                (
                    "rmsnorm.cu",
                    "const float scale = inverse_rms_of(x, cols, eps);",
                    "const float by = inverse_rms_of(x, cols, eps);",
                ),
                (
                    "rmsnorm.cu",
                    "to_f32(x[i]) * weight[i] * scale",
                    "to_f32(x[i]) * weight[i] * by",
                ),
            ],
        ),
        (
            "swiglu",
            &[(
                "swiglu.cu",
                "template <class T>",
                "__device__ int never_called() {\n    return 1;\n}\n\ntemplate <class T>",
            )],
        ),
        (
            "mhc_post",
            &[
                ("mhc_post.cu", "simple(", "plain("),
                ("mhc_post.cu", "simple(", "plain("),
            ],
        ),
    ];
    for (op, edits) in same {
        let (before, after) = (digests(op, &[]), digests(op, edits));
        assert_eq!(before, after, "{op}: {edits:?}");
        assert!(
            !before.entries.is_empty() && before.faults.values().all(|entries| !entries.is_empty()),
            "{op}"
        );
    }
    let other: [(&str, &str, &str, &str); 3] = [
        ("rmsnorm", "rmsnorm.cu", "* weight[i] * scale", "* scale * weight[i]"),
        (
            "rmsnorm",
            "rmsnorm.cu",
            "__launch_bounds__(128)",
            "__launch_bounds__(256)",
        ),
        ("rope", "rope.cu", "ec - os", "ec + os"),
    ];
    for (op, file, from, to) in other {
        let (before, after) = (digests(op, &[]), digests(op, &[(file, from, to)]));
        assert_ne!(before.entries, after.entries, "{op}: {to}");
    }
    let fault = [(
        "rmsnorm/rmsnorm.cuh",
        "#ifdef MUTANT_NO_EPS",
        "#ifdef MUTANT_NO_EPS_AT_ALL",
    )];
    let (before, after) = (digests("rmsnorm", &[]), digests("rmsnorm", &fault));
    assert_eq!(before.entries, after.entries);
    assert_ne!(before.faults, after.faults, "the fault is planted elsewhere");
}

/// Names and order of scratch, and names of launches, have no part in a launch; its shape and its arguments do.
#[test]
fn launches_change_with_what_is_launched() {
    let digest = |edits: &[(&str, &str, &str)]| {
        let folder = tempfile::tempdir().unwrap();
        Digests::of_launches(&edited(&folder, "mhc_pre", edits), ARCH).unwrap()
    };
    let before = digest(&[]);
    assert!(before.launches.len() > 1);
    let file = std::fs::read_to_string(Path::new(crate::ROOT).join("kernels/mhc_pre.cu")).unwrap();
    let renamed = file.replace("\"sums\"", "\"partial\"");
    assert_ne!(renamed, file, "mhc_pre.cu has scratch of that name");
    assert_eq!(digest(&[("mhc_pre.cu", &file, &renamed)]), before);
    for (from, to) in [
        ("grid = [\"", "grid = [\"1 + "),
        ("block = [256]", "block = [288]"),
        ("\"norm_eps\", \"eps\"", "\"eps\", \"norm_eps\""),
    ] {
        let after = std::panic::catch_unwind(|| digest(&[("mhc_pre.cu", from, to)]));
        assert!(after.is_ok_and(|after| after != before), "{from} {to}");
    }
}

fn prepared(op: &str) -> (Case, Problem) {
    let op = ops::find(op).unwrap();
    let case = op
        .cases()
        .into_iter()
        .find(|case| !case.timed && !case.inputs.need_model())
        .unwrap();
    let problem = ops::problem(op, &case).unwrap();
    (case, problem)
}

/// One bit of an input, a bound of another size, an output that need not be equal, and rows that may depend on their batch.
#[test]
fn verdicts_change_with_what_is_judged() {
    let digests = |op: &str, change: &dyn Fn(&mut Problem)| {
        let (case, mut problem) = prepared(op);
        change(&mut problem);
        of_case(&case, problem, false, true)
    };
    for op in ["rmsnorm", "rope", "top_k", "router"] {
        let before = digests(op, &|_| {});
        assert_eq!(before, digests(op, &|_| {}), "{op}: digests differ from run to run");
        let bit = digests(op, &|problem| {
            let input = problem
                .buffers
                .iter_mut()
                .find(|buffer| buffer.role == Role::In && !buffer.bytes.is_empty());
            input.unwrap().bytes[0] ^= 1;
        });
        assert_ne!(before[0], bit[0], "{op}: inputs");
        let looser = digests(op, &|problem| {
            for judge in &mut problem.judges {
                match &mut judge.rule {
                    Rule::Within { bound, .. } | Rule::Admissible { bound, .. } => {
                        let old = std::mem::replace(bound, Box::new(|_, _| 0.0));
                        *bound = Box::new(move |at, x| 1.01 * old(at, x));
                    }
                    Rule::Equal { also, .. } => *also = Some(Box::new(|_, _| true)),
                    _ => {}
                }
            }
        });
        let parts = prepared(op)
            .1
            .judges
            .iter()
            .all(|judge| matches!(judge.rule, Rule::Parts(_)));
        assert_eq!(before[1] == looser[1], parts, "{op}: verdicts");
    }
}

/// Stored digests are those of the tree: launches of all files, and verdicts and machine code of two.
#[test]
fn stored_digests_are_those_of_the_tree() {
    let tree = Path::new(crate::ROOT);
    let stored = Attestation::read(&tree.join("experiments/results/h200/kernels.json")).unwrap();
    let sources = Source::read_all(&tree.join("kernels"), &ulplab::ops::COMPOSITIONS).unwrap();
    assert_eq!(stored.ops.len(), sources.len());
    let data = Data::new(0, &|pattern| Err(format!("no model is read for '{pattern}'")));
    for source in &sources {
        let verified = &stored.ops[&source.op];
        let digests = verified.digests.as_ref().unwrap();
        assert!(digests.are_complete(), "{}", source.op);
        let launches = Digests::of_launches(source, &verified.arch).unwrap().launches;
        assert_eq!(launches, digests.launches, "{}", source.op);
        if !["state_transpose", "top_k"].contains(&source.op.as_str()) {
            continue;
        }
        let judgement = JudgementDigests::new(source, &data).unwrap();
        assert_eq!(Some(judgement), digests.judgement, "{}", source.op);
        if let Ok(toolkit) = Toolkit::open() {
            let code = CodeDigests::new(source, &verified.arch, &toolkit, None).unwrap();
            let stored = digests.code.as_ref().unwrap();
            assert!(code.compiler != stored.compiler || code == *stored, "{}", source.op);
        }
    }
}
