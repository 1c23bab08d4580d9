//! A line chart, one line per series. The horizontal axis counts layers, steps, tokens, or events (the stages of a Swap-FFN
//! model).

use std::collections::BTreeSet;

use super::scale::Scale;
use super::{Area, Chart, Coloured, GREY, Mark, Svg, by_place, escape, short, unit, width};
use crate::number;
use crate::table::Table;

/// A line of a line chart, or a row of a heat map.
#[derive(Clone, Debug)]
pub struct Series {
    pub name: String,
    /// Index of the line's colour and marker shape. A [`GREY`] line has neither markers nor a name.
    pub slot: usize,
    /// True if the line is dashed, with hollow markers.
    pub dashed: bool,
    /// Points of the line: position on the horizontal axis, and value.
    pub points: Vec<(u32, f64)>,
}

impl Coloured for Series {
    fn slot(&mut self) -> &mut usize {
        &mut self.slot
    }
}

/// A horizontal line across the chart at the bound of a gate.
#[derive(Clone, Debug)]
pub struct Bound {
    pub value: f64,
    pub label: String,
}

/// Quantity on the horizontal axis. Steps and tokens double from point to point, so their axis is logarithmic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Axis {
    #[default]
    Layers,
    Events,
    Steps,
    Tokens,
}

impl Axis {
    fn name(self) -> &'static str {
        match self {
            Self::Layers => "layer",
            Self::Events => "event",
            Self::Steps => "steps",
            Self::Tokens => "tokens",
        }
    }

    fn doubles(self) -> bool {
        matches!(self, Self::Steps | Self::Tokens)
    }
}

/// A line chart.
#[derive(Clone, Debug, Default)]
pub struct Lines {
    pub title: String,
    /// Label of the values.
    pub unit: String,
    pub log: bool,
    pub axis: Axis,
    /// Name of the metric; it determines the number format of the values.
    pub metric: String,
    pub series: Vec<Series>,
    /// Values outside this chart that its vertical axis must include, so that adjacent charts have the same axis.
    pub range: Vec<f64>,
    pub bound: Option<Bound>,
    /// Width and height in pixels of the view box.
    pub size: [f64; 2],
}

/// Number of points from one marker of a line to the next.
const MARKED: usize = 10;
/// Smallest vertical distance between two labels, in pixels.
const LABEL: f64 = 13.0;

impl Chart for Lines {
    fn title(&self) -> &str {
        &self.title
    }

    fn is_empty(&self) -> bool {
        self.scales().is_none()
    }

    fn table(&self) -> Table {
        by_place(&self.series, |place| self.place(place), &self.metric)
    }

    fn svg(&self) -> Option<String> {
        let [x, y] = self.scales()?;
        let names = self.named().map(|series| width(&short(&series.name)));
        let names = names.fold(0.0, f64::max);
        let [wide, high] = self.size;
        let area = Area {
            left: 52.0,
            right: wide - names - 20.0,
            top: 42.0,
            bottom: high - 34.0,
        };
        let (x, y) = (x.between(area.left, area.right), y.between(area.bottom, area.top));
        let label = format!("{}: {} by {}", self.title, self.unit, self.axis.name());
        let unit = unit(&self.unit, self.series.iter().map(|series| series.slot));
        let mut svg = Svg::new(self.size, &label, &self.title, &unit);
        self.axes(&mut svg, area, &x, &y);
        // Draw grey lines first, so that they do not cover coloured lines.
        let grey = self.series.iter().filter(|series| series.slot >= GREY);
        for (place, series) in grey.chain(self.named()).enumerate() {
            self.draw(&mut svg, series, place, &x, &y, area);
        }
        self.bound_label(&mut svg, area, &x, &y);
        self.labels(&mut svg, area, &x, &y);
        self.readings(&mut svg, area, &x);
        Some(svg.finish())
    }
}

impl Lines {
    /// Returns the scales of the horizontal and vertical axis; `None` if there is nothing to draw.
    fn scales(&self) -> Option<[Scale; 2]> {
        let points = || self.series.iter().flat_map(|series| &series.points);
        let values = points().map(|point| point.1).chain(self.range.iter().copied());
        let places = Scale::over(points().map(|point| f64::from(point.0)), self.axis.doubles())?;
        Some([places, Scale::over(values, self.log)?])
    }

    /// Returns the coloured series, whose names are drawn. Grey series have no names in the chart.
    fn named(&self) -> impl Iterator<Item = &Series> {
        self.series.iter().filter(|series| series.slot < GREY)
    }

    /// True if a value can be drawn on the axis.
    fn drawable(&self, value: f64) -> bool {
        value.is_finite() && (!self.log || value > 0.0)
    }

    fn place(&self, at: u32) -> String {
        match self.axis.doubles() {
            true => format!("{at} {}", self.axis.name()),
            false => format!("{} {at}", self.axis.name()),
        }
    }

    fn axes(&self, svg: &mut Svg, area: Area, x: &Scale, y: &Scale) {
        svg.rules(area, y);
        for (value, label) in x.ticks() {
            if value.fract() == 0.0 && value >= 0.0 {
                svg.line([x.at(value), area.bottom], [x.at(value), area.bottom + 4.0], "axis");
                svg.text(x.at(value), area.bottom + 16.0, "tick middle", &label);
            }
        }
        svg.edge(area, 31.0, self.axis.name());
        if let Some(bound) = self.bound.as_ref().filter(|bound| y.holds(bound.value)) {
            let at = y.at(bound.value);
            svg.line([area.left, at], [area.right, at], "bound");
        }
    }

