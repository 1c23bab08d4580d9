//! Statistics of metrics over the windows (samples of data) of a run.

use std::collections::HashMap;

use rayon::prelude::*;

use crate::statistics::{self, Decision, Evidence, Flips, Limits, bootstrap, net};
use ulplab_core::list::grouped;
use ulplab_core::metrics::{GAINED, LOST, Metric, NET_LOST, PERPLEXITY};
use ulplab_core::record::{Phase, Record};

/// Smallest number of windows for a confidence interval: a single window shows no variation.
pub const LEAST_WINDOWS: u32 = 2;

/// Number of bootstrap resamples.
const RESAMPLES: usize = 2000;

/// Statistics of one metric at one site, over the windows.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    pub recipe: String,
    pub phase: Phase,
    pub layer: Option<u32>,
    pub site: String,
    pub metric: String,
    pub windows: u32,
    pub mean: f64,
    pub min: f64,
    pub max: f64,
    /// 95 % percentile-bootstrap interval of the mean over windows; NaN with fewer than [`LEAST_WINDOWS`] windows. With few
    /// windows, the coverage is below 95 %. For normally distributed values, the coverage is 49 % with 2 windows (the interval is
    /// their range), 74 % with 3, 80 % with 4, 86 % with 8, 92 % with 16. If all values are equal, the interval has no width.
    pub ci_low: f64,
    pub ci_high: f64,
    /// Values in the order of the windows; not stored with a summary.
    pub values: Vec<f64>,
    /// Flips (predictions that changed between right and wrong) of each window, in the same order; only for the metric
    /// `net_lost`. Empty if the flips of a window are unknown.
    pub flips: Vec<net::Window>,
}

impl Summary {
    /// Returns the bootstrap seed of a group of records (one metric of a recipe at one site). It depends on the names only: the
    /// group has the same resamples in every run.
    fn seed(recipe: &str, phase: Phase, layer: Option<u32>, site: &str, metric: &str) -> [u8; 32] {
        let layer = layer.map(|layer| layer.to_string()).unwrap_or_default();
        let group = [recipe, phase.name(), &layer, site, metric];
        blake3::hash(group.join("/").as_bytes()).into()
    }

    /// Returns one-sided limits of the mean; `None` if [`statistics::limits`] defines none. For the metric `net_lost`, returns
    /// `None` if the counts of flips are unknown. If flips are rare, widens the limits to include the limits from these counts.
    pub fn limits(&self) -> Option<Limits> {
        let seed = Self::seed(&self.recipe, self.phase, self.layer, &self.site, &self.metric);
        if self.metric == NET_LOST.name && self.flips.is_empty() {
            return None;
        }
        if self.metric == PERPLEXITY.name {
            let Limits { low, high } = statistics::limits(&logarithms(&self.values), seed)?;
            return Some(Limits::new(low.exp(), high.exp()));
        }
        let of_values = statistics::limits(&self.values, seed);
        if self.flips.len() < statistics::LEAST_WINDOWS || net::all(&self.flips).all() >= net::RARE {
            return of_values;
        }
        let of_counts = net::limits(&self.flips);
        let wider = |of: Limits| Limits::new(of.low.min(of_counts.low), of.high.max(of_counts.high));
        Some(of_values.map_or(of_counts, wider))
    }

    /// Returns the summary of another metric for the same recipe, phase, layer and site.
    pub fn beside<'s>(&self, metric: &Metric, summaries: &'s [Self]) -> Option<&'s Self> {
        let place = |of: &Self| {
            (of.layer, of.phase) == (self.layer, self.phase) && of.site == self.site && of.recipe == self.recipe
        };
        let mut others = summaries.iter();
        others.find(|other| other.metric == metric.name && place(other))
    }

    /// Tests sequentially, window after window, whether the mean meets a bound ([`statistics::decide`]).
    pub fn decide(&self, bound: f64, lower: bool) -> (Decision, usize, Evidence) {
        match self.metric == PERPLEXITY.name {
            true => statistics::decide(&logarithms(&self.values), &[], bound.ln(), lower),
            false => statistics::decide(&self.values, &self.flips, bound, lower),
        }
    }
}

