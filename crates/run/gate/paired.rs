//! Paired tests of windows that two models read: whether predictions became worse, and whether a divergence
//! between them tells so.

use crate::run::summary::{Summary, flips};
use crate::statistics::{Flips, Limits, holm, same_share};
use ulplab_core::metrics::{GAINED, KL, LOST, NET_LOST};
use ulplab_core::record::Phase;

/// Below this a p-value, adjusted for the number of recipes, shows a difference; limits of 95 % on both sides leave as much.
const LEVEL: f64 = 0.1;
/// Flips that are spread over windows less evenly than this p-value allows are not independent.
const CLUSTERED: f64 = 0.01;

/// Paired tests of one recipe against what it is compared with.
#[derive(Clone, Debug, PartialEq)]
pub struct Paired<'a> {
    pub recipe: &'a str,
    pub phase: Phase,
    pub site: &'a str,
    pub windows: u32,
    /// Mean over windows.
    pub kl: f64,
    /// Over all windows.
    pub flips: Flips,
    /// McNemar's exact test of the flips; NaN if they cluster in windows, so that they are not independent.
    pub p: f64,
    /// The p-value `p`, adjusted for all recipes of the phase (Holm).
    pub adjusted: f64,
    /// Mean share of positions that are lost, less those gained.
    pub net_lost: f64,
    /// Its limits; none with too few windows.
    pub limits: Option<Limits>,
}

impl Paired<'_> {
    /// True if the tests are defined, and neither shows a difference in the accuracy of predictions.
    pub fn is_silent(&self) -> bool {
        let has_zero = |limits: Limits| limits.low <= 0.0 && limits.high >= 0.0;
        self.adjusted > LEVEL && self.limits.is_some_and(has_zero)
    }
}

/// The tests of every recipe whose predictions were measured, in each phase.
pub fn paired(summaries: &[Summary]) -> Vec<Paired<'_>> {
    let finite = |values: &[f64]| values.iter().all(|value| value.is_finite());
    let mut tests: Vec<Paired> = summaries
        .iter()
        .filter(|lost| lost.metric == LOST.name)
        .filter_map(|lost| {
            let of = |metric| lost.beside(metric, summaries);
            let (gained, net, kl) = (of(&GAINED)?, of(&NET_LOST)?, of(&KL)?);
            let defined = finite(&lost.values) && finite(&gained.values);
            let by_window: Vec<Flips> = flips(lost, gained).collect();
            let flips: Flips = by_window.iter().copied().sum();
            let independent = defined && same_share(&by_window) >= CLUSTERED;
            Some(Paired {
                recipe: &lost.recipe,
                phase: lost.phase,
                site: &lost.site,
                windows: lost.windows,
                kl: kl.mean,
                flips,
                p: if independent { flips.exact() } else { f64::NAN },
                adjusted: f64::NAN,
                net_lost: net.mean,
                limits: net.limits(),
            })
        })
        .collect();
    for phase in [Phase::Local, Phase::Cumulative] {
        let mut of_phase: Vec<&mut Paired> = tests.iter_mut().filter(|test| test.phase == phase).collect();
        let p: Vec<f64> = of_phase.iter().map(|test| test.p).collect();
        for (test, adjusted) in of_phase.iter_mut().zip(holm(&p)) {
            test.adjusted = adjusted;
        }
    }
    tests
}

/// The recipe with the largest divergence whose predictions are as good as before, as far as the windows tell, and those of all recipes
/// that diverge less, too. Up to there a divergence says that a model is another one, and not that it is a worse one.
pub fn silent_zone<'t, 'a>(tests: &'t [Paired<'a>], phase: Phase) -> Option<&'t Paired<'a>> {
    let of_phase = || tests.iter().filter(|test| test.phase == phase);
    let shown = of_phase().filter(|test| !test.is_silent() && test.limits.is_some());
    let least = shown.map(|test| test.kl).fold(f64::INFINITY, f64::min);
    let silent = of_phase().filter(|test| test.is_silent() && test.kl < least);
    silent.max_by(|a, b| a.kl.total_cmp(&b.kl))
}
