//! Statistics of counts with two outcomes.

use statrs::distribution::{ChiSquared, ContinuousCDF};
use statrs::function::beta::{beta_reg, inv_beta_reg, ln_beta};

/// Returns the one-sided upper confidence limit of the rate of hits, if `count` of `n` draws were hits (Clopper and Pearson
/// 1934).
pub fn rate_above(count: usize, n: usize, confidence: f64) -> f64 {
    match count >= n {
        true => 1.0,
        false => inv_beta_reg((count + 1) as f64, (n - count) as f64, confidence),
    }
}

/// Returns the one-sided lower confidence limit of the rate of hits, if `count` of `n` draws were hits.
pub fn rate_below(count: usize, n: usize, confidence: f64) -> f64 {
    match count {
        0 => 0.0,
        _ => inv_beta_reg(count as f64, (n - count + 1) as f64, 1.0 - confidence),
    }
}

/// Returns the number n of draws that are needed to show, with this confidence, that the alarm rate is at most `rate`, if no draw
/// gives an alarm: the least n with (1 − rate)ⁿ ≤ 1 − confidence.
pub fn draws_for(rate: f64, confidence: f64) -> u64 {
    ((1.0 - confidence).ln() / (-rate).ln_1p()).ceil() as u64
}

/// Returns P(X ≤ k) of a binomial distribution with n trials and probability p.
pub(super) fn cumulative(k: usize, n: usize, p: f64) -> f64 {
    match k >= n {
        true => 1.0,
        false => beta_reg((n - k) as f64, (k + 1) as f64, 1.0 - p),
    }
}

/// Counts of flips. A flip is a position at which exactly one of two models predicts the right token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flips {
    /// Number of predictions that the first model got right, and the second model wrong.
    pub lost: u64,
    /// Number of predictions that the first model got wrong, and the second model right.
    pub gained: u64,
}

impl std::iter::Sum for Flips {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, flips| Self {
            lost: sum.lost + flips.lost,
            gained: sum.gained + flips.gained,
        })
    }
}

impl Flips {
    /// Returns the number of all flips.
    pub fn all(self) -> u64 {
        self.lost + self.gained
    }

    /// Returns the p-value of McNemar's test of the hypothesis that losses and gains are equally likely. The test is two-sided
    /// and exact: each of n flips is a loss with probability ½. Returns 1 if there are no flips. The actual level is at most the
    /// nominal level.
    pub fn exact(self) -> f64 {
        let (n, least) = (self.all() as usize, self.lost.min(self.gained) as usize);
        (2.0 * cumulative(least, n, 0.5)).min(1.0)
    }

    /// Returns evidence that losses are more likely than gains, which may be tested after every flip: if losses are not more
    /// likely, the probability that the evidence ever reaches 1/α is at most α (Ville 1939). The evidence is a likelihood ratio
    /// of the flips: the likelihood for a probability of losses that is uniform on (½, 1), divided by the likelihood for the
    /// probability ½. The ratio is a supermartingale for every probability up to ½.
    pub fn evidence_of_loss(self) -> f64 {
        let (b, c) = (self.lost as f64 + 1.0, self.gained as f64 + 1.0);
        let above_half = beta_reg(c, b, 0.5);
        (std::f64::consts::LN_2 * (self.all() + 1) as f64 + ln_beta(b, c)).exp() * above_half
    }
}

/// Returns the p-value of Pearson's χ² test of this hypothesis: a flip is a loss with the same probability in all windows.
/// Independent flips meet this hypothesis. Returns 1 if fewer than two windows have flips, or if all flips are losses or all are
/// gains.
pub fn same_share(windows: &[Flips]) -> f64 {
    let with_flips = || windows.iter().filter(|flips| flips.all() > 0);
    let (lost, all) = with_flips().fold((0, 0), |(lost, all), flips| (lost + flips.lost, all + flips.all()));
    let share = lost as f64 / all as f64;
    let spread = |flips: &Flips| {
        let n = flips.all() as f64;
        (flips.lost as f64 - n * share).powi(2) / (n * share * (1.0 - share))
    };
    match (with_flips().count(), lost) {
        (0 | 1, _) | (_, 0) => 1.0,
        _ if lost == all => 1.0,
        (n, _) => ChiSquared::new((n - 1) as f64)
            .expect("it is positive")
            .sf(with_flips().map(spread).sum()),
    }
}
