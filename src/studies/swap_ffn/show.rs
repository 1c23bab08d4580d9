//! Reports on Swap-FFN: how long the decisions equal the reference's, and the errors that follow once they differ.

use super::{Recipe, SwapFfnStudy};
use crate::report::chart::{Axis, Lines};
use crate::report::figures::{Figure, HALF, Section, by_layer, recipe_lines};
use crate::report::index::{Index, Quantity};
use crate::report::overview::Column;
use crate::report::recipes::Group;
use crate::report::{Show, Summarized, number};
use crate::studies::sources;
use ulplab_core::metrics::{self, GATE_AGREEMENT, Metric, RELATIVE_L2};
use ulplab_core::record::Phase::{self, Cumulative, Local};

/// A measurement at checkpoints: phase, site name without the leading source name, metric, and description of its values.
type Measured = (Phase, &'static str, &'static Metric, &'static str);

const X: Measured = (Local, "x", &RELATIVE_L2, "relative L2 error of x after an event");
const NEXT: Measured = (Local, "next", &GATE_AGREEMENT, "share of next gates that are the same");
const FLIPS: Measured = (Local, "decisions", &metrics::FLIPS_OUTSIDE, "flips outside the margin");
const GATE: Measured = (
    Cumulative,
    "decisions",
    &GATE_AGREEMENT,
    "share of gates that are the same",
);
const BANK: Measured = (
    Cumulative,
    "decisions",
    &metrics::BANK_AGREEMENT,
    "share of banks that are the same, both gates open",
);
const MARGIN: Measured = (
    Cumulative,
    "decisions",
    &metrics::FLIP_MARGIN,
    "median margin of flips, in logits",
);
const HISTORY: Measured = (Cumulative, "lanes", &metrics::SAME_HISTORY, "share of cores");
const LANES: Measured = (Cumulative, "lanes", &metrics::LANE_DISTANCE, "lanes of four");
const RAM: Measured = (Cumulative, "ram", &RELATIVE_L2, "relative L2 error");
const COSINE: Measured = (Cumulative, "delta", &metrics::COSINE, "cosine");

/// Returns a recipe's value of a measurement after `tokens` tokens.
fn value(index: &Index, recipe: &str, source: &str, (phase, what, metric, _): Measured, tokens: usize) -> Option<f64> {
    let site = format!("{source}.{what}.{tokens}");
    Some(index.whole(recipe, Quantity::new(phase, &site, metric.name))?.mean)
}

impl Show for SwapFfnStudy {
    fn drawn(&self) -> Option<String> {
        sources::drawn_of(self.draws, self.shape, ["sequences", "tokens"])
    }

    /// Columns for every source: the largest local error of x, and the decisions that flipped outside the margin; then, after all
    /// tokens, the shares of equal decisions and the cosine of the outputs.
    fn columns(&self) -> Vec<Column> {
        let tokens = self.shape[1];
        // Use the local errors at all checkpoints: they do not grow with the tokens, since each event starts from the reference's
        // state. Use the cumulative errors only at the last checkpoint, since they add up over the tokens.
        let at = |phase| match phase {
            Local => self.checkpoints().collect(),
            Cumulative => vec![tokens],
        };
        let of_source = |(number, source): (usize, &str)| {
            let column = |title: [&str; 2], less: usize, measured: Measured, doc: &str| {
                let (source, at) = (source.to_string(), at(measured.0));
                let weight = 100usize.saturating_sub(10 * number + less) as u8;
                Column::new(title, doc, weight, move |index, candidate| {
                    let after = |tokens: &usize| value(index, candidate.name, &source, measured, *tokens);
                    let worst = at.iter().filter_map(after).reduce(number::larger)?;
                    Some(number::of_metric(measured.2.name, worst))
                })
            };
            let after = format!("after {tokens} tokens");
            let x = "Largest relative L2 error of x after an event that starts from the reference's state.";
            let flips = "Decisions from the reference's state that fell otherwise outside the stated margin.";
            let gates = format!("Share of gates that are the reference's, running free, {after}.");
            let history = format!("Share of cores whose decisions all were the reference's, {after}.");
            let cosine = format!("Cosine of the tokens' deltas, {after}.");
            [
                column([source, "x, local"], 1, X, x),
                column(["flips", "outside"], 4, FLIPS, flips),
                column(["same", "gates"], 0, GATE, &gates),
                column(["same", "history"], 2, HISTORY, &history),
                column(["delta", "cosine"], 3, COSINE, &cosine),
            ]
        };
        let names = self.sources.iter().map(|source| source.name.as_str());
        names.enumerate().flat_map(of_source).collect()
    }

    /// Charts of every measurement against tokens, and of the first token's gates against events.
    fn sections(&self, run: &Summarized) -> Vec<Section> {
        let names = || self.sources.iter().map(|source| source.name.as_str());
        // Charts of the same measurement for different sources are placed side by side.
        let charts = |all: &[(&str, Measured)]| -> Vec<Figure> {
            let each = all.iter().flat_map(|chart| names().map(move |source| (chart, source)));
            let charts = each.flat_map(|((title, measured), source)| curves(self, run, source, title, *measured));
            charts.collect()
        };
        let intro = "Every event of a token starts from the reference's state and has its decisions, so that only its own error \
                     shows: that of x, and how many gates of the event behind it would fall otherwise on that x. A flat line \
                     says that states of later tokens are no harder than those of the first.";
        let figures = charts(&[("x after an event", X), ("the next decision", NEXT)]);
        let local = Section::new("local", "One event at a time", intro, figures);
        let intro = "Share of gates that are the reference's, event by event: how fast errors of x become decisions.";
        let figures = names().flat_map(|source| first(run, source)).collect();
        let first = Section::new("first", "Running free through the first token", intro, figures);
        let intro = "Decisions since the checkpoint before. What a gate lets in is another vector, and what it stores stays in \
                     a bank for later tokens: agreement that falls is divergence, not error. The margin of what fell \
                     otherwise tells near-ties, as small as the error of the logits, from decisions on another x.";
        let figures = charts(&[("gates", GATE), ("banks", BANK), ("margins", MARGIN)]);
        let decisions = Section::new("decisions", "Running free: decisions", intro, figures);
        let intro = "Cores of which every decision so far was the reference's; lanes that hold another bank, of which maps \
                     without relation have 3 of 4; the error of the banks; and the cosine of what the tokens yield.";
        let figures = charts(&[
            ("cores with the same history", HISTORY),
            ("lanes that differ", LANES),
            ("banks", RAM),
            ("delta", COSINE),
        ]);
        let state = Section::new("state", "Running free: what is carried", intro, figures);
        vec![local, first, decisions, state]
    }

    fn group(&self, recipe: &str, _sized: &dyn Fn(&str) -> bool) -> (Group, Option<&str>) {
        let computes = |other: &Recipe| other.name == recipe && !other.kernels.is_empty();
        match self.recipes.iter().any(computes) {
            true => (Group::Kernels, None),
            false => (Group::Plain, None),
        }
    }
}

fn curves(study: &SwapFfnStudy, run: &Summarized, source: &str, title: &str, measured: Measured) -> Vec<Figure> {
    let (_, _, metric, unit) = measured;
    let log = [&RELATIVE_L2, &metrics::FLIP_MARGIN].contains(&metric);
    let lines = Lines {
        title: format!("{source}: {title}"),
        unit: unit.into(),
        metric: metric.name.into(),
        axis: Axis::Tokens,
        log,
        range: match log {
            true => Vec::new(),
            false => vec![if metric == &metrics::LANE_DISTANCE { 0.0 } else { 1.0 }],
        },
        size: HALF,
        ..Lines::default()
    };
    recipe_lines(run, &lines, |candidate| {
        let points = study.checkpoints().filter_map(|tokens| {
            let value = value(run.index, candidate.name, source, measured, tokens)?;
            Some((tokens as u32, value))
        });
        points.collect()
    })
}

/// Chart of the gate agreement in the first token, by event.
fn first(run: &Summarized, source: &str) -> Vec<Figure> {
    let site = format!("{source}.first");
    let quantity = Quantity::new(Cumulative, &site, GATE_AGREEMENT.name);
    let lines = Lines {
        title: format!("{source}: gates of the first token"),
        unit: "share of gates that are the same".into(),
        metric: GATE_AGREEMENT.name.into(),
        axis: Axis::Events,
        range: vec![1.0],
        size: HALF,
        ..Lines::default()
    };
    recipe_lines(run, &lines, |candidate| by_layer(run, candidate, quantity))
}
