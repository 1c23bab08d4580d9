//! Outputs beside what is expected of them, and the numbers in them.

use safetensors::Dtype;

use super::WHY;
use ulplab_operations::ops::data::f32_values;
use ulplab_operations::ops::judge::{Judge, Part};
use ulplab_operations::ops::{Buffer, Outputs};

const WHY_RECORDS: &str = "a record's bytes follow from the vector that is stored (docs/formats.md), which was kept; all other bytes \
                           must be as they were";

/// What a number must be, and how far a right one may be from it.
pub(super) type Expected = (f64, f64);

/// An output of numbers, or of a choice, beside what is expected of it.
pub(super) fn part(
    name: &'static str,
    dtype: Dtype,
    shape: &[usize],
    expected: Vec<Expected>,
    outputs: &Outputs,
) -> Part {
    if dtype == Dtype::I32 {
        let want: Vec<i32> = expected.iter().map(|(value, _)| *value as i32).collect();
        return equal(name, shape, &want, outputs);
    }
    let (want, bounds): (Vec<f64>, Vec<f64>) = expected.into_iter().unzip();
    let judge = Judge::within(name, dtype, shape, want, move |at, _| bounds[at], WHY).without_metrics();
    judge.on(outputs.get(name).to_vec())
}

/// The bytes that a buffer must have.
pub(super) fn of_bytes(buffer: Buffer, outputs: &Outputs) -> Part {
    let judge = Judge::equal(buffer.name, Dtype::U8, &buffer.shape, buffer.bytes, WHY_RECORDS);
    judge.on(outputs.get(buffer.name).to_vec())
}

pub(super) fn equal(name: &'static str, shape: &[usize], want: &[i32], outputs: &Outputs) -> Part {
    let bytes = want.iter().flat_map(|x| x.to_le_bytes()).collect();
    Judge::equal(name, Dtype::I32, shape, bytes, WHY).on(outputs.get(name).to_vec())
}

pub(super) fn integers(bytes: &[u8]) -> Vec<i32> {
    let chunks = bytes.chunks_exact(4);
    chunks
        .map(|bytes| i32::from_le_bytes(bytes.try_into().expect("four bytes")))
        .collect()
}

pub(super) fn numbers(dtype: Dtype, bytes: &[u8]) -> Vec<f32> {
    match dtype {
        Dtype::I32 => integers(bytes).into_iter().map(|x| x as f32).collect(),
        _ => f32_values(bytes, 4),
    }
}

/// The token with the largest logit, the first of equal ones; NaN is largest.
pub(super) fn best(logits: &[f32]) -> i32 {
    let mut out = [0];
    reference::ops::top_k::top_k(logits, logits.len(), 1, &mut out);
    out[0]
}