    /// Draws the bound's label over the curves. The label is at the left or right end of the bound's line, above or below the
    /// line, where the fewest points of curves lie.
    fn bound_label(&self, svg: &mut Svg, area: Area, x: &Scale, y: &Scale) {
        let Some(bound) = self.bound.as_ref().filter(|bound| y.holds(bound.value)) else {
            return;
        };
        let (at, wide) = (y.at(bound.value), width(&bound.label));
        let points = || self.series.iter().flat_map(|series| series.points.iter());
        let crossed = |from: f64, above: bool| {
            let rows = if above { at - 16.0..at } else { at..at + 16.0 };
            let inside = points().filter(|(layer, value)| {
                let place = x.at(f64::from(*layer));
                (from - 4.0..from + wide + 4.0).contains(&place) && rows.contains(&y.at(*value))
            });
            inside.count()
        };
        let (left, right) = (area.left + 4.0, (area.right - 4.0 - wide).max(area.left));
        let places = [(left, true), (right, true), (left, false), (right, false)].into_iter();
        let best = places.min_by_key(|(from, above)| crossed(*from, *above));
        let (from, above) = best.unwrap_or((right, true));
        let dy = if above { -4.0 } else { 12.0 };
        svg.text(from, at + dy, "bound-label", &bound.label);
    }

    /// Draws a series. The line has a gap at values that cannot be drawn; NaN and infinities are crosses at the top.
    fn draw(&self, svg: &mut Svg, series: &Series, place: usize, x: &Scale, y: &Scale, area: Area) {
        let mut path = String::new();
        let mut pen_down = false;
        for (layer, value) in &series.points {
            let drawable = self.drawable(*value);
            if drawable {
                let command = if pen_down { 'L' } else { 'M' };
                path += &format!("{command}{:.1} {:.1}", x.at(f64::from(*layer)), y.at(*value));
            }
            pen_down = drawable;
        }
        let dash = if series.dashed { " dashed" } else { "" };
        svg.0 += &format!("<path d=\"{path}\" class=\"line s{}{dash}\"/>", series.slot.min(GREY));
        let mark = if series.dashed { Mark::Hollow } else { Mark::Filled };
        // Different series have their markers at different layers, so that markers of close lines do not cover each other.
        for (at, (layer, value)) in series.points.iter().enumerate() {
            let across = x.at(f64::from(*layer));
            if !value.is_finite() {
                let title = format!("{}: {value} in {}", series.name, self.place(*layer));
                svg.marker([across, area.top], 3.5, series.slot, Mark::Cross, &title);
            } else if series.slot < GREY && at % MARKED == (3 * place + 2) % MARKED && self.drawable(*value) {
                svg.marker([across, y.at(*value)], 3.5, series.slot, mark, "");
            }
        }
    }

    /// Draws names at the ends of the lines. Names that would overlap are moved apart.
    fn labels(&self, svg: &mut Svg, area: Area, x: &Scale, y: &Scale) {
        let ends = self.named().filter_map(|series| {
            let (layer, value) = series.points.iter().rev().find(|point| self.drawable(point.1))?;
            let at = y.at(*value);
            Some((series, [x.at(f64::from(*layer)), at], at))
        });
        let mut ends: Vec<(&Series, [f64; 2], f64)> = ends.collect();
        ends.sort_by(|a, b| a.2.total_cmp(&b.2));
        let mut places: Vec<&mut f64> = ends.iter_mut().map(|end| &mut end.2).collect();
        spread(&mut places, area.top - 4.0, area.bottom);
        for (series, from, at) in ends {
            let (slot, name) = (series.slot, short(&series.name));
            svg.line(from, [area.right + 8.0, at], &format!("leader s{slot}"));
            svg.text(area.right + 11.0, at + 4.0, &format!("series s{slot}"), &name);
        }
    }

    /// Draws an invisible strip over each layer. If the pointer rests on a strip, a tooltip shows all values of the layer.
    fn readings(&self, svg: &mut Svg, area: Area, x: &Scale) {
        let points = self.series.iter().flat_map(|series| &series.points);
        let layers: BTreeSet<u32> = points.map(|point| point.0).collect();
        let next = |layer: u32| f64::from(if self.axis.doubles() { 2 * layer } else { layer + 1 });
        let wide = |layer: &u32| x.at(next(*layer)) - x.at(f64::from(*layer));
        let step = layers.first().map_or(0.0, wide).max(2.0);
        for layer in layers {
            let at = |series: &Series| series.points.iter().find(|point| point.0 == layer).map(|point| point.1);
            let values = self.series.iter();
            let values = values.filter_map(|series| Some((at(series)?, &series.name)));
            let mut values: Vec<(f64, &String)> = values.collect();
            values.sort_by(|a, b| b.0.total_cmp(&a.0));
            let row = |(value, name): &(f64, &String)| format!("\n{} {name}", number::of_metric(&self.metric, *value));
            let title = format!("{}{}", self.place(layer), values.iter().map(row).collect::<String>());
            svg.0 += &format!(
                "<rect x=\"{:.1}\" y=\"{:.0}\" width=\"{step:.1}\" height=\"{:.0}\" class=\"hover\"><title>{}</title></rect>",
                x.at(f64::from(layer)) - step / 2.0,
                area.top,
                area.bottom - area.top,
                escape(&title)
            );
        }
    }
}

/// Moves the sorted positions of labels apart, so that neighbours are at least [`LABEL`] apart within `low..=high`, if there is
/// room.
fn spread(places: &mut [&mut f64], low: f64, high: f64) {
    let mut least = low;
    for place in places.iter_mut() {
        **place = place.max(least);
        least = **place + LABEL;
    }
    let mut most = high;
    for place in places.iter_mut().rev() {
        **place = place.min(most);
        most = **place - LABEL;
    }
}
