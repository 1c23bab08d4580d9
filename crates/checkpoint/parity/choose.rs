//! Chooses the best of several explanations of the same differing bytes.

use super::{Cause, Example, Finding, Scope};

/// Minimum fraction of the differences that a cause must explain to be reported.
pub const ENOUGH: f64 = 0.9;
/// Explanations are equally good if their scores differ by less than this.
const SAME: f64 = 0.004;
/// Maximum number of equally good explanations that are reported in addition to the first one.
const OTHERS: usize = 2;

/// A possible cause of differing bytes in a sample, and the indices of the differences that this cause explains.
pub struct Explanation {
    pub cause: Cause,
    pub detail: String,
    /// Details of other explanations that are equally good.
    pub others: Vec<String>,
    /// Indices of the differences that this explanation explains, in ascending order.
    pub explained: Vec<usize>,
    /// False-alarm rate: fraction of the matching entries for which the explanation wrongly predicts a difference.
    pub alarms: f64,
}

impl Explanation {
    /// Creates an explanation without false alarms, and without other explanations that are equally good.
    pub fn new(cause: Cause, detail: String, explained: Vec<usize>) -> Self {
        Self {
            cause,
            detail,
            others: Vec::new(),
            explained,
            alarms: 0.0,
        }
    }

    /// Creates an explanation from its test on a sample of codes or scales. `explains` has a flag for each sampled entry that
    /// differs: true if the explanation predicts the stored bytes. `alarms` has a flag for each entry that matches: true if the
    /// explanation wrongly predicts a difference. Returns `None` if no difference is explained.
    pub fn tested(
        cause: Cause,
        detail: String,
        explains: impl Iterator<Item = bool>,
        alarms: impl ExactSizeIterator<Item = bool>,
    ) -> Option<Self> {
        let explained = explains.enumerate().filter(|(_, explains)| *explains);
        let explained: Vec<usize> = explained.map(|(index, _)| index).collect();
        let matches = alarms.len().max(1) as f64;
        (!explained.is_empty()).then(|| Self {
            alarms: alarms.filter(|alarm| *alarm).count() as f64 / matches,
            ..Self::new(cause, detail, explained)
        })
    }

    /// Filters the differences `open` (indices): returns the ones that this explanation explains.
    fn of<'a>(&'a self, open: &'a [usize]) -> impl Iterator<Item = usize> + 'a {
        let open = open.iter().copied();
        open.filter(|index| self.explained.binary_search(index).is_ok())
    }
}

/// Converts explanations of a sample to findings. The sample has `looked` of `all` differences; the counts of the findings are
/// scaled by `all / looked`.
pub fn findings(
    chosen: Vec<Explanation>,
    scope: &Scope,
    (looked, all): (usize, usize),
    example: impl Fn(usize) -> Example,
) -> Vec<Finding> {
    let count = |of: usize| (of as u128 * all as u128).div_ceil(looked.max(1) as u128) as usize;
    let finding = |one: Explanation| Finding {
        others: one.others,
        example: one.explained.first().map(|index| example(*index)),
        ..scope.finding(one.cause, one.detail, count(one.explained.len()).min(all))
    };
    chosen.into_iter().map(finding).collect()
}

/// Chooses the best one or two of the explanations `tried`. Returns them, and the indices of the differences that remain
/// unexplained. Explanations with equal scores are reported together, in the order of `tried`.
pub fn choose(tried: &[Explanation], differing: usize) -> (Vec<Explanation>, Vec<usize>) {
    let all: Vec<usize> = (0..differing).collect();
    let Some(first) = best(tried, &all, ENOUGH) else {
        // No single explanation suffices: look for a pair whose first explanation covers at least 40 % of the differences. The
        // pair must leave less than 5 % unexplained.
        let half = best(tried, &all, 0.4);
        let two = half.and_then(|first| {
            let open = rest(&all, &first);
            let second = best(tried, &open, ENOUGH)?;
            let open = rest(&open, &second);
            ((open.len() as f64) < (1.0 - ENOUGH) * 0.5 * differing as f64).then_some((vec![first, second], open))
        });
        return two.unwrap_or((Vec::new(), all));
    };
    let open = rest(&all, &first);
    match best(tried, &open, ENOUGH).filter(|_| open.len() > 2) {
        Some(second) => {
            let left = rest(&open, &second);
            (vec![first, second], left)
        }
        None => (vec![first], open),
    }
}

fn rest(of: &[usize], chosen: &Explanation) -> Vec<usize> {
    let open = of.iter().filter(|index| !chosen.explained.contains(index));
    open.copied().collect()
}

fn best(tried: &[Explanation], open: &[usize], enough: f64) -> Option<Explanation> {
    let worth = |tried: &Explanation| match tried.of(open).count() as f64 / open.len().max(1) as f64 {
        share if share >= enough && !open.is_empty() => share - 0.5 * tried.alarms,
        _ => f64::NEG_INFINITY,
    };
    let worth: Vec<f64> = tried.iter().map(worth).collect();
    let top = worth.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let equal = worth.iter().zip(tried);
    let equal = equal.filter(|(worth, _)| worth.is_finite() && **worth >= top - SAME);
    let equal: Vec<&Explanation> = equal.map(|(_, tried)| tried).collect();
    let first = *equal.first()?;
    let others = equal.iter().skip(1).filter(|other| other.cause != first.cause);
    Some(Explanation {
        others: others.map(|other| other.detail.clone()).take(OTHERS).collect(),
        alarms: first.alarms,
        ..Explanation::new(first.cause, first.detail.clone(), first.of(open).collect())
    })
}
