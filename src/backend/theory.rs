//! What the error of a format should be.

use crate::formats::{Format, Group, Repr, Scale};
use crate::metrics::float_nsr;

/// Ratio of noise to signal that theory expects when `x`, rows of `cols`, is stored in a format; none for what theory does
/// not cover.
///
/// Floats: [`float_nsr`], whatever the scales, so a format that loses numbers below or above its range falls short of it.
/// Integers with f32 scales: an error uniform within a step, step² / 12, where the largest magnitude of a group is as many
/// steps as the largest code.
pub fn nsr(format: &Format, x: &[f32], cols: usize) -> Option<f64> {
    match format.element.repr {
        Repr::Float(cast) => Some(float_nsr(cast.float.mantissa_bits)),
        Repr::Integer(integer) => {
            let scaling = format
                .scaling
                .filter(|scaling| matches!(scaling.scale, Scale::F32(_)))?;
            let run = match scaling.group {
                Group::Tile { rows: 1, cols } => cols,
                Group::Token => cols,
                Group::Tensor => x.len(),
                Group::Tile { .. } | Group::Channel => return None,
            };
            Some(uniform_nsr(x, cols, run, f64::from(integer.max)))
        }
        Repr::Power(_) => None,
    }
}

/// Groups are `run` consecutive elements, cut at the end of a row if shorter than one.
fn uniform_nsr(x: &[f32], cols: usize, run: usize, steps: f64) -> f64 {
    let noise = |group: &[f32]| {
        let largest = group.iter().fold(0.0, |largest: f32, x| largest.max(x.abs()));
        group.len() as f64 * (f64::from(largest) / steps).powi(2) / 12.0
    };
    let signal: f64 = x.iter().map(|&x| f64::from(x).powi(2)).sum();
    let rows = x.chunks(cols.max(run));
    rows.flat_map(|row| row.chunks(run)).map(noise).sum::<f64>() / signal
}
