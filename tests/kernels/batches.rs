//! Which rows are not run in other batches, and which kernels are not compared with themselves, each with the reason.
//!
//! The default is that they are: rows of an operation have the same bytes in batches of 1 to 128 rows, and a graph's replays those of the
//! launches. The lists must be exact: an exception is stated where it is made, and struck off with it.

use std::collections::BTreeSet;
use std::path::Path;

use ulplab::backend::cuda::Source;
use ulplab::ops::{Buffer, Case, Inputs};
use ulplab::studies::kernels::power::smallest_first;

use super::{problems_of, with_own_cases};

/// Operations of which some cases' rows are in no other batch, which of their cases these are, and why.
type Together = (&'static str, fn(&Case) -> bool, &'static str);

const ALL: fn(&Case) -> bool = |_| true;

const TOGETHER: &[Together] = &[
    (
        "delta_decode",
        ALL,
        "two rows must not have one state, so that no batch can have a row twice; batches of 2, 3, 5 and 11 rows are judged, \
         each element by its bound",
    ),
    (
        "delta_handover",
        ALL,
        "its kernels are those of delta_prefill, state_transpose and delta_decode",
    ),
    (
        "delta_prefill",
        ALL,
        "sequences have tokens one behind the other and different lengths; batches of 1, 3, 7 and 70 sequences are judged",
    ),
    (
        "quantize",
        |case| case.dim("FIND") == 1,
        "the scale is of the largest magnitude of all rows, so each row depends on all others",
    ),
    (
        "record_write",
        ALL,
        "two tokens must not have one slot, so that no batch can have a token twice; every byte of all pages is compared",
    ),
    (
        "scale_layout",
        ALL,
        "rows lie in tiles of 128, and a row's place depends on how many there are: every byte is compared",
    ),
    (
        "swap_ffn",
        ALL,
        "decisions follow the kernel's own numbers, and two variants are products whose algorithm the library chooses by the rows",
    ),
];

/// Variants whose rows may depend on their batch; the header says why.
const VARYING: [&str; 5] = [
    "mhc_pre.resident",
    "swap_ffn.unfused",
    "swap_ffn.cublaslt",
    "swap_ffn.cublaslt_bf16",
    "swap_ffn.cublaslt_fp8",
];

/// The largest buffers that are run as a graph and in other batches.
const MOST: usize = 256 << 20;

#[test]
fn rows_are_run_in_other_batches_or_a_reason_is_stated() {
    for op in with_own_cases() {
        let mut keys = BTreeSet::new();
        let random = |case: &Case| case.inputs == Inputs::Random;
        let found = |case: &Case| case.dims.iter().any(|(name, size)| *name == "FIND" && *size == 1);
        let of_kind = smallest_first(op).into_iter().filter(random);
        let first: Vec<Case> = of_kind
            .filter(|case| keys.insert((case.keys.clone(), found(case))))
            .collect();
        assert!(!first.is_empty(), "{}", op.name());
        let except = TOGETHER.iter().find(|(name, ..)| *name == op.name());
        let mut excepted = false;
        for (case, problem) in problems_of(op.name(), first) {
            let alone = problem.of_rows(&case, &[0]).is_some();
            let stated = except.is_some_and(|(_, which, _)| which(&case));
            excepted |= stated;
            assert_eq!(
                alone,
                !stated,
                "{} {}: rows are run in other batches, or TOGETHER says why not",
                op.name(),
                case.name
            );
            // Larger problems are neither run as a graph nor in other batches.
            let size: usize = problem.buffers.iter().map(Buffer::size).sum();
            assert!(size <= MOST, "{} {}: {size} bytes", op.name(), case.name);
        }
        assert_eq!(excepted, except.is_some(), "{} needs no exception", op.name());
    }
}

#[test]
fn kernels_repeat_their_bits_or_say_why_not() {
    let sources = Source::read_all(&Path::new(crate::ROOT).join("kernels"), &ulplab::ops::COMPOSITIONS).unwrap();
    let mut varying = Vec::new();
    for source in &sources {
        for variant in &source.header.variants {
            let name = format!("{}.{}", source.op, variant.name);
            assert!(
                variant.nondeterministic.is_none(),
                "{name} is neither run again nor replayed as a graph: no shipped kernel is"
            );
            if variant.varies_with_batch.is_some() {
                varying.push(name);
            }
        }
    }
    assert_eq!(varying, VARYING);
}
