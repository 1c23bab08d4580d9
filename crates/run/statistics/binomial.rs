//! Counts of two outcomes.

use statrs::distribution::{ChiSquared, ContinuousCDF};
use statrs::function::beta::{beta_reg, inv_beta_reg, ln_beta};

/// The largest rate that is compatible with `count` of `n` draws, with this confidence (Clopper and Pearson 1934).
pub fn rate_above(count: usize, n: usize, confidence: f64) -> f64 {
    match count >= n {
        true => 1.0,
        false => inv_beta_reg((count + 1) as f64, (n - count) as f64, confidence),
    }
}

/// The smallest rate that is compatible with `count` of `n` draws, with this confidence.
pub fn rate_below(count: usize, n: usize, confidence: f64) -> f64 {
    match count {
        0 => 0.0,
        _ => inv_beta_reg(count as f64, (n - count + 1) as f64, 1.0 - confidence),
    }
}

/// Draws without a single alarm that show, with this confidence, that the rate of alarms is at most `rate`:
/// (1 − rate)ⁿ ≤ 1 − confidence.
pub fn draws_for(rate: f64, confidence: f64) -> u64 {
    ((1.0 - confidence).ln() / (-rate).ln_1p()).ceil() as u64
}

/// P(X ≤ k) of a binomial with n trials and probability p.
pub(super) fn cumulative(k: usize, n: usize, p: f64) -> f64 {
    match k >= n {
        true => 1.0,
        false => beta_reg((n - k) as f64, (k + 1) as f64, 1.0 - p),
    }
}

/// Pairs of answers that differ: one of the two is right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flips {
    /// Right before, and wrong now.
    pub lost: u64,
    /// Wrong before, and right now.
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
    /// Pairs that differ.
    pub fn all(self) -> u64 {
        self.lost + self.gained
    }

    /// McNemar's test that both directions are equally likely, two-sided and exact: of n flips, each is a loss with probability ½.
    /// 1 if there are none. Its level is at most the nominal one.
    pub fn exact(self) -> f64 {
        let (n, least) = (self.all() as usize, self.lost.min(self.gained) as usize);
        (2.0 * cumulative(least, n, 0.5)).min(1.0)
    }

    /// Evidence that losses are more likely than gains, which may be looked at after every flip: if they are not, it ever reaches
    /// 1/α with probability at most α (Ville 1939). The likelihood of the flips under a probability of losses that is uniform on
    /// (½, 1), over that under ½; it is a supermartingale for every probability up to ½.
    pub fn evidence_of_loss(self) -> f64 {
        let (b, c) = (self.lost as f64 + 1.0, self.gained as f64 + 1.0);
        let above_half = beta_reg(c, b, 0.5);
        (std::f64::consts::LN_2 * (self.all() + 1) as f64 + ln_beta(b, c)).exp() * above_half
    }
}

/// The p-value of the hypothesis that flips of several windows are losses with one probability, which independent flips are: Pearson's
/// χ² of the losses. 1 if fewer than two windows have flips, or all flips go one way.
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
