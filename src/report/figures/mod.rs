//! Which charts a run deserves, and what to say beside them.

mod curves;
mod families;
mod fold;
mod gates;

pub use curves::Curves;
pub use fold::fold;

use super::chart::{Axis, Heat, HeatRow, Lines, Mark, Point, Scatter, Series};
use super::index::Quantity;
use super::number;
use super::overview::{CUMULATIVE_ERROR, KL, LOCAL_ERROR, RECALL};
use super::recipes::{Candidate, Gate, Group, REFERENCE};
use super::{Summarized, kernels, recurrence, sources, swap_ffn};
use crate::experiment::Kind;
use ulplab_core::record::Phase::{Cumulative, Local};

/// Charts under one heading.
pub struct Section {
    pub id: &'static str,
    pub title: &'static str,
    pub intro: &'static str,
    pub figures: Vec<Figure>,
}

impl Section {
    /// Figures that are shown at once, or those that are folded.
    pub fn figures(&self, folded: bool) -> Vec<&Figure> {
        self.figures.iter().filter(|figure| figure.folded == folded).collect()
    }
}

/// A chart and a line below it.
pub struct Figure {
    /// Finished.
    pub markup: String,
    pub caption: String,
    pub size: Size,
    /// Shown only if the reader opens it, below the section's other figures.
    pub folded: bool,
}

/// How much of the page's width a figure takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    Third,
    Half,
    Whole,
}

impl Size {
    /// Its class in the style sheet.
    pub fn class(self) -> &'static str {
        match self {
            Self::Third => "third",
            Self::Half => "half",
            Self::Whole => "whole",
        }
    }
}

pub const HALF: [f64; 2] = [560.0, 370.0];
const THIRD: [f64; 2] = [380.0, 250.0];

/// All sections that have something to show.
pub fn sections(run: &Summarized) -> Vec<Section> {
    let experiment = &run.run.manifest.experiment;
    let sections = match experiment.kind {
        Kind::Model => of_model(run),
        Kind::RoundTrip => sources::round_trip_sections(run),
        Kind::Recall => sources::recall_sections(run),
        Kind::Recurrence => recurrence::sections(run),
        Kind::SwapFfn => swap_ffn::sections(run),
        Kind::Kernels => kernels::sections(run),
    };
    let drawn = sections.into_iter().map(|mut section| {
        section.figures.retain(|figure| !figure.markup.is_empty());
        section
    });
    drawn.filter(|section| !section.figures.is_empty()).collect()
}

fn of_model(run: &Summarized) -> Vec<Section> {
    vec![
        Section {
            id: "front",
            title: "What a byte buys",
            intro: "Error after the last layer, and at the logits, against the size of a stored KV vector; less is \
                    better on both axes. Nothing measured beats the formats on the stepped line in both. Filled \
                    marks pass all gates that bind them, crosses fail one, hollow marks are bound by none or not judged.",
            figures: [
                ("Residual streams after the last layer", CUMULATIVE_ERROR),
                ("Logits", KL),
            ]
            .into_iter()
            .flat_map(|(title, quantity)| front(run, title, quantity))
            .collect(),
        },
        Section {
            id: "layers",
            title: "Error by layer",
            intro: "Local: every layer is fed the reference's input, so a layer that stands out is sensitive by \
                    itself. Cumulative: the candidate runs free, so a rising line is error that adds up and a flat \
                    one error that the model damps. Both charts have the same axis; rest the pointer on a layer to \
                    read its values. A cross at the top is NaN or infinity.",
            figures: error_by_layer(run),
        },
        Section {
            id: "heat",
            title: "Where the error arises",
            intro: "Every recipe in every layer, the least error first: a column that stands out is a layer that all formats \
                    hurt, a cell that stands out a layer that one of them hurts. Both maps have the same colours; rest the \
                    pointer on a cell to read its value.",
            figures: heat(run),
        },
        Section {
            id: "stored",
            title: "Stored vectors",
            intro: "What the format does to the KV vectors themselves, read back from the cache, before any layer \
                    uses them.",
            figures: ["attention.kv.window", "attention.kv.compressed"]
                .into_iter()
                .flat_map(|site| plain_lines(run, site, Quantity::new(Local, site, "relative_l2"), true, &[]))
                .collect(),
        },
        Section {
            id: "selection",
            title: "Selection and gain",
            intro: "Recall: the share of the reference's top-k choices that the candidate's indexer makes too; a \
                    token that is not chosen is lost to attention however well it is stored. Gain: error at a \
                    layer's output over error at its input; above 1 the layer amplifies what it is fed.",
            figures: selection(run),
        },
        Section {
            id: "noise",
            title: "Noise controls",
            intro: "Size or structure? A noise control replaces each rounding error by Gaussian noise of the same energy. Where the \
                    format (filled) is worse than its control (hollow), its error is aligned with what the model \
                    uses: a bias, or lost channels. Where the two agree, only the size of the error matters. The \
                    factor at the right is format over noise. Each small chart has its own axis.",
            figures: families::noise(run),
        },
        Section {
            id: "narrowed",
            title: "Narrowed recipes",
            intro: "Where does it hurt? A format on some channels, one reader or some layers only, below the recipe that uses it \
                    everywhere. The factor at the right is the share of the whole recipe's error that remains.",
            figures: families::narrowed(run),
        },
    ]
}

