//! Confidence limits of a difference: the share of predictions that became wrong (lost) minus the share that became right
//! (gained). The limits come from the counts, since such flips are rare: if no window has a flip, a bootstrap of windows gives
//! limits without width.

use super::CONFIDENCE;
use super::binomial::{Flips, rate_above, rate_below};
use super::limit::Limits;

/// Flips of one window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    pub flips: Flips,
    /// Number of predictions in the window.
    pub predictions: u64,
}

/// Number of flips, over all windows, below which limits come from the counts of flips. If most windows have no flips, a
/// bootstrap of windows underestimates the uncertainty of the rate of flips.
pub const RARE: u64 = 20;

/// Returns the sum of the flips of all windows.
pub fn all(windows: &[Window]) -> Flips {
    windows.iter().map(|window| window.flips).sum()
}

/// Returns limits of the share lost minus the share gained, if predictions flip independently. The limits of each share get half
/// of the error probability (Clopper and Pearson 1934), so the limits of the difference hold with [`CONFIDENCE`] for any
/// dependence between the two shares.
pub fn limits(windows: &[Window]) -> Limits {
    let n: u64 = windows.iter().map(|window| window.predictions).sum();
    let Flips { lost, gained } = all(windows);
    let confidence = f64::midpoint(1.0, CONFIDENCE);
    let above = |count: u64| rate_above(count as usize, n as usize, confidence);
    let below = |count: u64| rate_below(count as usize, n as usize, confidence);
    Limits::new(below(lost) - above(gained), above(lost) - below(gained))
}

/// Test of a bound on the mean of x, by bets on each prediction (Waudby-Smith and Ramdas 2024): x is 1 for a lost prediction, −1
/// for a gained one and 0 for all others. `log` has the logarithms of two amounts of evidence: against a mean above the bound,
/// and against a mean below it. Let y = bound − x. If the mean of x is above the bound, the expectation of 1 + λy is at most 1,
/// for each stake λ ≥ 0 that keeps 1 + λy positive. So the product of these factors over all predictions is a supermartingale if
/// λ is chosen before its window is seen.
pub(super) struct Bets {
    pub log: [f64; 2],
    bound: f64,
    sum: f64,
    squares: f64,
}

impl Bets {
    pub fn new(bound: f64) -> Self {
        Self {
            log: [0.0; 2],
            bound,
            sum: 0.0,
            squares: 0.0,
        }
    }

    /// Multiplies the evidence by the bets on the predictions of the next window. The stake λ is about the best one for the
    /// earlier windows, Σy/Σy², limited so that no bet loses more than half of the evidence.
    pub fn add(&mut self, window: &Window) {
        let Flips { lost, gained } = window.flips;
        let others = window.predictions.saturating_sub(lost + gained);
        let each = [(lost, 1.0), (gained, -1.0), (others, 0.0)].map(|(count, x)| (count as f64, self.bound - x));
        let most = 0.5 / (1.0 + self.bound.abs());
        for (log, sign) in self.log.iter_mut().zip([1.0, -1.0]) {
            let best = match self.squares > 0.0 {
                true => (sign * self.sum / self.squares).clamp(0.0, most),
                false => 0.0,
            };
            let won = each.iter().map(|(count, y)| count * (best * sign * y).ln_1p());
            *log += won.sum::<f64>();
        }
        self.sum += each.iter().map(|(count, y)| count * y).sum::<f64>();
        self.squares += each.iter().map(|(count, y)| count * y * y).sum::<f64>();
    }
}
