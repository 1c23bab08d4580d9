//! Paired tests of two models that read the same windows of text. They test whether predictions became worse. The tests of all
//! recipes together also give the KL divergence up to which no test shows a difference.

use crate::run::summary::{Summary, flips};
use crate::statistics::{Flips, Limits, holm, same_share};
use ulplab_core::metrics::{GAINED, KL, LOST, NET_LOST};
use ulplab_core::record::Phase;

/// Significance level of McNemar's test: a p-value (adjusted for the number of recipes) of at most `LEVEL` shows a difference.
/// The other test, whether 0 is outside of the one-sided 95 % limits, has the same level: 5 % for each of the two limits.
const LEVEL: f64 = 0.1;
/// Level of the test that flips are spread evenly over windows. A p-value below this shows that flips cluster in windows, so that
/// they do not count as independent.
const CLUSTERED: f64 = 0.01;

/// Paired tests of one recipe against its counterpart, the recipe with which it is compared.
#[derive(Clone, Debug, PartialEq)]
pub struct Paired<'a> {
    pub recipe: &'a str,
    pub phase: Phase,
    pub site: &'a str,
    pub windows: u32,
    /// Mean KL divergence over windows.
    pub kl: f64,
    /// Number of predictions that changed from right to wrong, and from wrong to right, over all windows.
    pub flips: Flips,
    /// p-value of McNemar's exact test of the flips; NaN if they cluster in windows, so that they are not independent.
    pub p: f64,
    /// The p-value `p`, adjusted for all recipes of the phase (Holm).
    pub adjusted: f64,
    /// Mean share of predictions that were right and became wrong (lost), minus the share that became right (gained).
    pub net_lost: f64,
    /// One-sided 95 % confidence limits of `net_lost`; `None` with too few windows.
    pub limits: Option<Limits>,
}

impl Paired<'_> {
    /// True if McNemar's test and the limits are defined, and neither shows a difference in the accuracy of predictions.
    pub fn is_silent(&self) -> bool {
        let has_zero = |limits: Limits| limits.low <= 0.0 && limits.high >= 0.0;
        self.adjusted > LEVEL && self.limits.is_some_and(has_zero)
    }
}

/// Returns the paired tests of each recipe, in each phase in which its predictions were measured.
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

/// Returns the last recipe, in the order of KL divergence, for which neither its own tests nor those of any recipe before it
/// show a difference ([`Paired::is_silent`]). Up to this divergence, a recipe's predictions differ from those of the model it
/// is compared with, but no test shows that they are worse.
pub fn silent_zone<'t, 'a>(tests: &'t [Paired<'a>], phase: Phase) -> Option<&'t Paired<'a>> {
    let of_phase = || tests.iter().filter(|test| test.phase == phase);
    let shown = of_phase().filter(|test| !test.is_silent() && test.limits.is_some());
    let least = shown.map(|test| test.kl).fold(f64::INFINITY, f64::min);
    let silent = of_phase().filter(|test| test.is_silent() && test.kl < least);
    silent.max_by(|a, b| a.kl.total_cmp(&b.kl))
}