pub fn of_group<'a>(run: &'a Summarized, group: Group) -> impl Iterator<Item = &'a Candidate<'a>> + Clone {
    run.candidates.iter().filter(move |candidate| candidate.group == group)
}

/// The value after the last layer, or outside the layers.
fn final_value(run: &Summarized, name: &str, quantity: Quantity) -> Option<f64> {
    let summary = run
        .index
        .last(name, quantity)
        .or_else(|| run.index.whole(name, quantity))?;
    Some(summary.mean)
}

/// What a metric's values are, for an axis.
fn unit(quantity: Quantity) -> String {
    let metric = match quantity.metric {
        "relative_l2" => "relative L2 error",
        "kl" => "KL divergence, nats",
        other => other,
    };
    format!("{metric}, {}", quantity.phase)
}

/// The line of a recipe, solid in its own colour.
fn series(run: &Summarized, candidate: &Candidate, quantity: Quantity) -> Option<Series> {
    run.index.layers(candidate.name, quantity)?;
    Some(Series {
        name: candidate.name.into(),
        slot: candidate.slot,
        dashed: false,
        points: by_layer(run, candidate, quantity),
    })
}

/// Layers with their means over the windows.
fn by_layer(run: &Summarized, candidate: &Candidate, quantity: Quantity) -> Vec<(u32, f64)> {
    let layers = run.index.layers(candidate.name, quantity).into_iter().flatten();
    let values = layers.filter_map(|(layer, summary)| Some((*layer.as_ref()?, summary.mean)));
    values.collect()
}

fn front(run: &Summarized, title: &str, quantity: Quantity) -> Vec<Figure> {
    let point = |candidate: &Candidate| {
        let (cost, error) = (candidate.bytes_per_vector?, final_value(run, candidate.name, quantity)?);
        let (mark, verdict) = match candidate.gate {
            Gate::Pass(_) => (Mark::Filled, "passes its gates"),
            Gate::Fail(_) => (Mark::Cross, "fails a gate"),
            Gate::NotJudged { .. } => (Mark::Hollow, "not judged"),
            Gate::Control => (Mark::Hollow, "a control"),
            Gate::Unbound => (Mark::Hollow, "no gate binds it"),
        };
        Some(Point {
            name: candidate.name.into(),
            slot: candidate.slot,
            mark,
            cost,
            error,
            detail: format!(
                "{}: {}\n{} bytes, {} {}\n{verdict}",
                candidate.name,
                candidate.doc,
                number::tenths(cost),
                quantity.metric,
                number::error(error)
            ),
        })
    };
    let points: Vec<Point> = of_group(run, Group::Plain).filter_map(point).collect();
    fold(points, title, |title, points| {
        let names: Vec<&str> = points.iter().map(|point| point.name.as_str()).collect();
        let gate = gates::line(run, quantity, &names);
        let drawable = |point: &&Point| point.error.is_finite() && point.error > 0.0;
        let missing = points
            .iter()
            .filter(|point| !drawable(point))
            .map(|point| point.name.clone());
        let missing: Vec<String> = missing.collect();
        let mut caption = captions(gate.as_ref(), own_error(run, quantity));
        if !missing.is_empty() {
            caption += &format!(" Not drawn (0, NaN or infinite): {}.", missing.join(", "));
        }
        let scatter = Scatter {
            title,
            unit: unit(quantity),
            cost_unit: "bytes per stored KV vector".into(),
            points,
            bound: gate.map(|gate| gate.bound),
            guide: Vec::new(),
            size: HALF,
        };
        figure(scatter.svg(), caption)
    })
}

/// What is said of the gate's line, and then the rest.
fn captions(gate: Option<&gates::Line>, rest: String) -> String {
    match gate {
        Some(gate) => format!("{} {rest}", gate.caption),
        None => rest,
    }
}

