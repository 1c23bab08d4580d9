//! Statistical tests and limits. `docs/gates.md` says which test answers which question, and what it assumes;
//! `tests/statistics.rs` measures the tests' error rates.

pub mod binomial;
mod limit;
mod median;
pub mod net;
mod sequential;
mod tail;

pub use binomial::{Flips, draws_for, rate_above, rate_below, same_share};
pub use limit::{LEAST_WINDOWS, Limits, bootstrap, limits, mean_and_error};
pub use median::{half_interval, outside};
pub use sequential::{Decision, Evidence, decide};
pub use tail::{LEAST_EXCESSES, Scale, Threshold, threshold};

/// Confidence of every limit, and of every statement about a rate.
pub const CONFIDENCE: f64 = 0.95;

/// Adjusts the p-values of several tests (Holm 1979). If the adjusted values are compared with a level, the probability of any
/// false rejection is at most this level, for any dependence between the tests. Keeps the order of the p-values. NaN stays NaN,
/// and counts as a test.
pub fn holm(p: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|&a, &b| p[a].total_cmp(&p[b]));
    let (mut adjusted, mut largest) = (vec![f64::NAN; p.len()], 0.0_f64);
    for (rank, at) in order.into_iter().enumerate().filter(|(_, at)| !p[*at].is_nan()) {
        largest = largest.max((p.len() - rank) as f64 * p[at]).min(1.0);
        adjusted[at] = largest;
    }
    adjusted
}
