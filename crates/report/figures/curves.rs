//! Charts of a metric along steps, tokens or events, a line for each recipe.

use super::{Figure, HALF, figure, fold};
use crate::Summarized;
use crate::chart::{Axis, Lines, Series};
use crate::recipes::Candidate;
use ulplab_core::metrics::Metric;

/// A chart of curves.
pub struct Curves {
    pub title: String,
    /// Label of the values.
    pub unit: &'static str,
    pub metric: &'static Metric,
    pub axis: Axis,
    /// True if the values' axis is logarithmic.
    pub log: bool,
    /// Further values that the axis must include.
    pub range: Vec<f64>,
}

impl Curves {
    /// A chart of all recipes, and folded ones of those that have no colour in it, all with the same axis.
    pub fn figures(self, run: &Summarized, points: impl Fn(&Candidate) -> Vec<(u32, f64)>) -> Vec<Figure> {
        let series = |candidate: &Candidate| Series {
            name: candidate.name.into(),
            slot: candidate.slot,
            dashed: false,
            points: points(candidate),
        };
        let all: Vec<Series> = run.candidates.iter().map(series).collect();
        let values = all.iter().flat_map(|series| series.points.iter().map(|point| point.1));
        let range: Vec<f64> = values.chain(self.range).collect();
        fold(all, &self.title, |title, series| {
            let lines = Lines {
                title,
                unit: self.unit.into(),
                log: self.log,
                axis: self.axis,
                metric: self.metric.name.into(),
                series,
                range: range.clone(),
                bound: None,
                size: HALF,
            };
            figure(lines, String::new())
        })
    }
}
