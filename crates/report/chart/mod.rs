//! Charts as inline SVG, without scripts or outside resources. The page's style sheet sets the colours for light and dark mode.
//! Up to [`SLOTS`] series have distinct colours and marker shapes, with their names next to them; all other series are grey.

mod dots;
mod heat;
mod lines;
mod scale;
mod scatter;

pub use dots::{Dot, DotRow, Dots};
pub use heat::Heat;
pub use lines::{Axis, Bound, Lines, Series};
pub use scale::Scale;
pub use scatter::{Point, Scatter, front};

use std::collections::BTreeSet;

use super::number;
use super::table::{Row, Table};

/// Number of distinct colours, and of distinct marker shapes.
pub const SLOTS: usize = 8;
/// Slot of all series without a colour: drawn thin and grey, without a name.
pub const GREY: usize = SLOTS;

/// A chart of numbers.
pub trait Chart {
    fn title(&self) -> &str;

    /// True if there is nothing to draw.
    fn is_empty(&self) -> bool;

    /// Returns the chart as SVG; `None` if there is nothing to draw.
    fn svg(&self) -> Option<String>;

    /// Returns the chart's numbers, for reports without pictures.
    fn table(&self) -> Table;
}

/// Largest number of value columns in the table of a chart. The columns are evenly spread layers or steps, and include the last
/// one.
const COLUMNS: usize = 8;

/// Returns a table with one row per series, with values at some of the places (layers or steps); `head` formats a place.
fn by_place(series: &[Series], head: impl Fn(u32) -> String, metric: &str) -> Table {
    let points = series.iter().flat_map(|series| &series.points);
    let all: BTreeSet<u32> = points.map(|point| point.0).collect();
    let every = all.len().div_ceil(COLUMNS).max(1);
    let mut places: Vec<u32> = all.into_iter().rev().step_by(every).collect();
    places.reverse();
    let cell = |series: &Series, place: u32| {
        let found = series.points.iter().find(|point| point.0 == place);
        found.map_or("—".into(), |(_, value)| number::of_metric(metric, *value))
    };
    let row = |series: &Series| {
        let cells = places.iter().map(|place| cell(series, *place));
        Row::new(std::iter::once(series.name.clone()).chain(cells))
    };
    let heads = places.iter().copied().map(head);
    Table {
        heads: std::iter::once(String::new()).chain(heads).collect(),
        rows: series.iter().map(row).collect(),
        numbers: true,
    }
}

/// A part of a chart, such as a line or a point, with a slot: the index of its colour and marker shape.
pub trait Coloured {
    fn slot(&mut self) -> &mut usize;
}

/// Returns the label of the value axis, followed by the number of grey series, if there are any.
fn unit(unit: &str, slots: impl Iterator<Item = usize>) -> String {
    match slots.filter(|slot| *slot >= GREY).count() {
        0 => unit.into(),
        1 => format!("{unit} · another one in grey"),
        others => format!("{unit} · {others} others in grey"),
    }
}

/// Rectangle in which the data are drawn, in pixels of the SVG view box.
#[derive(Clone, Copy)]
struct Area {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

/// An SVG picture under construction.
struct Svg(String);

impl Svg {
    /// Creates a picture of the given size with its title, and the unit below; `label` is the text for screen readers.
    fn new([width, height]: [f64; 2], label: &str, title: &str, unit: &str) -> Self {
        let mut svg = Self(format!(
            "<svg viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\" aria-label=\"{}\">",
            escape(label)
        ));
        svg.text(0.0, 14.0, "title", title);
        svg.text(0.0, 30.0, "unit", unit);
        svg
    }

    fn finish(self) -> String {
        self.0 + "</svg>"
    }

    /// Draws the lower edge of the area, with the axis name `below` pixels under it.
    fn edge(&mut self, area: Area, below: f64, name: &str) {
        self.line([area.left, area.bottom], [area.right, area.bottom], "axis");
        let middle = (area.left + area.right) / 2.0;
        self.text(middle, area.bottom + below, "tick middle", name);
    }

    /// Draws horizontal lines across the area at the ticks of `y`, with their labels.
    fn rules(&mut self, area: Area, y: &Scale) {
        for (value, label) in y.ticks() {
            let at = y.at(value);
            self.line([area.left, at], [area.right, at], "grid");
            self.text(area.left - 6.0, at + 4.0, "tick end", &label);
        }
    }

    /// Draws a text with a CSS class, which also sets the text's anchor (start, middle or end).
    fn text(&mut self, x: f64, y: f64, class: &str, content: &str) {
        let content = escape(content);
        self.0 += &format!("<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"{class}\">{content}</text>");
    }

    fn line(&mut self, [x1, y1]: [f64; 2], [x2, y2]: [f64; 2], class: &str) {
        self.0 += &format!("<path d=\"M{x1:.1} {y1:.1}L{x2:.1} {y2:.1}\" class=\"{class}\"/>");
    }

    /// Draws the marker with the colour and shape of a slot, and a radius of `r` pixels; `title` is the tooltip of the marker.
    fn marker(&mut self, [x, y]: [f64; 2], r: f64, slot: usize, mark: Mark, title: &str) {
        let (shape, class) = match mark {
            Mark::Filled => (SHAPES[slot % SLOTS], "mark"),
            Mark::Hollow => (SHAPES[slot % SLOTS], "mark hollow"),
            Mark::Cross => (CROSS, "mark cross"),
        };
        let slot = slot.min(GREY);
        let r = if slot == GREY { 0.6 * r } else { r };
        let place = format!("translate({x:.1} {y:.1})scale({r:.1})");
        self.0 += &format!("<path d=\"{shape}\" transform=\"{place}\" class=\"{class} s{slot}\">");
        self.end_path(title);
    }

    /// Ends a path; `title` is the tooltip of the path, and may be empty.
    fn end_path(&mut self, title: &str) {
        if !title.is_empty() {
            self.0 += &format!("<title>{}</title>", escape(title));
        }
        self.0 += "</path>";
    }
}

/// Style of a point's marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    Filled,
    Hollow,
    /// A cross instead of the marker shape of the series.
    Cross,
}

/// SVG paths of the marker shapes, each with a radius of about 1: circle, square, triangle, diamond, triangle down, plus, star,
/// hexagon.
const SHAPES: [&str; SLOTS] = [
    "M1 0A1 1 0 1 1-1 0A1 1 0 1 1 1 0Z",
    "M-.85-.85H.85V.85H-.85Z",
    "M0-1.1L1.05.8H-1.05Z",
    "M0-1.2L1.05 0L0 1.2L-1.05 0Z",
    "M0 1.1L1.05-.8H-1.05Z",
    "M-.4-1.1H.4V-.4H1.1V.4H.4V1.1H-.4V.4H-1.1V-.4H-.4Z",
    "M0-1.2L.3-.4L1.15-.37L.48.15L.7 1L0 .5L-.7 1L-.48.15L-1.15-.37L-.3-.4Z",
    "M-.55-1H.55L1.1 0L.55 1H-.55L-1.1 0Z",
];
const CROSS: &str = "M-1-1L1 1M-1 1L1-1";

/// Escapes text for XML.
fn escape(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    text.replace('"', "&quot;")
}

/// Cuts a name to [`NAME`] characters, which fit next to a mark.
fn short(name: &str) -> String {
    match name.char_indices().nth(NAME) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name.into(),
    }
}
const NAME: usize = 22;

/// Estimates the width of a text in pixels at the charts' font size. The estimate is an upper limit for sans-serif fonts.
fn width(text: &str) -> f64 {
    7.0 * text.chars().count() as f64
}
