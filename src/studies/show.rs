//! What studies with sources show in the same way: a number for each recipe and source.

use std::borrow::Cow;

use crate::report::Summarized;
use crate::report::chart::{Mark, Point, escape};
use crate::report::figures::{Figure, Size, figure};
use crate::report::index::{Index, Quantity};
use crate::report::number;
use crate::report::overview::{Cell, Column};
use crate::report::recipes::{Candidate, Gate};
use crate::run::summary::Summary;
use ulplab_core::record::Phase::Local;

/// The value over all layers of a source.
pub fn summary<'a>(index: &'a Index, recipe: &'a str, source: &'a str, metric: &'a str) -> Option<&'a Summary> {
    index.whole(recipe, Quantity::new(Local, source, metric))
}

pub fn value(index: &Index, recipe: &str, source: &str, metric: &str) -> Option<f64> {
    Some(summary(index, recipe, source, metric)?.mean)
}

/// A metric on a source, with the interval of its mean where `interval`.
pub fn cell(source: &str, metric: &'static str, interval: bool) -> Cell {
    let source = source.to_string();
    Box::new(move |index, candidate| {
        let found = summary(index, candidate.name, &source, metric)?;
        Some(match interval {
            true => number::of_metric_within(metric, found.mean, found.ci_low, found.ci_high),
            false => number::of_metric(metric, found.mean),
        })
    })
}

pub fn column(title: [&str; 2], doc: &'static str, weight: u8, cell: Cell) -> Column {
    Column {
        title: title.map(|line| Cow::Owned(line.to_string())),
        doc: Cow::Borrowed(doc),
        weight,
        cell,
    }
}

/// A recipe's point; its mark shows its verdict.
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

/// A table of a metric with its intervals: a row for each recipe, with the markup of its head, a column for each source, of
/// which `site` is the place; none without rows.
pub fn by_source<'a>(
    run: &Summarized,
    sources: &[&str],
    recipes: impl Iterator<Item = (String, &'a str)>,
    site: impl Fn(&str) -> String,
    metric: &str,
) -> Option<Figure> {
    let row = |(head, recipe): (String, &str)| {
        let cell = |source: &&str| {
            let site = site(source);
            let found = summary(run.index, recipe, &site, metric);
            let text = found.map_or("—".into(), |s| {
                number::of_metric_within(&s.metric, s.mean, s.ci_low, s.ci_high)
            });
            format!("<td class=\"n\">{text}</td>")
        };
        let cells: String = sources.iter().map(cell).collect();
        format!("<tr><th scope=\"row\">{head}</th>{cells}</tr>")
    };
    let rows: String = recipes.map(row).collect();
    let head = |source: &&str| format!("<th class=\"n\">{}</th>", escape(source));
    let heads: String = sources.iter().map(head).collect();
    (!rows.is_empty()).then(|| Figure {
        size: Size::Whole,
        ..figure(
            format!(
                "<div class=\"wide\"><table><thead><tr><th></th>{heads}</tr></thead><tbody>{rows}</tbody></table></div>"
            ),
            String::new(),
        )
    })
}
