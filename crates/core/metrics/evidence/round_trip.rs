//! Numbers that are stored in a format and read back.

use super::Pair;

/// Sums over a round trip: a tensor is stored in a format and read back. They complement the sums of [`Pair`].
///
/// If an element is NaN or infinite, every metric is NaN.
#[derive(Clone, Debug, PartialEq)]
pub struct RoundTrip<'a> {
    /// The numbers before and after the round trip.
    pub pair: &'a Pair,
    /// Σ e² / Σ x² of every row that is not all zero, in ascending order; e is the error of an element x.
    pub(in crate::metrics) row_nsr: Vec<f64>,
    /// Number of nonzero elements, and number of nonzero elements that were read back as zero (`zeroed`).
    pub(in crate::metrics) nonzero: u64,
    pub(in crate::metrics) zeroed: u64,
    /// Number of stored bits per element, including the bits of scales.
    pub stored_bits: f64,
    /// Theoretical noise-to-signal ratio; `None` if no theory applies to the format.
    pub theory_nsr: Option<f64>,
    /// Noise-to-signal ratio of another format on the same numbers, for a comparison.
    pub rival_nsr: Option<f64>,
}

impl<'a> RoundTrip<'a> {
    /// Compares `want` and `got`, which are the `[rows, cols]` tensors of `pair`.
    ///
    /// # Panics
    /// If the lengths differ, or `cols` is 0.
    pub fn new(pair: &'a Pair, want: &[f32], got: &[f32], cols: usize, stored_bits: f64) -> Self {
        assert_eq!(want.len(), got.len(), "elements of the two tensors");
        let rows = want.chunks(cols).zip(got.chunks(cols));
        let mut row_nsr: Vec<f64> = rows.filter_map(|(want, got)| nsr(want, got)).collect();
        row_nsr.sort_by(f64::total_cmp);
        let nonzero = want.iter().zip(got).filter(|(x, _)| **x != 0.0);
        Self {
            pair,
            row_nsr,
            nonzero: nonzero.clone().count() as u64,
            zeroed: nonzero.filter(|(_, y)| **y == 0.0).count() as u64,
            stored_bits,
            theory_nsr: None,
            rival_nsr: None,
        }
    }

    /// Returns the quantile `q` of the rows' SQNR, in dB; `q` = 0 is the worst row.
    pub(in crate::metrics) fn row_sqnr(&self, q: f64) -> Option<f64> {
        let rank = ((1.0 - q) * self.row_nsr.len() as f64).ceil() as usize;
        let last = self.row_nsr.len().checked_sub(1)?;
        Some(-10.0 * self.row_nsr[rank.saturating_sub(1).min(last)].log10())
    }
}

fn nsr(want: &[f32], got: &[f32]) -> Option<f64> {
    let (mut signal, mut noise) = (0.0, 0.0);
    for (&x, &y) in want.iter().zip(got) {
        let (x, y) = (f64::from(x), f64::from(y));
        signal += x * x;
        noise += (x - y) * (x - y);
    }
    (signal > 0.0).then(|| noise / signal)
}
