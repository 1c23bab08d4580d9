//! Chooses among explanations of the same differences.

use super::{Cause, Example, Finding, Scope};

/// The smallest share of differences that an explanation must explain.
pub const ENOUGH: f64 = 0.9;
/// Shares that differ by less count as equal.
const SAME: f64 = 0.004;
/// Most explanations that are named in addition to the first.
const OTHERS: usize = 2;

/// An explanation, tested on a sample of differences and of matches.
pub struct Hypothesis {
    pub cause: Cause,
    pub detail: String,
    /// For every difference: whether the explanation predicts the stored bytes.
    pub explains: Vec<bool>,
    /// The share of matches that it wrongly predicts to differ.
    pub alarms: f64,
}

impl Hypothesis {
    /// Tests an explanation on a sample. `explains` says for each difference if the explanation predicts the stored bytes. `alarms`
    /// says for each match if the explanation predicts a difference. Returns `None` if no difference is explained.
    pub fn new(
        cause: Cause,
        detail: String,
        explains: impl Iterator<Item = bool>,
        alarms: impl ExactSizeIterator<Item = bool>,
    ) -> Option<Self> {
        let explains: Vec<bool> = explains.collect();
        let matches = alarms.len().max(1) as f64;
        explains.contains(&true).then(|| Self {
            cause,
            detail,
            explains,
            alarms: alarms.filter(|alarm| *alarm).count() as f64 / matches,
        })
    }
}

/// An explanation that was chosen.
pub struct Explanation {
    pub cause: Cause,
    pub detail: String,
    /// Other explanations that hold equally well.
    pub others: Vec<String>,
    /// The indices of the differences that it explains.
    pub explained: Vec<usize>,
    /// The share of matches that it wrongly predicts to differ.
    pub alarms: f64,
}

impl Explanation {
    /// An explanation without others that hold equally well.
    pub fn new(cause: Cause, detail: String, explained: Vec<usize>) -> Self {
        Self {
            cause,
            detail,
            others: Vec::new(),
            explained,
            alarms: 0.0,
        }
    }
}

/// The findings of explanations of a sample: `looked` differences of `all`. Those not looked at are taken to be like the others.
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

/// The explanations of the differences, at most two, and the indices that they leave unexplained. Explanations that hold
/// equally well are named together, in the order of the list.
pub fn choose(tried: &[Hypothesis], differing: usize) -> (Vec<Explanation>, Vec<usize>) {
    let all: Vec<usize> = (0..differing).collect();
    let Some(first) = best(tried, &all, ENOUGH) else {
        // Two faults at once are assumed only if together they explain more than one of them.
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
    let mut chosen = vec![first];
    let mut left = open.clone();
    if let Some(second) = best(tried, &open, ENOUGH).filter(|_| open.len() > 2) {
        left = rest(&open, &second);
        chosen.push(second);
    }
    (chosen, left)
}

fn rest(of: &[usize], chosen: &Explanation) -> Vec<usize> {
    let open = of.iter().filter(|index| !chosen.explained.contains(index));
    open.copied().collect()
}

fn best(tried: &[Hypothesis], open: &[usize], enough: f64) -> Option<Explanation> {
    let share = |tried: &Hypothesis| {
        let explained = open.iter().filter(|index| tried.explains[**index]).count();
        explained as f64 / open.len().max(1) as f64
    };
    let worth = |tried: &Hypothesis| match share(tried) {
        share if share >= enough && !open.is_empty() => share - 0.5 * tried.alarms,
        _ => f64::NEG_INFINITY,
    };
    let worth: Vec<f64> = tried.iter().map(worth).collect();
    let top = worth.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let equal = worth.iter().zip(tried);
    let equal = equal.filter(|(worth, _)| worth.is_finite() && **worth >= top - SAME);
    let equal: Vec<&Hypothesis> = equal.map(|(_, tried)| tried).collect();
    let first = *equal.first()?;
    let others = equal.iter().skip(1).filter(|other| other.cause != first.cause);
    let explained = open.iter().copied().filter(|index| first.explains[*index]);
    Some(Explanation {
        others: others.map(|other| other.detail.clone()).take(OTHERS).collect(),
        alarms: first.alarms,
        ..Explanation::new(first.cause, first.detail.clone(), explained.collect())
    })
}