/// What the reference's own error is, so that nobody reads more into a chart than it can tell.
fn own_error(run: &Summarized, quantity: Quantity) -> String {
    if !["relative_l2", "kl"].contains(&quantity.metric) {
        return String::new();
    }
    let worst = run
        .index
        .means(REFERENCE, quantity)
        .into_iter()
        .reduce(|a, b| if b.is_nan() || b > a { b } else { a });
    worst.map_or(String::new(), |error| {
        format!(
            "The reference's own error (f32 against f64) is at most {} here.",
            number::error(error)
        )
    })
}

pub fn figure(markup: String, caption: String) -> Figure {
    Figure {
        markup,
        caption,
        size: Size::Half,
        folded: false,
    }
}

/// Lines of the plain recipes.
fn plain_lines(run: &Summarized, title: &str, quantity: Quantity, log: bool, range: &[f64]) -> Vec<Figure> {
    let all: Vec<Series> = of_group(run, Group::Plain)
        .filter_map(|candidate| series(run, candidate, quantity))
        .collect();
    let values = all.iter().flat_map(|s| s.points.iter().map(|point| point.1));
    let range: Vec<f64> = values.chain(range.iter().copied()).collect();
    fold(all, title, |title, series| {
        let names: Vec<&str> = series.iter().map(|series| series.name.as_str()).collect();
        let gate = gates::line(run, quantity, &names);
        let caption = captions(gate.as_ref(), own_error(run, quantity));
        let bound = gate.map(|gate| gate.bound);
        let lines = Lines {
            title,
            unit: unit(quantity),
            log,
            axis: Axis::Layers,
            metric: quantity.metric.into(),
            series,
            range: range
                .iter()
                .copied()
                .chain(bound.iter().map(|bound| bound.value))
                .collect(),
            bound,
            size: HALF,
        };
        figure(lines.svg(), caption)
    })
}

fn error_by_layer(run: &Summarized) -> Vec<Figure> {
    let both = [LOCAL_ERROR, CUMULATIVE_ERROR];
    let names: Vec<&str> = of_group(run, Group::Plain).map(|candidate| candidate.name).collect();
    let gates = both.iter().filter_map(|quantity| gates::line(run, *quantity, &names));
    let values = names
        .iter()
        .flat_map(|name| both.map(|quantity| run.index.means(name, quantity)));
    let range: Vec<f64> = values.flatten().chain(gates.map(|gate| gate.bound.value)).collect();
    let local = plain_lines(run, "Local: each layer by itself", LOCAL_ERROR, true, &range);
    let cumulative = plain_lines(run, "Cumulative: running free", CUMULATIVE_ERROR, true, &range);
    // Side by side: the same recipes at the left and at the right.
    let (mut local, mut cumulative) = (local.into_iter(), cumulative.into_iter());
    let mut figures = Vec::new();
    loop {
        match (local.next(), cumulative.next()) {
            (None, None) => return figures,
            (left, right) => figures.extend(left.into_iter().chain(right)),
        }
    }
}

/// Error of every recipe in every layer, fed the reference's input and running free.
fn heat(run: &Summarized) -> Vec<Figure> {
    let maps = [
        ("Local: each layer by itself", LOCAL_ERROR),
        ("Cumulative: running free", CUMULATIVE_ERROR),
    ];
    let recipes: Vec<&Candidate> = run.candidates.iter().filter(|c| c.group != Group::Reference).collect();
    let range = recipes
        .iter()
        .flat_map(|c| maps.map(|(_, quantity)| by_layer(run, c, quantity)));
    let range: Vec<f64> = range.flatten().map(|(_, value)| value).collect();
    let map = |(title, quantity): (&str, Quantity)| {
        let row = |candidate: &&Candidate| HeatRow {
            name: candidate.name.into(),
            values: by_layer(run, candidate, quantity),
        };
        let heat = Heat {
            title: title.into(),
            unit: unit(quantity),
            metric: quantity.metric.into(),
            rows: recipes.iter().map(row).filter(|row| !row.values.is_empty()).collect(),
            range: range.clone(),
            width: 1120.0,
        };
        Figure {
            size: Size::Whole,
            ..figure(heat.svg(), String::new())
        }
    };
    maps.map(map).into()
}

fn selection(run: &Summarized) -> Vec<Figure> {
    let recall = RECALL.into_iter().find(|quantity| run.index.has(*quantity));
    let gain = [Cumulative, Local].map(|phase| Quantity::new(phase, "output", "gain"));
    let gain = gain.into_iter().find(|quantity| run.index.has(*quantity));
    let recall = recall
        .into_iter()
        .flat_map(|quantity| plain_lines(run, "Recall of the indexer", quantity, false, &[1.0]));
    let gain = gain
        .into_iter()
        .flat_map(|quantity| plain_lines(run, "Gain of a layer", quantity, true, &[1.0]));
    recall.chain(gain).collect()
}
