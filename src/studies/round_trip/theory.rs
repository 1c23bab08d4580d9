//! Theoretical error of numbers that are stored in a format.

use ulplab_core::formats::{Format, Group, Repr, Scale, ZeroPoint};
use ulplab_core::metrics::float_nsr;

/// Returns the noise-to-signal ratio that theory predicts when `x`, rows of `cols` elements, is stored in a format; `None` if
/// theory does not cover the format.
///
/// For floats, this is [`float_nsr`], with any kind of scale. The actual noise is larger if numbers are outside the format's
/// range. For integers with f32, f16 or bf16 scales, the error is uniform within a step, so the noise is step² / 12. The step
/// is the largest magnitude of a group divided by the largest code. If the zero point is the minimum, the step is the range of
/// the group divided by the largest code. Theory does not cover codebooks, groups of columns, and groups of several rows. It
/// also does not cover integer zero points, because they clip values at one end of the range.
pub fn nsr(format: &Format, x: &[f32], cols: usize) -> Option<f64> {
    match format.element.repr {
        Repr::Float(cast) => Some(float_nsr(cast.float.mantissa_bits)),
        Repr::Integer(integer) => {
            let scaling = format.scaling?;
            let span: fn(&[f32]) -> f64 = match scaling.scale {
                Scale::F32(_) | Scale::Half(..) => magnitude,
                Scale::Affine(affine) if affine.rule.zero == ZeroPoint::Minimum => range,
                _ => return None,
            };
            let run = match scaling.group {
                Group::Tile { rows: 1, cols } => cols,
                Group::Token => cols,
                Group::Tensor => x.len(),
                Group::Tile { .. } | Group::Column => return None,
            };
            Some(uniform_nsr(x, cols, run, |group| span(group) / f64::from(integer.max)))
        }
        Repr::Codebook(_) | Repr::Power(_) => None,
    }
}

/// Returns the largest magnitude of a group.
fn magnitude(group: &[f32]) -> f64 {
    group.iter().fold(0.0, |largest: f32, x| largest.max(x.abs())).into()
}

/// Returns the difference between the largest and the smallest value of a group.
fn range(group: &[f32]) -> f64 {
    let ends = group.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(lo, hi), x| {
        (lo.min(*x), hi.max(*x))
    });
    f64::from(ends.1) - f64::from(ends.0)
}

/// Returns the noise-to-signal ratio of errors that are uniform within a step. `step` returns the step of a group of `run`
/// consecutive elements. If `run` is shorter than a row, each row is divided into groups by itself.
fn uniform_nsr(x: &[f32], cols: usize, run: usize, step: impl Fn(&[f32]) -> f64) -> f64 {
    let noise = |group: &[f32]| group.len() as f64 * step(group).powi(2) / 12.0;
    let signal: f64 = x.iter().map(|&x| f64::from(x).powi(2)).sum();
    let rows = x.chunks(cols.max(run));
    rows.flat_map(|row| row.chunks(run)).map(noise).sum::<f64>() / signal
}
