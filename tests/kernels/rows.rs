//! RMSNorm and SwiGLU, alone and quantized.

use safetensors::Dtype;
use ulplab::formats::GlobalScale;
use ulplab::ops::{Case, Problem, Scalar};

use super::quantize::format;
use super::{accepts_only, buffer, problems, stored, values};

fn scalar(problem: &Problem, name: &str) -> f64 {
    match problem.scalars.iter().find(|(scalar, _)| *scalar == name) {
        Some((_, Scalar::F32(value))) => f64::from(*value),
        other => panic!("{name}: {other:?}"),
    }
}

/// Rows normalised in f64, rounded once.
fn normed(case: &Case, problem: &Problem) -> Vec<f32> {
    let (x, weight, eps) = (values(problem, "x"), values(problem, "weight"), scalar(problem, "eps"));
    let row = |x: &[f32]| {
        let squares: f64 = x.iter().map(|x| f64::from(*x) * f64::from(*x)).sum();
        let root = (squares / x.len() as f64 + eps).sqrt();
        let y = x
            .iter()
            .zip(&weight)
            .map(|(x, w)| (f64::from(*x) / root * f64::from(*w)) as f32);
        y.collect::<Vec<_>>()
    };
    x.chunks(case.dim("C")).flat_map(row).collect()
}

/// The activation in f64, rounded once.
fn activated(case: &Case, problem: &Problem) -> Vec<f32> {
    let (x, cols, limit) = (values(problem, "gate_up"), case.dim("C"), scalar(problem, "limit"));
    let row = |x: &[f32]| {
        let (gate, up) = x.split_at(cols);
        let y = gate.iter().zip(up).map(|(&gate, &up)| {
            let gate = if f64::from(gate) > limit { limit } else { gate.into() };
            let up = if up.is_nan() {
                f64::NAN
            } else {
                f64::from(up).clamp(-limit, limit)
            };
            (gate / (1.0 + (-gate).exp()) * up) as f32
        });
        y.collect::<Vec<_>>()
    };
    x.chunks(2 * cols).flat_map(row).collect()
}

/// Accepts y, and nothing with a flipped bit.
fn plain(op: &str, compute: fn(&Case, &Problem) -> Vec<f32>) {
    for (case, problem) in &problems(op) {
        let y = compute(case, problem);
        let output = buffer(problem, "y");
        accepts_only(case, problem, &[("y", stored(output.dtype == Dtype::BF16, &y))]);
    }
}

/// Accepts what y is quantized to, and nothing with a flipped bit.
fn quantized(op: &str, compute: fn(&Case, &Problem) -> Vec<f32>) {
    for (case, problem) in &problems(op) {
        let y = compute(case, problem);
        let amax = values(problem, "amax");
        let encoded = format(case.key("format")).encode(&y, case.dim("C"), GlobalScale::Stored(&amax));
        let part = |name| (name, encoded.part(name).to_vec());
        accepts_only(case, problem, &[part("data"), part("scale")]);
    }
}

#[test]
fn rmsnorm_wants_rows_over_their_root_mean_square() {
    plain("rmsnorm", normed);
}

#[test]
fn rmsnorm_quantize_wants_what_they_are_quantized_to() {
    quantized("rmsnorm_quantize", normed);
}

#[test]
fn swiglu_wants_the_clamped_activation() {
    plain("swiglu", activated);
}

#[test]
fn swiglu_quantize_wants_what_it_is_quantized_to() {
    quantized("swiglu_quantize", activated);
}
