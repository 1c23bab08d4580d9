//! The digests of judgement: everything that decides whether an operation's outputs are right changes them, and other rooms do not.

use std::collections::BTreeMap;
use std::path::Path;

use ulplab::ops::OPS;
use ulplab::{judgement, provenance};

fn texts() -> BTreeMap<String, String> {
    judgement::texts(Path::new(crate::ROOT)).unwrap()
}

/// The operations whose digest changes with a text in one file.
fn changed(texts: &BTreeMap<String, String>, file: &str, from: &str, to: &str) -> Vec<String> {
    let mut edited = texts.clone();
    let text = edited.get_mut(file).unwrap_or_else(|| panic!("there is no {file}"));
    assert!(text.contains(from), "{file} has no '{from}'");
    *text = text.replacen(from, to, 1);
    let (before, after) = (judgement::digests(texts), judgement::digests(&edited));
    before
        .into_iter()
        .filter(|(op, digest)| after[op] != *digest)
        .map(|(op, _)| op)
        .collect()
}

#[test]
fn every_operation_has_the_digest_that_was_built_in() {
    let judgements = judgement::digests(&texts());
    assert_eq!(judgements.len(), OPS.len());
    for op in OPS.iter() {
        assert_eq!(
            Some(&*judgements[op.name()]),
            provenance::judgement(op.name()),
            "{}",
            op.name()
        );
    }
}

/// Each edit alters what some operations are judged by, and leaves others as they are.
#[test]
fn whatever_judges_changes_the_digest() {
    let texts = texts();
    let all: Vec<&str> = OPS.iter().map(|op| op.name()).collect();
    for (file, from, to, must, must_not) in [
        // The bound of RMSNorm is that of the fused operation, too.
        (
            "crates/operations/ops/rmsnorm",
            "fn error(",
            "fn other(",
            &["rmsnorm", "rmsnorm_quantize"][..],
            &["rope", "quantize"][..],
        ),
        (
            "crates/operations/ops/swiglu",
            "LIMIT_RANGE",
            "LIMITS",
            &["swiglu", "swiglu_quantize"],
            &["rmsnorm", "quantize"],
        ),
        (
            "crates/operations/ops/slots",
            "fn encoded(",
            "fn coded(",
            &["record_read"],
            &["rmsnorm"],
        ),
        (
            "showcases/swap_ffn/composition",
            "fn collapse(",
            "fn collapsed(",
            &["swap_ffn"],
            &["decode_step", "delta_handover", "rmsnorm"],
        ),
        (
            "crates/core/formats/named",
            "    named(\"bf16\", \"bf16\",",
            "    named(\"bf16\", \"f16\",",
            &["quantize", "record_write"],
            &[],
        ),
        (
            "crates/core/layouts/table",
            "    Layout {\n",
            "    Layout {\n        another: true,\n",
            &["scale_layout"],
            &["rmsnorm"],
        ),
        (
            "reference/ops/rmsnorm",
            "pub fn rmsnorm",
            "#[cold] pub fn rmsnorm",
            &["mhc_pre", "swap_ffn"],
            &[],
        ),
        (
            "crates/operations/ops/judge/elements",
            "ratio > 1.0",
            "ratio > 2.0",
            &all,
            &[],
        ),
        (
            "crates/operations/ops/checks",
            "*byte != GUARD_BYTE",
            "*byte == GUARD_BYTE",
            &all,
            &[],
        ),
        (
            "crates/operations/ops/mod",
            "pub struct Case",
            "pub(crate) struct Case",
            &all,
            &[],
        ),
    ] {
        let changed = changed(&texts, file, from, to);
        let has = |op: &&&str| changed.iter().any(|other| other == **op);
        let missed: Vec<_> = must.iter().filter(|op| !has(op)).collect();
        assert!(missed.is_empty(), "{file}, '{to}': {missed:?} are as before");
        let needless: Vec<_> = must_not.iter().filter(has).collect();
        assert!(needless.is_empty(), "{file}, '{to}': {needless:?} changed");
    }
}

#[test]
fn what_does_not_judge_changes_no_digest() {
    let texts = texts();
    for (file, from) in [
        ("crates/core/error", "nothing selected"),
        ("crates/core/tensorfile/mod", "mod "),
        ("reference/paths/gqa/mod", "mod "),
    ] {
        let changed = changed(&texts, file, from, "another text");
        assert!(changed.is_empty(), "{file}: {changed:?} changed");
    }
}
