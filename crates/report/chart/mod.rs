//! Charts as inline SVG: no script, no outside resource; colours come from the page's style sheet, which knows light and
//! dark. Every series has a colour, its own marker shape, and its name beside it.

mod dots;
mod heat;
mod lines;
mod scale;
mod scatter;

pub use dots::{Dot, DotRow, Dots};
pub use heat::{Heat, HeatRow};
pub use lines::{Axis, Bound, Lines, Series};
pub use scale::Scale;
pub use scatter::{Point, Scatter, front};

use std::fmt::Write;

/// Number of distinct colours, and of distinct marker shapes.
pub const SLOTS: usize = 8;
/// The slot of all series without a colour: thin and grey, without a name beside it.
pub const GREY: usize = SLOTS;

/// What has a colour in a chart.
pub trait Coloured {
    fn slot(&mut self) -> &mut usize;
}

/// Label of the values, and the number of grey series.
fn unit(unit: &str, slots: impl Iterator<Item = usize>) -> String {
    match slots.filter(|slot| *slot >= GREY).count() {
        0 => unit.into(),
        1 => format!("{unit} · another one in grey"),
        others => format!("{unit} · {others} others in grey"),
    }
}

/// Where data is drawn, in pixels of the view box.
#[derive(Clone, Copy)]
struct Area {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

/// Opens an SVG of that size with its title, and the unit below it; `label` is the text for screen readers.
fn open([width, height]: [f64; 2], label: &str, title: &str, unit: &str) -> String {
    let mut svg = format!(
        "<svg viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\" aria-label=\"{}\">",
        escape(label)
    );
    text(&mut svg, 0.0, 14.0, "title", title);
    text(&mut svg, 0.0, 30.0, "unit", unit);
    svg
}

/// Lines across the area at the ticks of `y`, with their labels.
fn rules(svg: &mut String, area: Area, y: &Scale) {
    for (value, label) in y.ticks() {
        let at = y.at(value);
        line(svg, [area.left, at], [area.right, at], "grid");
        text(svg, area.left - 6.0, at + 4.0, "tick end", &label);
    }
}

/// A text; `class` also says how it is anchored.
fn text(svg: &mut String, x: f64, y: f64, class: &str, content: &str) {
    let _ = write!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"{class}\">{}</text>",
        escape(content)
    );
}

fn line(svg: &mut String, [x1, y1]: [f64; 2], [x2, y2]: [f64; 2], class: &str) {
    let _ = write!(svg, "<path d=\"M{x1:.1} {y1:.1}L{x2:.1} {y2:.1}\" class=\"{class}\"/>");
}

/// A point's marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    Filled,
    Hollow,
    /// A cross, whatever the slot.
    Cross,
}

/// The marker of a slot, `r` pixels in radius, with a text to show when the pointer rests on it.
fn marker(svg: &mut String, [x, y]: [f64; 2], r: f64, slot: usize, mark: Mark, title: &str) {
    let (shape, class) = match mark {
        Mark::Filled => (SHAPES[slot % SLOTS], "mark"),
        Mark::Hollow => (SHAPES[slot % SLOTS], "mark hollow"),
        Mark::Cross => (CROSS, "mark cross"),
    };
    let slot = slot.min(GREY);
    let r = if slot == GREY { 0.6 * r } else { r };
    let place = format!("translate({x:.1} {y:.1})scale({r:.1})");
    let _ = write!(
        svg,
        "<path d=\"{shape}\" transform=\"{place}\" class=\"{class} s{slot}\">"
    );
    if !title.is_empty() {
        let _ = write!(svg, "<title>{}</title>", escape(title));
    }
    svg.push_str("</path>");
}

/// Outlines of about the unit circle: circle, square, triangle, diamond, triangle down, plus, star, hexagon.
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

/// Text for XML and HTML.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '&' => escaped += "&amp;",
            '"' => escaped += "&quot;",
            c => escaped.push(c),
        }
    }
    escaped
}

/// A name short enough to stand beside a mark.
fn short(name: &str) -> String {
    match name.char_indices().nth(NAME) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name.into(),
    }
}
const NAME: usize = 22;

/// Width of a text of the charts' size, in pixels: a guess on the safe side for sans-serif faces.
fn width(text: &str) -> f64 {
    7.0 * text.chars().count() as f64
}
