//! The share of predictions that are lost minus the share gained, with limits from the counts. Flips are rare: if no window has a
//! flip, the values alone would say that the mean is known exactly.

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

/// Number of flips, over all windows, below which limits use counts. If most windows have no flips, a bootstrap of windows
/// underestimates how uncertain the rate of flips is.
pub const RARE: u64 = 20;

/// Returns the sum of the flips of all windows.
pub fn all(windows: &[Window]) -> Flips {
    windows.iter().map(|window| window.flips).sum()
}

/// Returns limits of the share lost minus the share gained, if predictions flip independently. The limits of each share have half
/// of the error probability (Clopper and Pearson 1934). The limits of the difference therefore hold with [`CONFIDENCE`], however
/// the two shares depend on each other.
pub fn limits(windows: &[Window]) -> Limits {
    let n: u64 = windows.iter().map(|window| window.predictions).sum();
    let Flips { lost, gained } = all(windows);
    let confidence = f64::midpoint(1.0, CONFIDENCE);
    let above = |count: u64| rate_above(count as usize, n as usize, confidence);
    let below = |count: u64| rate_below(count as usize, n as usize, confidence);
    Limits::new(below(lost) - above(gained), above(lost) - below(gained))
}

/// Logarithms of evidence against a mean above a bound, and against a mean below it, by bets on each prediction (Waudby-Smith and
/// Ramdas 2024). Let y = bound − x. If the mean of x is above the bound, the expectation of 1 + λy is at most 1, for each λ ≥ 0
/// that keeps the factor positive. So the product over predictions is a supermartingale if λ is chosen before its window is seen.
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

    /// Bets on the predictions of the next window. The stake is the best one for the windows so far, about Σy/Σy², limited so
    /// that no bet loses more than half.
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
