//! Top-k selections by inexact scores, and the expected recall of such selections.

use statrs::distribution::{Continuous, ContinuousCDF, Normal};

use super::{Choice, Evidence, Number};

/// Error of scores relative to the spread of the scores, row by row, and the expected recall.
///
/// Only contested rows (more than k items that may be selected) count, as in [`Choice`]. The mean error of a row is removed,
/// because an error that all scores of a row share changes no selection.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Threshold {
    /// Number of contested rows (more than k items) whose scores are not all equal.
    pub rows: u64,
    /// Number of NaN and +∞ scores, and of masses (weights of items) that are not finite, as in [`Choice`]. If it is not 0, every
    /// metric is NaN.
    pub nonfinite: u64,
    /// Sum over rows of ε, the standard deviation of the scores' error divided by the standard deviation of the scores.
    pub(in crate::metrics) error: f64,
    /// Sum over rows of the expected recall.
    pub(in crate::metrics) expected: f64,
    /// Measured recall: the mean over contested rows (more than k items).
    pub(in crate::metrics) recall: Option<f64>,
}

impl Threshold {
    /// Compares the scores `want` and `got`, which are `[rows, candidates]`, with −∞ for items that must not be selected.
    /// `choice` holds the selections by these scores, `k` per row.
    ///
    /// # Panics
    /// If the lengths do not match.
    pub fn new<X: Number, Y: Number>(want: &[X], got: &[Y], candidates: usize, k: usize, choice: &Choice) -> Self {
        assert_eq!(want.len(), got.len(), "scores of the two sides");
        let mut threshold = Self {
            nonfinite: choice.nonfinite,
            recall: choice.mean(choice.recall),
            ..Self::default()
        };
        for (want, got) in want.chunks_exact(candidates).zip(got.chunks_exact(candidates)) {
            let all = want.iter().zip(got).map(|(&x, &y)| (x.into(), y.into()));
            let allowed = all.filter(|(x, _)| *x > f64::NEG_INFINITY);
            let (scores, errors): (Vec<f64>, Vec<f64>) = allowed.map(|(x, y)| (x, y - x)).unzip();
            if scores.len() > k && variance(&scores) > 0.0 {
                let error = (variance(&errors) / variance(&scores)).sqrt();
                threshold.rows += 1;
                threshold.error += error;
                threshold.expected += recall(error, k as f64 / scores.len() as f64);
            }
        }
        threshold
    }
}

fn variance(values: &[f64]) -> f64 {
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / values.len() as f64
}

/// Returns the expected recall if the largest N(0, 1) scores, a fraction p of all, are selected, and every score has an
/// independent error of standard deviation ε. To first order, this is 1 − φ(z) ε / (√(2π) p) with z = Φ⁻¹(1 − p), where φ is the
/// density and Φ the distribution function of N(0, 1).
fn recall(error: f64, p: f64) -> f64 {
    let normal = Normal::standard();
    let z = normal.inverse_cdf(1.0 - p);
    1.0 - normal.pdf(z) * error / ((2.0 * std::f64::consts::PI).sqrt() * p)
}
