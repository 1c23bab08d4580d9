//! The charts of a run, and their captions.

pub mod gates;

use super::chart::{Chart, Coloured, GREY, Lines, SLOTS, Series};
use super::index::Quantity;
use super::recipes::{Candidate, Group, REFERENCE};
use super::table::Table;
use super::{Summarized, number};
use ulplab_core::metrics::{KL, RELATIVE_L2};

/// Figures under one heading.
pub struct Section {
    pub id: &'static str,
    pub title: &'static str,
    pub intro: &'static str,
    pub figures: Vec<Figure>,
}

impl Section {
    pub fn new(id: &'static str, title: &'static str, intro: &'static str, figures: Vec<Figure>) -> Self {
        Self {
            id,
            title,
            intro,
            figures,
        }
    }

    /// Returns the figures that are hidden until the reader opens them, or, if `folded` is false, the visible figures.
    pub fn figures(&self, folded: bool) -> Vec<&Figure> {
        self.figures.iter().filter(|figure| figure.folded == folded).collect()
    }
}

/// A chart or a table, with a caption below.
pub struct Figure {
    pub content: Content,
    pub caption: String,
    pub size: Size,
    /// True if the figure is hidden until the reader opens it, below the section's other figures.
    pub folded: bool,
}

/// The content of a figure.
pub enum Content {
    Chart(Box<dyn Chart>),
    Table(Table),
}

impl Content {
    /// True if there is nothing to show.
    fn is_empty(&self) -> bool {
        match self {
            Self::Chart(chart) => chart.is_empty(),
            Self::Table(table) => table.rows.is_empty(),
        }
    }
}

impl<C: Chart + 'static> From<C> for Content {
    fn from(chart: C) -> Self {
        Self::Chart(Box::new(chart))
    }
}

impl From<Table> for Content {
    fn from(table: Table) -> Self {
        Self::Table(table)
    }
}

/// Fraction of the page's width that a figure takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    Third,
    Half,
    Whole,
}

impl Size {
    /// Returns the CSS class of the size.
    pub fn class(self) -> &'static str {
        match self {
            Self::Third => "third",
            Self::Half => "half",
            Self::Whole => "whole",
        }
    }
}

pub const HALF: [f64; 2] = [560.0, 370.0];
pub const THIRD: [f64; 2] = [380.0, 250.0];

/// Returns all sections that are not empty.
pub fn sections(run: &Summarized) -> Vec<Section> {
    let drawn = run.show.sections(run).into_iter().map(|mut section| {
        section.figures.retain(|figure| !figure.content.is_empty());
        section
    });
    drawn.filter(|section| !section.figures.is_empty()).collect()
}

pub fn of_group<'a>(run: &'a Summarized, group: Group) -> impl Iterator<Item = &'a Candidate<'a>> + Clone {
    run.candidates.iter().filter(move |candidate| candidate.group == group)
}

/// Returns the mean over windows of a quantity after the last layer, or of a quantity at a site outside the layers, e.g. the
/// logits.
pub fn final_value(run: &Summarized, name: &str, quantity: Quantity) -> Option<f64> {
    let index = run.index;
    let summary = index.last(name, quantity).or_else(|| index.whole(name, quantity))?;
    Some(summary.mean)
}

/// Returns the label of a metric's axis.
pub fn unit(quantity: Quantity) -> String {
    let metric = match quantity.metric {
        metric if metric == RELATIVE_L2.name => "relative L2 error",
        metric if metric == KL.name => "KL divergence, nats",
        other => other,
    };
    format!("{metric}, {}", quantity.phase)
}

/// Returns a recipe's values by layer, as a solid line in the recipe's colour; `None` without values.
pub fn series(run: &Summarized, candidate: &Candidate, quantity: Quantity) -> Option<Series> {
    run.index.layers(candidate.name, quantity)?;
    Some(solid(candidate, by_layer(run, candidate, quantity)))
}

/// Returns a solid line through points in a recipe's colour.
fn solid(candidate: &Candidate, points: Vec<(u32, f64)>) -> Series {
    Series {
        name: candidate.name.into(),
        slot: candidate.slot,
        dashed: false,
        points,
    }
}

/// Returns the pairs (layer, mean over the input windows) of a quantity, in the order of layers.
pub fn by_layer(run: &Summarized, candidate: &Candidate, quantity: Quantity) -> Vec<(u32, f64)> {
    let layers = run.index.layers(candidate.name, quantity).into_iter().flatten();
    let values = layers.filter_map(|(layer, summary)| Some((*layer.as_ref()?, summary.mean)));
    values.collect()
}

