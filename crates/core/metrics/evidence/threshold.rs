//! Selections by scores with an error: the recall that is to be expected.

use statrs::distribution::{Continuous, ContinuousCDF, Normal};

use super::{Choice, Evidence, Number};

/// The error of scores relative to their spread, row by row, and the recall that follows from it.
///
/// Only contested rows count, as in [`Choice`]. An error that all scores of a row share changes no selection, so it is
/// removed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Threshold {
    /// Contested rows whose scores are not all equal.
    pub rows: u64,
    /// NaN and +∞ scores, and masses that are not finite, as in [`Choice`]; if there are any, every metric is NaN.
    pub nonfinite: u64,
    /// Σ over rows of ε: standard deviation of the scores' error over that of the scores.
    pub(in crate::metrics) error: f64,
    /// Σ over rows of the expected recall.
    pub(in crate::metrics) expected: f64,
    /// The measured recall, mean over contested rows.
    pub(in crate::metrics) recall: Option<f64>,
}

impl Threshold {
    /// `want`, `got`: scores `[rows, candidates]`, −∞ for items that must not be selected. `choice`: the selections made by
    /// them, `k` per row.
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

/// The expected share of the best p of N(0, 1) scores that remain the best if every score has an independent error of
/// standard deviation ε: to first order 1 − φ(z) ε / (√(2π) p) with z = Φ⁻¹(1 − p).
fn recall(error: f64, p: f64) -> f64 {
    let normal = Normal::standard();
    let z = normal.inverse_cdf(1.0 - p);
    1.0 - normal.pdf(z) * error / ((2.0 * std::f64::consts::PI).sqrt() * p)
}
