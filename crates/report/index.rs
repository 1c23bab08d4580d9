//! Index of a run's summaries (statistics over input windows) by recipe, measured quantity and layer.

use std::collections::{BTreeMap, HashMap, HashSet};

use reference::paths::{Path, readers};

use ulplab_core::record::Phase;
use ulplab_run::run::Run;
use ulplab_run::run::summary::Summary;

/// A measured quantity: a metric of one site (a tensor of the model) in one phase (local or cumulative).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Quantity<'a> {
    pub phase: Phase,
    pub site: &'a str,
    pub metric: &'a str,
}

impl<'a> Quantity<'a> {
    pub const fn new(phase: Phase, site: &'a str, metric: &'a str) -> Self {
        Self { phase, site, metric }
    }
}

/// Summaries by layer, in the order of layers. The key `None`, for a site outside the layers, comes first.
pub type Layers<'a> = BTreeMap<Option<u32>, &'a Summary>;

/// Summaries of a run's measurements (statistics over input windows), by recipe and quantity.
pub struct Index<'a> {
    summaries: HashMap<(&'a str, Quantity<'a>), Layers<'a>>,
    /// Model architecture of the run; `None` if no sites of a known model were measured.
    pub path: Option<&'static Path>,
    /// Last layer after which the residual stream was measured.
    pub last_layer: Option<u32>,
}

impl<'a> Index<'a> {
    pub fn new(run: &'a Run) -> Self {
        let mut summaries: HashMap<_, Layers> = HashMap::new();
        for summary in &run.summaries {
            let quantity = Quantity::new(summary.phase, &summary.site, &summary.metric);
            let of = summaries.entry((summary.recipe.as_str(), quantity)).or_default();
            of.insert(summary.layer, summary);
        }
        let path = path_of(run);
        let stream = path.and_then(Path::stream).map(|site| site.name);
        let left = run.summaries.iter();
        let left = left.filter(|summary| Some(summary.site.as_str()) == stream);
        Self {
            summaries,
            path,
            last_layer: left.filter_map(|summary| summary.layer).max(),
        }
    }

    /// Returns the summaries (statistics over windows) of a quantity for a recipe, by layer.
    pub fn layers<'b>(&'b self, recipe: &'b str, quantity: Quantity<'b>) -> Option<&'b Layers<'b>> {
        self.summaries.get(&(recipe, quantity))
    }

    /// Returns the means of a quantity over windows, one for each layer.
    pub fn means(&self, recipe: &str, quantity: Quantity) -> Vec<f64> {
        let layers = self.layers(recipe, quantity).into_iter().flatten();
        layers.map(|(_, summary)| summary.mean).collect()
    }

    /// Returns the summary (statistics over windows) of a quantity after the last layer.
    pub fn last<'b>(&'b self, recipe: &'b str, quantity: Quantity<'b>) -> Option<&'b Summary> {
        self.layers(recipe, quantity)?.get(&self.last_layer).copied()
    }

    /// Returns the summary (statistics over windows) of a quantity at a site outside the layers.
    pub fn whole<'b>(&'b self, recipe: &'b str, quantity: Quantity<'b>) -> Option<&'b Summary> {
        self.layers(recipe, quantity)?.get(&None).copied()
    }

    /// Returns the summaries of a metric at all sites outside the layers.
    pub fn sites<'b>(&'b self, recipe: &'b str, phase: Phase, metric: &'b str) -> impl Iterator<Item = &'b Summary> {
        let here = self.summaries.iter().filter(move |((name, quantity), _)| {
            *name == recipe && quantity.phase == phase && quantity.metric == metric
        });
        here.filter_map(|(_, layers)| layers.get(&None).copied())
    }

    /// True if the quantity was measured for any recipe.
    pub fn has(&self, quantity: Quantity) -> bool {
        self.summaries.keys().any(|(_, other)| *other == quantity)
    }
}

/// Finds the model architecture that has all measured sites: a stored run names its sites, but not its architecture.
fn path_of(run: &Run) -> Option<&'static Path> {
    let sites: HashSet<&str> = run.summaries.iter().map(|summary| summary.site.as_str()).collect();
    let has_all = |path: &&Path| !sites.is_empty() && sites.iter().all(|site| path.site(site).is_some());
    readers().into_iter().find(has_all)
}

/// Returns the mean; NaN if any value is NaN, `None` without values.
pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// Returns the median; NaN if any value is NaN, `None` without values.
pub fn median(values: &[f64]) -> Option<f64> {
    if values.iter().any(|value| value.is_nan()) {
        return Some(f64::NAN);
    }
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match (sorted.len(), sorted.len() / 2) {
        (0, _) => None,
        (count, middle) if count % 2 == 1 => Some(sorted[middle]),
        (_, middle) => Some((sorted[middle - 1] + sorted[middle]) / 2.0),
    }
}

/// Returns the minimum; NaN if any value is NaN, `None` without values.
pub fn min(values: &[f64]) -> Option<f64> {
    let values = values.iter().copied();
    values.reduce(|a, b| if a.is_nan() || a < b { a } else { b })
}
