//! Columns and tables in reports of studies with data sources: one number for each recipe and source.

use crate::experiment::Source;
use crate::report::chart::{Mark, Point};
use crate::report::figures::{Figure, wide};
use crate::report::index::{Index, Quantity};
use crate::report::recipes::{Candidate, Gate};
use crate::report::table::{Row, Table};
use crate::report::{Summarized, number};
use crate::run::summary::Summary;
use ulplab_core::metrics::Metric;
use ulplab_core::record::Phase::Local;

/// Returns the summary of a metric for a recipe on a source, over all layers.
pub fn summary<'a>(index: &'a Index, recipe: &'a str, source: &'a str, metric: &'a Metric) -> Option<&'a Summary> {
    index.whole(recipe, Quantity::new(Local, source, metric.name))
}

pub fn value(index: &Index, recipe: &str, source: &str, metric: &Metric) -> Option<f64> {
    Some(summary(index, recipe, source, metric)?.mean)
}

/// Returns a function for a column that formats a metric on a source, with the confidence interval of its mean if `interval` is
/// set.
pub fn cell(
    source: &str,
    metric: &'static Metric,
    interval: bool,
) -> impl Fn(&Index, &Candidate) -> Option<String> + use<> {
    let source = source.to_string();
    move |index, candidate| {
        let found = summary(index, candidate.name, &source, metric)?;
        Some(match interval {
            true => number::of_metric_within(metric.name, found.mean, found.ci_low, found.ci_high),
            false => number::of_metric(metric.name, found.mean),
        })
    }
}

/// Returns a recipe's chart point. The point's mark shows the verdict of the gates.
pub fn point(candidate: &Candidate, cost: f64, error: f64, detail: String) -> Point {
    let mark = match candidate.gate {
        Gate::Pass(_) => Mark::Filled,
        Gate::Fail(_) => Mark::Cross,
        Gate::NotJudged { .. } | Gate::Control | Gate::Unbound => Mark::Hollow,
    };
    Point {
        name: candidate.name.into(),
        slot: candidate.slot,
        mark,
        cost,
        error,
        detail: format!("{}: {}\n{detail}", candidate.name, candidate.doc),
    }
}

/// Returns a table of a metric with its confidence intervals. `recipes` lists the rows: the name of a recipe, and a note. Each
/// source has a column. `site` gives the record's site for a source name.
pub fn by_source<'a, T>(
    run: &Summarized,
    sources: &[Source<T>],
    recipes: impl Iterator<Item = (&'a str, String)>,
    site: impl Fn(&str) -> String,
    metric: &Metric,
) -> Figure {
    let row = |(recipe, note): (&str, String)| {
        let cell = |source: &Source<T>| match summary(run.index, recipe, &site(&source.name), metric) {
            Some(s) => number::of_metric_within(&s.metric, s.mean, s.ci_low, s.ci_high),
            None => "—".into(),
        };
        Row {
            name: recipe.into(),
            note,
            cells: sources.iter().map(cell).collect(),
        }
    };
    let names = sources.iter().map(|source| source.name.clone());
    let table = Table {
        heads: std::iter::once(String::new()).chain(names).collect(),
        rows: recipes.map(row).collect(),
        numbers: true,
    };
    wide(table, String::new())
}