/// Summarizes records over their windows: one summary for each recipe, phase, site, layer and metric, sorted in this order.
/// Recipes, sites and metrics keep the order in which they first appear.
///
/// A NaN in any window makes all statistics NaN: a NaN is a result, and must not be dropped.
pub fn summarize(records: &[Record]) -> Vec<Summary> {
    let (mut recipes, mut sites, mut metrics) = (HashMap::new(), HashMap::new(), HashMap::new());
    let mut groups = grouped(records.iter().map(|record| {
        let (recipe, site) = (rank(&mut recipes, &record.recipe), rank(&mut sites, &record.site));
        let metric = rank(&mut metrics, &record.metric);
        ((recipe, record.phase, site, record.layer, metric), record)
    }));
    groups.sort_by_key(|(key, ..)| *key);
    let mut summaries: Vec<Summary> = groups.par_iter().map(|(_, records)| summary(records)).collect();
    for at in 0..summaries.len() {
        if summaries[at].metric == NET_LOST.name {
            summaries[at].flips = by_window(&summaries[at], &groups[at].1, &summaries);
        }
    }
    summaries
}

/// Returns the flips of each window of `net`, a summary of the metric `net_lost`. Computes them from the counts of lost and
/// gained predictions at the same site; empty if the count of a window is unknown.
fn by_window(net: &Summary, records: &[&Record], summaries: &[Summary]) -> Vec<net::Window> {
    let [Some(lost), Some(gained)] = [&LOST, &GAINED].map(|metric| net.beside(metric, summaries)) else {
        return Vec::new();
    };
    let known = |of: &Summary| of.values.len() == records.len() && !of.mean.is_nan();
    if !known(lost) || !known(gained) {
        return Vec::new();
    }
    let window = |(flips, record): (Flips, &&Record)| net::Window {
        flips,
        predictions: record.n,
    };
    flips(lost, gained).zip(records).map(window).collect()
}

/// Returns the flips of each window, from the summaries of lost and gained predictions.
pub fn flips(lost: &Summary, gained: &Summary) -> impl Iterator<Item = Flips> {
    let pairs = lost.values.iter().zip(&gained.values);
    pairs.map(|(&lost, &gained)| Flips {
        lost: lost as u64,
        gained: gained as u64,
    })
}

/// Returns the index of a name in the order of first appearance.
fn rank<'a>(names: &mut HashMap<&'a str, usize>, name: &'a str) -> usize {
    let next = names.len();
    *names.entry(name).or_insert(next)
}

/// Returns the statistics of one group of records, which must not be empty.
fn summary(records: &[&Record]) -> Summary {
    let first = records[0];
    let values: Vec<f64> = records.iter().map(|record| record.value).collect();
    let seed = || Summary::seed(&first.recipe, first.phase, first.layer, &first.site, &first.metric);
    let mut statistics = described(&values, seed);
    if first.metric == PERPLEXITY.name {
        // The perplexity of all tokens follows from the mean of losses, not from the mean of perplexities.
        let [mean, _, _, low, high] = described(&logarithms(&values), seed).map(f64::exp);
        let [_, min, max, ..] = statistics;
        statistics = [mean.max(min).min(max), min, max, low, high];
    }
    let [mean, min, max, ci_low, ci_high] = statistics;
    Summary {
        recipe: first.recipe.clone(),
        phase: first.phase,
        layer: first.layer,
        site: first.site.clone(),
        metric: first.metric.clone(),
        windows: values.len() as u32,
        mean,
        min,
        max,
        ci_low,
        ci_high,
        values,
        flips: Vec::new(),
    }
}

fn logarithms(values: &[f64]) -> Vec<f64> {
    values.iter().map(|value| value.ln()).collect()
}

/// Returns the mean, minimum and maximum of the values, and the ends of the 95 % bootstrap interval of the mean.
fn described(values: &[f64], seed: impl FnOnce() -> [u8; 32]) -> [f64; 5] {
    if values.iter().any(|value| value.is_nan()) {
        return [f64::NAN; 5];
    }
    let min = values.iter().copied().fold(f64::INFINITY, f64::min);
    let max = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    // A mean of infinities of both signs is NaN. Otherwise clamp: rounding may carry the mean out of the range of the values.
    let mean = |sum: f64| {
        let mean = sum / values.len() as f64;
        if mean.is_nan() { mean } else { mean.clamp(min, max) }
    };
    let all = mean(values.iter().sum());
    if (values.len() as u64) < u64::from(LEAST_WINDOWS) {
        return [all, min, max, f64::NAN, f64::NAN];
    }
    if min == max {
        return [all; 5];
    }
    let means = bootstrap(values, seed(), RESAMPLES, |resample| mean(resample.iter().sum()));
    // Cut off 2.5 % of the resamples at each end.
    let outside = RESAMPLES / 40;
    [all, min, max, means[outside], means[RESAMPLES - 1 - outside]]
}
