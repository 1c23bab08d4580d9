//! The digests of judgement: whatever decides whether an operation's outputs are right changes them, and little else does.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use ulplab::kernels::{OPS, digest};

use super::build::judgement::{Judgement, of_files};
use super::build::source::Files;

fn files() -> Files {
    Files::new(Path::new(env!("CARGO_MANIFEST_DIR")))
}

/// The operations whose digest is another after an edit of one file.
fn changed(files: &Files, before: &BTreeMap<String, Judgement>, file: &str, from: &str, to: &str) -> BTreeSet<String> {
    let text = String::from_utf8(files.bytes(Path::new(file)).unwrap()).unwrap();
    assert!(text.contains(from), "{file} has no '{from}'");
    let edited = files.edited(Path::new(file), &text.replacen(from, to, 1)).unwrap();
    let after = of_files(&edited).unwrap();
    let ops = before.keys().filter(|op| after[*op].digest != before[*op].digest);
    ops.cloned().collect()
}

#[test]
fn every_operation_has_the_digest_that_was_built_in() {
    let judgements = of_files(&files()).unwrap();
    assert_eq!(judgements.len(), OPS.len());
    for op in OPS {
        assert_eq!(judgements[op.name()].digest, digest(*op), "{}", op.name());
    }
}

/// Each edit loosens or alters what some operations are judged by, wherever it is.
#[test]
fn whatever_judges_changes_the_digest() {
    let files = files();
    let before = of_files(&files).unwrap();
    let edits: [(&str, &str, &str, &[&str], &[&str]); 9] = [
        // The bound of RMSNorm is that of the fused operation too.
        (
            "src/kernels/rmsnorm.rs",
            "fn error(cols: usize, y: f64) -> f64 {",
            "fn error(cols: usize, y: f64) -> f64 {\n    let y = 2.0 * y;",
            &["rmsnorm", "rmsnorm_quantize"],
            &["rope", "swiglu_quantize"],
        ),
        (
            "src/kernels/swiglu.rs",
            "const LIMIT: f32 = ",
            "const LIMIT: f32 = 2.0 * ",
            &["swiglu", "swiglu_quantize"],
            &["rmsnorm", "quantize"],
        ),
        (
            "src/kernels/dequantize.rs",
            "fn without_payloads(",
            "fn without_payloads<const KEPT: usize>(",
            &["dequantize", "record_read"],
            &["rmsnorm", "quantize"],
        ),
        // A row of a table of formats.
        (
            "src/formats/named.rs",
            "    Named {\n",
            "    Named {\n        another: true,\n",
            &["quantize"],
            &["rmsnorm", "rope", "scale_layout"],
        ),
        (
            "src/layouts/table.rs",
            "    Layout {\n",
            "    Layout {\n        another: true,\n",
            &["scale_layout"],
            &["rmsnorm", "quantize"],
        ),
        (
            "reference/ops/rmsnorm.rs",
            "pub fn rmsnorm",
            "#[cold] pub fn rmsnorm",
            &["mhc_pre", "swap_ffn"],
            &["rope", "delta_decode"],
        ),
        // What every operation is judged by.
        (
            "src/kernels/judge/mod.rs",
            "ratio(*at) > 1.0",
            "ratio(*at) > 2.0",
            &["rmsnorm", "delta_handover"],
            &["rope"],
        ),
        (
            "src/backend/cuda/guards.rs",
            "**byte != GUARD_BYTE",
            "**byte == GUARD_BYTE",
            &["rmsnorm", "scale_layout"],
            &[],
        ),
        // A name that leads elsewhere.
        (
            "src/kernels/judge/mod.rs",
            "pub use admissible::{Stored, admissible};",
            "pub use admissible::{Stored, judge_block as admissible};",
            &["rmsnorm_quantize", "record_write"],
            &["rmsnorm"],
        ),
    ];
    for (file, from, to, must, must_not) in edits {
        let changed = changed(&files, &before, file, from, to);
        let missed: Vec<_> = must.iter().filter(|op| !changed.contains(**op)).collect();
        assert!(missed.is_empty(), "{file}, '{to}': {missed:?} are as before");
        let needless: Vec<_> = must_not.iter().filter(|op| changed.contains(**op)).collect();
        assert!(needless.is_empty(), "{file}, '{to}': {needless:?} changed");
    }
}

/// Comments, line breaks, tests, error messages, what only the runner does, another operation and another metric.
#[test]
fn what_does_not_judge_changes_no_digest() {
    let files = files();
    let before = of_files(&files).unwrap();
    for (file, from, to) in [
        (
            "src/kernels/judge/mod.rs",
            "pub fn within(\n",
            "// A comment.\n/// And documentation.\npub fn\nwithin(\n",
        ),
        (
            "src/kernels/judge/mod.rs",
            "    shape: &[usize],\n)",
            "    shape: &[usize]\n)",
        ),
        (
            "src/formats/quantize.rs",
            "    use super::*;",
            "    use super::*;\n    #[test]\n    fn another() {}\n",
        ),
        ("src/error.rs", "nothing selected", "nothing was selected"),
        (
            "src/backend/cuda/run.rs",
            "const MOST_SETS: usize = 128;",
            "const MOST_SETS: usize = 64;",
        ),
        ("src/kernels/mod.rs", "mod slots;", "mod slots;\nmod unused {}"),
        ("src/metrics/mod.rs", "    &cosine::COSINE,\n", ""),
    ] {
        let changed = changed(&files, &before, file, from, to);
        assert!(changed.is_empty(), "{file}, '{to}': {changed:?} changed");
    }
}
