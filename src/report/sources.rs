//! What reports show of round trips and recalls: a number for each recipe and source.

use std::borrow::Cow;

use super::Summarized;
use super::chart::{Dot, DotRow, Dots, Mark, Point, Scatter, escape};
use super::figures::{Figure, HALF, Section, Size, figure, fold, of_group};
use super::index::{Index, Quantity};
use super::number;
use super::overview::{Cell, Column};
use super::recipes::{Candidate, Gate, Group};
use crate::experiment::source::Origin;
use crate::experiment::{Experiment, Kind};
use crate::run::summary::Summary;
use ulplab_core::record::Phase::Local;

/// The value over all layers of a source.
pub fn summary<'a>(index: &'a Index, recipe: &'a str, source: &'a str, metric: &'a str) -> Option<&'a Summary> {
    index.whole(recipe, Quantity::new(Local, source, metric))
}

fn value(index: &Index, recipe: &str, source: &str, metric: &str) -> Option<f64> {
    Some(summary(index, recipe, source, metric)?.mean)
}

/// What recipes are sorted by: the error on the first source.
pub fn error(experiment: &Experiment, index: &Index, recipe: &str) -> Option<f64> {
    let source = &experiment.sources.first()?.name;
    match experiment.kind {
        Kind::Recall => Some(1.0 - value(index, recipe, source, "recall")?),
        _ => value(index, recipe, source, "relative_l2"),
    }
}

/// A metric on a source, with the interval of its mean where `interval`.
fn cell(source: &str, metric: &'static str, interval: bool) -> Cell {
    let source = source.to_string();
    Box::new(move |index, candidate| {
        let found = summary(index, candidate.name, &source, metric)?;
        Some(match interval {
            true => number::of_metric_within(metric, found.mean, found.ci_low, found.ci_high),
            false => number::of_metric(metric, found.mean),
        })
    })
}

fn column(title: [&str; 2], doc: &'static str, weight: u8, cell: Cell) -> Column {
    Column {
        title: title.map(|line| Cow::Owned(line.to_string())),
        doc: Cow::Borrowed(doc),
        weight,
        cell,
    }
}

/// Bits and theory, then SQNR on every source, then the cosine on the first.
pub fn round_trip(experiment: &Experiment) -> Vec<Column> {
    let names = experiment.sources.iter().map(|source| source.name.as_str());
    let Some(first) = names.clone().next() else {
        return Vec::new();
    };
    let sqnr = names.enumerate().map(|(at, name)| {
        let doc = "Signal-to-quantization-noise ratio in dB, with a 95 % bootstrap interval of the mean over draws or \
                   windows of text; of sites of a model the mean over their layers.";
        column(
            ["SQNR", name],
            doc,
            20u8.saturating_sub(at as u8),
            cell(name, "sqnr", true),
        )
    });
    let bits = "Bits an element takes in storage, its share of the scales included.";
    let theory = "SQNR in theory, dB: 6.02 M + 14.14 for floats with M mantissa bits, a twelfth of the squared step for \
                  integers on the first source.";
    let cosine = "Cosine on the first source between the numbers and what is read back.";
    [
        column(["bits", "stored"], bits, 40, cell(first, "stored_bits", false)),
        column(["SQNR", "theory"], theory, 30, cell(first, "sqnr_theory", false)),
    ]
    .into_iter()
    .chain(sqnr)
    .chain([column(["cosine", first], cosine, 2, cell(first, "cosine", false))])
    .collect()
}

/// For every source the size of the error, the recall it should leave, the one it leaves, and that of the mass.
pub fn recall(experiment: &Experiment) -> Vec<Column> {
    let of_source = |(at, name): (usize, &str)| {
        let weight = 40u8.saturating_sub(10 * at as u8);
        [
            column(
                ["score error", name],
                "Standard deviation of the scores' error over that of the scores.",
                weight - 2,
                cell(name, "score_error", false),
            ),
            column(
                ["theory", name],
                "Recall to expect of normal scores with independent errors of that size.",
                weight - 1,
                cell(name, "recall_theory", false),
            ),
            column(
                ["recall", name],
                "Share of the best entries that are still selected, with a 95 % bootstrap interval of the mean over \
                 draws or windows of text.",
                weight,
                cell(name, "recall", true),
            ),
            column(
                ["by mass", name],
                "The same, every entry weighted by the attention the reference gives it.",
                weight - 3,
                cell(name, "recall_mass", false),
            ),
        ]
    };
    let names = experiment.sources.iter().take(4).map(|source| source.name.as_str());
    names.enumerate().flat_map(of_source).collect()
}

