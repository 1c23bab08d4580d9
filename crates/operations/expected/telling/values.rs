//! Values of a tensor that show faults: scales that differ by slice, near ties, dominant elements, dead slices, and exact numbers.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::Rng;
use safetensors::Dtype;
use ulplab_core::random::{below, gaussian};

use super::super::{Tensor, half_spacing, overflow, rounded};

/// Distribution of the values of all tensors of a call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Recipe {
    /// Normal numbers, each slice of every dimension with a scale of its own.
    Distinct,
    /// Numbers that differ by at most a fifth, with a common offset.
    Near,
    /// Normal numbers times powers of two with a wide range; one element dominates each row.
    Heavy,
    /// Normal numbers so small that an ε decides.
    Tiny,
    /// Large normal numbers.
    Huge,
    /// Normal numbers so large that sums overflow in a narrow type, with a factor that makes them small again.
    Overflow,
    /// Few distinct numbers, so that many are equal.
    Ties,
    /// Normal numbers, with slices of zeros.
    Dead,
    /// Integers from -3 to 3.
    Exact,
    /// Numbers next to the smallest normal number of the type.
    Subnormal,
}

/// Values that an argument may have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Legal {
    /// Any number.
    Any,
    /// Numbers from 0 to 1.
    Unit,
    /// Numbers above 0.
    Positive,
    /// Numbers of at most 0: logarithms of decays.
    Negative,
    /// Values that belong together: those of the example, repeated where the shape grows.
    Kept,
}

/// Legal values of the arguments that do not take any number, by operation (empty for all operations) and name.
const LEGAL: &[(&str, &str, Legal)] = &[
    ("", "a_scale", Legal::Positive),
    ("", "b_scale", Legal::Positive),
    ("", "cos", Legal::Kept),
    ("", "sin", Legal::Kept),
    ("", "temperature", Legal::Kept),
    ("", "noise", Legal::Kept),
    ("diagonal_ssm", "a", Legal::Unit),
    ("gated_delta", "g", Legal::Negative),
    ("gated_delta", "beta", Legal::Unit),
    // Equal logits decide either way, and what follows differs.
    ("swap_ffn", "router", Legal::Kept),
    ("swap_ffn", "router_bias", Legal::Kept),
    ("swap_ffn", "film_alpha", Legal::Kept),
    ("swap_ffn", "basis", Legal::Kept),
    ("swap_ffn", "decoder", Legal::Kept),
];

/// Returns the values that an argument may have.
pub(super) fn legal(operation: &str, name: &str) -> Legal {
    let found = LEGAL
        .iter()
        .find(|(of, known, _)| *known == name && (of.is_empty() || *of == operation));
    found.map_or(Legal::Any, |(.., legal)| *legal)
}

/// Repeats the elements of a tensor along each dimension, or cuts them off, to this shape.
pub(super) fn tiled(of: &Tensor, shape: &[usize]) -> Vec<f64> {
    let len = shape.iter().product();
    if of.data.is_empty() || of.shape.len() != shape.len() {
        return (0..len)
            .map(|at| of.data.get(at % of.data.len().max(1)).copied().unwrap_or(0.0))
            .collect();
    }
    let element = |mut at: usize| {
        let (mut index, mut stride) = (0, 1);
        for (size, own) in shape.iter().zip(&of.shape).rev() {
            index += at % size % own * stride;
            at /= size;
            stride *= own;
        }
        of.data[index]
    };
    (0..len).map(element).collect()
}