/// Joins the caption of the gate's line, if there is one, and the rest of the caption.
pub fn captions(gate: Option<&gates::Line>, rest: String) -> String {
    match gate {
        Some(gate) => format!("{} {rest}", gate.caption),
        None => rest,
    }
}

/// Describes the error of the reference (f32 against f64), below which a chart shows nothing meaningful.
pub fn own_error(run: &Summarized, quantity: Quantity) -> String {
    if ![RELATIVE_L2.name, KL.name].contains(&quantity.metric) {
        return String::new();
    }
    let worst = run.index.means(REFERENCE, quantity).into_iter().reduce(number::larger);
    let said = |error| format!("The reference's own error (f32 against f64) is at most {error} here.");
    worst.map(number::error).map_or(String::new(), said)
}

/// Returns a figure that takes half of the page's width.
pub fn figure(content: impl Into<Content>, caption: String) -> Figure {
    Figure {
        content: content.into(),
        caption,
        size: Size::Half,
        folded: false,
    }
}

/// Returns a figure that takes the whole width of the page.
pub fn wide(content: impl Into<Content>, caption: String) -> Figure {
    Figure {
        size: Size::Whole,
        ..figure(content, caption)
    }
}

/// Returns a chart of all `items`, then charts that are hidden until the reader opens them. In these, the items that are grey in
/// the first chart have distinct colours. `chart` makes a figure from a title and items.
pub fn fold<T: Coloured + Clone>(items: Vec<T>, title: &str, chart: impl Fn(String, Vec<T>) -> Figure) -> Vec<Figure> {
    let mut grey = items.clone();
    grey.retain_mut(|item| *item.slot() >= GREY);
    let parts = grey.len().div_ceil(SLOTS);
    let mut figures = vec![chart(title.into(), items)];
    for (part, others) in grey.chunks_mut(SLOTS).enumerate() {
        for (slot, item) in others.iter_mut().enumerate() {
            *item.slot() = slot;
        }
        let part = match parts {
            1 => String::new(),
            _ => format!(" ({} of {parts})", part + 1),
        };
        figures.push(Figure {
            folded: true,
            ..chart(format!("{title}: others{part}"), others.to_vec())
        });
    }
    figures
}

/// Returns line charts of a quantity by layer, with one line for each format that rounds whole tensors ([`Group::Plain`]).
pub fn plain_lines(run: &Summarized, title: &str, quantity: Quantity, log: bool, range: &[f64]) -> Vec<Figure> {
    let chart = Lines {
        title: title.into(),
        unit: unit(quantity),
        log,
        metric: quantity.metric.into(),
        range: range.to_vec(),
        size: HALF,
        ..Lines::default()
    };
    let plain = of_group(run, Group::Plain);
    let all = plain.filter_map(|candidate| series(run, candidate, quantity)).collect();
    with_lines(&chart, all, |lines| {
        let names: Vec<&str> = lines.series.iter().map(|series| series.name.as_str()).collect();
        let gate = gates::line(run, quantity, &names);
        let caption = captions(gate.as_ref(), own_error(run, quantity));
        lines.bound = gate.map(|gate| gate.bound);
        lines.range.extend(lines.bound.iter().map(|bound| bound.value));
        caption
    })
}

/// Returns a chart with the lines `all`, some of which may be grey, followed by charts that repeat the grey lines in distinct
/// colours. The further charts stay closed until the reader opens them. All charts have the same axis. `finish` completes each
/// chart, and returns its caption.
fn with_lines(chart: &Lines, all: Vec<Series>, finish: impl Fn(&mut Lines) -> String) -> Vec<Figure> {
    let values = all.iter().flat_map(|series| series.points.iter().map(|point| point.1));
    let range: Vec<f64> = values.chain(chart.range.iter().copied()).collect();
    fold(all, &chart.title, |title, series| {
        let mut lines = chart.clone();
        (lines.title, lines.series, lines.range) = (title, series, range.clone());
        let caption = finish(&mut lines);
        figure(lines, caption)
    })
}

/// Returns a line chart of all recipes, then hidden charts that repeat its grey lines in colour, as `with_lines` does. `chart` is
/// the template of the charts, without lines.
pub fn recipe_lines(run: &Summarized, chart: &Lines, points: impl Fn(&Candidate) -> Vec<(u32, f64)>) -> Vec<Figure> {
    let all = run.candidates.iter();
    let all = all.map(|candidate| solid(candidate, points(candidate)));
    with_lines(chart, all.collect(), |_| String::new())
}