/// Charts of a round trip.
pub fn round_trip_sections(run: &Summarized) -> Vec<Section> {
    let sources = &run.run.manifest.experiment.sources;
    let is_site = |from: &Origin| matches!(from, Origin::Site(_));
    let drawn = sources.iter().find(|source| !is_site(&source.from));
    let real = sources.iter().find(|source| is_site(&source.from));
    let chosen = drawn.into_iter().chain(real).map(|source| source.name.as_str());
    vec![
        Section {
            id: "front",
            title: "What a bit buys",
            intro: "Relative error against bits stored per element, scales included; less is better on both axes. Nothing \
                    measured beats the formats on the stepped line in both. Filled marks pass all gates that bind \
                    them, crosses fail one, hollow marks are bound by none. A mark without a name says it when the \
                    pointer rests on it.",
            figures: chosen.flat_map(|source| bits(run, source)).collect(),
        },
        Section {
            id: "spread",
            title: "How much the numbers matter",
            intro: "Every format on every source: filled marks are distributions, hollow ones tensors of the model. A format \
                    whose row is short does the same to all numbers; a long row depends on how they are spread. Rest \
                    the pointer on a mark to see which source it is.",
            figures: vec![spread(run)],
        },
        Section {
            id: "paired",
            title: "Set against each other",
            intro: "SQNR above that of another format on the very same numbers, in dB, with a 95 % interval of the mean: \
                    what one draw has more of than another does not count.",
            figures: paired(run).into_iter().collect(),
        },
    ]
}

/// Charts of a recall.
pub fn recall_sections(run: &Summarized) -> Vec<Section> {
    let sources = run.run.manifest.experiment.sources.iter();
    vec![Section {
        id: "recall",
        title: "Lost selections against score error",
        intro: "What is no longer selected, against the size of the scores' error. The line is theory, normal scores with \
                independent errors: formats on it lose what any error of their size would, formats above it more.",
        figures: sources.flat_map(|source| lost(run, &source.name)).collect(),
    }]
}

/// A recipe's point; its marks say what the gates do.
fn point(candidate: &Candidate, cost: f64, error: f64, detail: String) -> Point {
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

fn bits(run: &Summarized, source: &str) -> Vec<Figure> {
    let points = of_group(run, Group::Plain).filter_map(|candidate| {
        let value = |metric| value(run.index, candidate.name, source, metric);
        let (bits, error) = (value("stored_bits")?, value("relative_l2")?);
        let detail = format!(
            "{} bits, SQNR {} dB",
            number::error(bits),
            number::decibels(value("sqnr")?)
        );
        Some(point(candidate, bits, error, detail))
    });
    fold(points.collect(), source, |title, points| {
        let scatter = Scatter {
            title,
            unit: "relative L2 error".into(),
            cost_unit: "bits stored per element".into(),
            points,
            bound: None,
            guide: Vec::new(),
            size: [HALF[0], 460.0],
        };
        figure(scatter.svg(), String::new())
    })
}

fn lost(run: &Summarized, source: &str) -> Vec<Figure> {
    let measured = || {
        run.candidates.iter().filter_map(|candidate| {
            let value = |metric| value(run.index, candidate.name, source, metric);
            Some((
                candidate,
                value("score_error")?,
                value("recall")?,
                value("recall_theory")?,
            ))
        })
    };
    let points = measured().map(|(candidate, error, recall, theory)| {
        let (got, want) = (number::share(recall), number::share(theory));
        let detail = format!("score error {}, recall {got}, in theory {want}", number::error(error));
        point(candidate, error, 1.0 - recall, detail)
    });
    let mut guide: Vec<[f64; 2]> = measured()
        .map(|(_, error, _, theory)| [error, 1.0 - theory])
        .filter(|[error, lost]| *error > 0.0 && *lost > 0.0)
        .collect();
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
        figure(scatter.svg(), String::new())
    })
}

fn spread(run: &Summarized) -> Figure {
    let sources = &run.run.manifest.experiment.sources;
    let rows = of_group(run, Group::Plain).map(|candidate| {
        let mut dots: Vec<Dot> = sources
            .iter()
            .filter_map(|source| {
                let error = value(run.index, candidate.name, &source.name, "relative_l2")?;
                let site = matches!(source.from, Origin::Site(_));
                Some(Dot {
                    value: error,
                    mark: if site { Mark::Hollow } else { Mark::Filled },
                    detail: format!("{} on {}: {}", candidate.name, source.name, number::error(error)),
                })
            })
            .collect();
        dots.sort_by(|a, b| a.value.total_cmp(&b.value));
        DotRow {
            name: candidate.name.into(),
            slot: candidate.slot,
            head: false,
            dots,
            note: String::new(),
        }
    });
    let dots = Dots {
        title: "All sources".into(),
        unit: "relative L2 error".into(),
        rows: rows.collect(),
        width: 1120.0,
    };
    Figure {
        size: Size::Whole,
        ..figure(dots.svg(), String::new())
    }
}

/// A row for each recipe that is set against another.
fn paired(run: &Summarized) -> Option<Figure> {
    let rows = run.run.manifest.experiment.recipes.iter().filter_map(|recipe| {
        let against = recipe.against.as_ref()?;
        let name = format!("{} <small>over {}</small>", escape(&recipe.name), escape(against));
        Some((name, recipe.name.as_str()))
    });
    by_source(run, rows, str::to_string, "sqnr_gain")
}

/// A table of a metric with its intervals: a row for each recipe, with the markup of its head, a column for each source, of
/// which `site` is the place; none without rows.
pub fn by_source<'a>(
    run: &Summarized,
    recipes: impl Iterator<Item = (String, &'a str)>,
    site: impl Fn(&str) -> String,
    metric: &str,
) -> Option<Figure> {
    let sources = run.run.manifest.experiment.sources.iter();
    let sources: Vec<&str> = sources.map(|source| source.name.as_str()).collect();
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
