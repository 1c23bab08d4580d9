//! Residual streams of a token (hyper-connections, mHC): computes the logits from which the weights of the streams follow, the
//! weighted sum of the streams, and the RMSNorm of this sum. The error bound of each number covers sums in any order, and the
//! rounding of inverse square roots and of sigmoids ([`super::near`]).

use reference::Real;
use reference::errors::ErrorModel;

use super::Call;
use super::near::{AnyOrder, Near};

/// Computes (`squares` / `count` + ε)^−½, the inverse root mean square of `count` numbers.
pub(super) fn inverse_rms(squares: Near, count: usize, eps: Near) -> Near {
    Near::ONE / (squares / Near::exact(count as f64) + eps).sqrt()
}

/// Computes the logits (fn·x/rms(x))·scale + base of a token with `streams` streams. `scale` has one number for all logits, or
/// three: for the first `streams` logits, for the next `streams`, and for all others.
pub(super) fn logits(call: &Call, x: &[f64], streams: usize) -> Vec<Near> {
    let [projection, base, scale] = ["fn", "base", "scale"].map(|name| &call.tensor(name).data);
    let inverse = inverse_rms(call.dot(x, x), x.len(), call.exact(call.number("norm_eps")));
    let logit = |(at, (weights, base)): (usize, (&[f64], &f64))| {
        let product = call.dot(weights, x);
        let normed = call.pick("streams_not_normed", product, product * inverse);
        normed * call.exact(scale[(at / streams).min(scale.len() - 1)]) + call.exact(*base)
    };
    projection.chunks(x.len()).zip(base).enumerate().map(logit).collect()
}

/// Sum of a token's streams, each multiplied by its weight.
pub(super) fn mixed(call: &Call, x: &[f64], weights: &[Near]) -> Vec<Near> {
    let channels = x.len() / weights.len();
    let mixed = |channel: usize| {
        let terms = weights.iter().enumerate();
        let terms = terms.map(|(stream, weight)| *weight * call.exact(x[stream * channels + channel]));
        call.sum_near(&terms.collect::<Vec<Near>>())
    };
    (0..channels).map(mixed).collect()
}

/// RMSNorm of a row: divides by the root mean square and multiplies by the call's `weight`. `divided` is false for a fault that
/// leaves out the division.
pub(super) fn normed(call: &Call, row: Vec<Near>, eps: f64, divided: bool) -> Vec<Near> {
    let weight = call.optional("weight").map(|weight| &weight.data);
    let inverse = inverse_rms(AnyOrder::dot(&row, &row), row.len(), call.exact(eps));
    let normed = |(at, x): (usize, &Near)| {
        let x = if divided { *x * inverse } else { *x };
        weight.map_or(x, |weight| x * call.exact(weight[at]))
    };
    row.iter().enumerate().map(normed).collect()
}
