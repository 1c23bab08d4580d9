//! Reports of the recall study: charts of the share of top-k entries that are no longer selected, over the error of their scores.

use super::RecallStudy;
use crate::experiment::Reading;
use crate::report::chart::Scatter;
use crate::report::figures::{Figure, HALF, Section, figure, fold};
use crate::report::index::Index;
use crate::report::overview::Column;
use crate::report::recipes::Group;
use crate::report::{Show, Summarized, number};
use crate::studies::show::{cell, point, value};
use crate::studies::sources;
use ulplab_core::metrics::{Metric, RECALL, RECALL_MASS, RECALL_THEORY, SCORE_ERROR};

impl Show for RecallStudy {
    fn reading(&self) -> Reading<'_> {
        Reading::new(self.model.as_deref(), self.tokens, &self.windows)
    }

    fn drawn(&self) -> Option<String> {
        let [queries, entries] = self.shape;
        sources::drawn(self.draws, &format!("{queries} × {entries}"))
    }

    /// For every source: the size of the score error, the expected recall, the measured recall, and the recall weighted by
    /// attention.
    fn columns(&self) -> Vec<Column> {
        let of_source = |(at, name): (usize, &str)| {
            let weight = 40u8.saturating_sub(10 * at as u8);
            let column = |title, doc, less, metric: &'static Metric| {
                Column::new([title, name], doc, weight - less, cell(name, metric, metric == &RECALL))
            };
            let error = "Standard deviation of the scores' error over the scores' standard deviation.";
            let theory = "Recall to expect of normal scores with independent errors of that size.";
            let recall = "Share of the best entries that are still selected, with a 95 % bootstrap interval of the mean over \
                          draws or windows of text.";
            let mass = "The same, every entry weighted by the attention the reference gives it.";
            [
                column("score error", error, 2, &SCORE_ERROR),
                column("theory", theory, 1, &RECALL_THEORY),
                column("recall", recall, 0, &RECALL),
                column("by mass", mass, 3, &RECALL_MASS),
            ]
        };
        let names = self.sources.iter().take(4).map(|source| source.name.as_str());
        names.enumerate().flat_map(of_source).collect()
    }

    /// Charts of lost selections against the score error, one for each source.
    fn sections(&self, run: &Summarized) -> Vec<Section> {
        let sources = self.sources.iter();
        let intro = "What is no longer selected, against the size of the scores' error. The line is theory, normal scores with \
                     independent errors: formats on it lose what any error of their size would, formats above it more.";
        let figures = sources.flat_map(|source| lost(run, &source.name)).collect();
        let title = "Lost selections against score error";
        vec![Section::new("recall", title, intro, figures)]
    }

    fn order(&self, _index: &Index) -> &'static str {
        "by lost selections on the first source, least first"
    }

    fn sort_key(&self, index: &Index, recipe: &str, _at: usize) -> Option<f64> {
        Some(1.0 - value(index, recipe, &self.sources.first()?.name, &RECALL)?)
    }

    fn group(&self, recipe: &str, _sized: &dyn Fn(&str) -> bool) -> (Group, Option<&str>) {
        match self.recipes.iter().find(|other| other.name == recipe && other.noise) {
            Some(control) => {
                let mut others = self.recipes.iter().filter(|other| !other.noise);
                let controlled = others.find(|other| other.rounds == control.rounds);
                (Group::Noise, controlled.map(|recipe| recipe.name.as_str()))
            }
            None => (Group::Plain, None),
        }
    }
}

fn lost(run: &Summarized, source: &str) -> Vec<Figure> {
    let measured = || {
        run.candidates.iter().filter_map(|candidate| {
            let value = |metric: &Metric| value(run.index, candidate.name, source, metric);
            Some((candidate, value(&SCORE_ERROR)?, value(&RECALL)?, value(&RECALL_THEORY)?))
        })
    };
    let points = measured().map(|(candidate, error, recall, theory)| {
        let (got, want) = (number::share(recall), number::share(theory));
        let detail = format!("score error {}, recall {got}, in theory {want}", number::error(error));
        point(candidate, error, 1.0 - recall, detail)
    });
    let guide = measured().map(|(_, error, _, theory)| [error, 1.0 - theory]);
    let mut guide: Vec<[f64; 2]> = guide.filter(|[error, lost]| *error > 0.0 && *lost > 0.0).collect();
    guide.sort_by(|a, b| a[0].total_cmp(&b[0]));
    fold(points.collect(), source, |title, points| {
        let scatter = Scatter {
            title,
            unit: "1 − recall".into(),
            cost_unit: "score error, in standard deviations of the scores".into(),
            points,
            bound: None,
            guide: guide.clone(),
            size: HALF,
        };
        figure(scatter, String::new())
    })
}