/// Draws the values of a tensor of this shape and type. `size` is the root mean square of the example.
pub(super) fn drawn(
    rng: &mut ChaCha8Rng,
    (recipe, legal): (Recipe, Legal),
    shape: &[usize],
    dtype: Dtype,
    size: f64,
) -> Vec<f64> {
    let len: usize = shape.iter().product();
    let cols = shape.last().copied().unwrap_or(1).max(1);
    let size = if size > 0.0 && size.is_finite() { size } else { 1.0 };
    let mut x: Vec<f64> = gaussian(rng, len).into_iter().map(f64::from).collect();
    match recipe {
        Recipe::Tiny | Recipe::Huge | Recipe::Overflow | Recipe::Subnormal => {}
        Recipe::Distinct => {
            let mut stride = 1;
            for size in shape.iter().rev() {
                let spread = 2.0 / shape.len() as f64;
                let scales: Vec<f64> = gaussian(rng, *size)
                    .into_iter()
                    .map(|x| (f64::from(x) * spread).exp2())
                    .collect();
                x.iter_mut()
                    .enumerate()
                    .for_each(|(at, x)| *x *= scales[at / stride % size]);
                stride *= size;
            }
        }
        Recipe::Near => x.iter_mut().for_each(|x| *x = 5.0 + unit(rng)),
        Recipe::Heavy => {
            x.iter_mut()
                .for_each(|x| *x *= (3.0 * (unit(rng) + unit(rng) - 1.0)).exp2());
            for row in x.chunks_mut(cols) {
                let at = below(rng, row.len());
                row[at] *= 12.0;
            }
        }
        Recipe::Ties => x.iter_mut().for_each(|x| *x = (2.0 * *x).round() / 2.0),
        Recipe::Dead => {
            let rows = len / cols;
            // Every third row, a run of columns, and the whole last eighth of the rows.
            let dead = |at: usize| (at / cols) % 3 == 1 || (at / cols) >= rows - rows / 8 || (at % cols) / 8 % 4 == 3;
            x.iter_mut()
                .enumerate()
                .for_each(|(at, x)| *x = if dead(at) && len > 1 { 0.0 } else { *x });
        }
        Recipe::Exact => x.iter_mut().for_each(|x| *x = below(rng, 7) as f64 - 3.0),
    }
    let rms = (x.iter().map(|x| x * x).sum::<f64>() / len.max(1) as f64).sqrt();
    let factor = match recipe {
        Recipe::Exact | Recipe::Near => 1.0,
        Recipe::Tiny => size * 2f64.powi(-11),
        Recipe::Huge => size * 2f64.powi(4),
        Recipe::Overflow => size * 2f64.powi(9),
        Recipe::Subnormal => 4.0 * half_spacing(dtype, 0.0) * 2f64.powi(if dtype == Dtype::F32 { 24 } else { 4 }),
        _ if rms > 0.0 => size / rms,
        _ => size,
    };
    let most = largest(dtype);
    let fitting = |x: f64| {
        let x = match legal {
            _ if recipe == Recipe::Exact && legal == Legal::Any => x,
            Legal::Unit => 1.0 / (1.0 + (-2.0 * x).exp()),
            Legal::Positive => size * x.clamp(-4.0, 4.0).exp2(),
            Legal::Negative if recipe == Recipe::Heavy => -(x * x).min(26.0),
            Legal::Negative => -(x * size).abs(),
            Legal::Any | Legal::Kept => x * factor,
        };
        stored(dtype, x.clamp(-most, most))
    };
    x.into_iter().map(fitting).collect()
}

/// Rounds to the nearest number of a type; scales of E8M0 are powers of two.
pub(super) fn stored(dtype: Dtype, x: f64) -> f64 {
    match dtype {
        Dtype::F8_E8M0 => x.abs().max(2f64.powi(-126)).log2().round().exp2(),
        dtype => rounded(dtype, x),
    }
}

/// Largest finite number of a type.
fn largest(dtype: Dtype) -> f64 {
    match dtype {
        Dtype::F8_E4M3 => 448.0,
        Dtype::F8_E5M2 => 57_344.0,
        dtype if overflow(dtype).is_finite() => overflow(dtype) * (1.0 - 2f64.powi(-9)),
        _ => f64::MAX,
    }
}

/// Draws a number from 0 up to 1.
pub(super) fn unit(rng: &mut ChaCha8Rng) -> f64 {
    (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}
