//! The digests of judgement: whatever decides whether an operation's outputs are right changes them, and little else does.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use ulplab::ops::{OPS, digest};

use super::build::files::Files;
use super::build::judgement::{Judgement, of_files};

/// A file, what stands there and what is put in its place; operations whose digests must and must not change.
type Edit<'a> = (&'a str, &'a str, &'a str, &'a [&'a str], &'a [&'a str]);

fn files() -> Files {
    Files::new(Path::new(env!("CARGO_MANIFEST_DIR")))
}

/// Those of some operations whose digest is another after an edit of one file.
fn changed(
    files: &Files,
    before: &BTreeMap<String, Judgement>,
    [file, from, to]: [&str; 3],
    of: &[&str],
) -> BTreeSet<String> {
    let text = String::from_utf8(files.bytes(Path::new(file)).unwrap()).unwrap();
    assert!(text.contains(from), "{file} has no '{from}'");
    let edited = files.edited(Path::new(file), &text.replacen(from, to, 1)).unwrap();
    let after = of_files(&edited, |op| of.contains(&op)).unwrap();
    let ops = after
        .into_iter()
        .filter(|(op, judgement)| judgement.digest != before[op].digest);
    ops.map(|(op, _)| op).collect()
}

#[test]
fn every_operation_has_the_digest_that_was_built_in() {
    let judgements = of_files(&files(), |_| true).unwrap();
    assert_eq!(judgements.len(), OPS.len());
    for op in OPS {
        assert_eq!(judgements[op.name()].digest, digest(*op), "{}", op.name());
    }
}

/// Each edit loosens or alters what some operations are judged by, wherever it is.
#[test]
fn whatever_judges_changes_the_digest() {
    let files = files();
    let before = of_files(&files, |_| true).unwrap();
    let edits: [Edit; 9] = [
        // The bound of RMSNorm is that of the fused operation too.
        (
            "core/ops/rmsnorm.rs",
            "fn error(cols: usize, eps: f32, y: f64) -> f64 {",
            "fn error(cols: usize, eps: f32, y: f64) -> f64 {\n    let y = 2.0 * y;",
            &["rmsnorm", "rmsnorm_quantize"],
            &["rope", "swiglu_quantize"],
        ),
        (
            "core/ops/swiglu.rs",
            "LIMIT_RANGE: [f64; 2] = [0.01,",
            "LIMIT_RANGE: [f64; 2] = [0.02,",
            &["swiglu", "swiglu_quantize"],
            &["rmsnorm", "quantize"],
        ),
        (
            "core/ops/slots.rs",
            "fn encoded(",
            "fn encoded<const KEPT: usize>(",
            &["record_read"],
            &["rmsnorm", "record_write"],
        ),
        // A row of a table of formats.
        (
            "core/formats/named.rs",
            "    Named {\n",
            "    Named {\n        another: true,\n",
            &["quantize", "record_write"],
            &[],
        ),
        (
            "core/layouts/table.rs",
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
            "core/ops/judge/elements.rs",
            "usize::from(ratio > 1.0)",
            "usize::from(ratio > 2.0)",
            &["rmsnorm", "rope", "delta_handover"],
            &[],
        ),
        (
            "core/ops/checks.rs",
            "*byte != GUARD_BYTE",
            "*byte == GUARD_BYTE",
            &["rmsnorm", "scale_layout"],
            &[],
        ),
        // A name that leads elsewhere.
        (
            "core/formats/mod.rs",
            "pub use single::Single;",
            "pub use block::Format as Single;",
            &["rmsnorm_quantize", "record_write"],
            &[],
        ),
    ];
    for (file, from, to, must, must_not) in edits {
        let changed = changed(&files, &before, [file, from, to], &[must, must_not].concat());
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
    let before = of_files(&files, |_| true).unwrap();
    for (file, from, to) in [
        (
            "core/ops/judge/mod.rs",
            "pub fn within(\n",
            "// A comment.\n/// And documentation.\npub fn\nwithin(\n",
        ),
        (
            "core/ops/judge/mod.rs",
            "        why: impl Into<Cow<'static, str>>,\n    )",
            "        why: impl Into<Cow<'static, str>>\n    )",
        ),
        (
            "core/formats/quantize.rs",
            "    use super::*;",
            "    use super::*;\n    #[test]\n    fn another() {}\n",
        ),
        ("core/error.rs", "nothing selected", "nothing was selected"),
        (
            "core/parity/mod.rs",
            "pub mod output;",
            "pub mod output;\npub mod unused {}",
        ),
        ("core/ops/mod.rs", "mod slots;", "mod slots;\nmod unused {}"),
        ("core/metrics/mod.rs", "    &cosine::COSINE,\n", ""),
    ] {
        // These reach every room.
        let changed = changed(
            &files,
            &before,
            [file, from, to],
            &["swiglu_quantize", "swap_ffn", "scale_layout"],
        );
        assert!(changed.is_empty(), "{file}, '{to}': {changed:?} changed");
    }
}
