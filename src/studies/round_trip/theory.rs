//! The theoretical error of a format.

use ulplab_core::formats::{Format, Group, Repr, Scale, ZeroPoint};
use ulplab_core::metrics::float_nsr;

/// Ratio of noise to signal that theory expects when `x`, rows of `cols`, is stored in a format; none for what theory does
/// not cover.
///
/// Floats: [`float_nsr`], for all scales, so a format that loses numbers below or above its range falls short of it.
/// Integers with f32, f16 or bf16 scales: an error uniform within a step, step² / 12, where the largest magnitude of a group is
/// as many steps as the largest code; or with a minimum as zero point, the range of a group. Not so of whole zero points, which cut
/// values off at an end, and of tables.
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

/// The largest magnitude of a group.
fn magnitude(group: &[f32]) -> f64 {
    group.iter().fold(0.0, |largest: f32, x| largest.max(x.abs())).into()
}

/// The distance of the largest value of a group from the smallest.
fn range(group: &[f32]) -> f64 {
    let ends = group.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(lo, hi), x| {
        (lo.min(*x), hi.max(*x))
    });
    f64::from(ends.1) - f64::from(ends.0)
}

/// Groups are `run` consecutive elements, cut at the end of a row if shorter than one; `step` gives the step of a group.
fn uniform_nsr(x: &[f32], cols: usize, run: usize, step: impl Fn(&[f32]) -> f64) -> f64 {
    let noise = |group: &[f32]| group.len() as f64 * step(group).powi(2) / 12.0;
    let signal: f64 = x.iter().map(|&x| f64::from(x).powi(2)).sum();
    let rows = x.chunks(cols.max(run));
    rows.flat_map(|row| row.chunks(run)).map(noise).sum::<f64>() / signal
}
