//! A heat map: one row per recipe, one column per layer, values as colours on a logarithmic scale.

use std::collections::BTreeSet;

use super::scale::Scale;
use super::{Chart, Series, Svg, by_place, short, width};
use crate::number;
use crate::table::Table;

/// A heat map with the legend of its colours.
#[derive(Clone, Debug)]
pub struct Heat {
    pub title: String,
    pub unit: String,
    /// Name of the metric; it determines the number format of the values.
    pub metric: String,
    /// Rows, each with its points in the order of layers.
    pub rows: Vec<Series>,
    /// Values outside this heat map that its colour scale must include, so that adjacent heat maps have the same colours.
    pub range: Vec<f64>,
    /// Width in pixels of the view box; the height follows from the rows.
    pub width: f64,
}

/// Label of the columns.
const AXIS: &str = "layer";
/// Number of colours in the style sheet, `h0` to `h9`.
const LEVELS: usize = 10;
const ROW: f64 = 16.0;
const TOP: f64 = 42.0;
/// Width in pixels of one colour of the legend.
const STEP: f64 = 24.0;
/// Largest number of layer labels.
const LABELS: usize = 20;

impl Heat {
    /// Returns the scale of the values, and all layers; `None` if there is nothing to draw.
    fn scale(&self) -> Option<(Scale, Vec<u32>)> {
        let values = || self.rows.iter().flat_map(|row| &row.points);
        let scale = Scale::over(values().map(|value| value.1).chain(self.range.iter().copied()), true)?;
        let layers: BTreeSet<u32> = values().map(|value| value.0).collect();
        (!layers.is_empty()).then(|| (scale, layers.into_iter().collect()))
    }
}

impl Chart for Heat {
    fn title(&self) -> &str {
        &self.title
    }

    fn is_empty(&self) -> bool {
        self.scale().is_none()
    }

    fn table(&self) -> Table {
        by_place(&self.rows, |layer| format!("{AXIS} {layer}"), &self.metric)
    }

    fn svg(&self) -> Option<String> {
        let (scale, layers) = self.scale()?;
        // The axis label is below the names of the recipes, and may be wider than these names.
        let names = self.rows.iter().map(|row| width(&short(&row.name)));
        let left = 12.0 + names.chain([width(AXIS)]).fold(0.0, f64::max);
        let wide = (self.width - left) / layers.len() as f64;
        let bottom = TOP + ROW * self.rows.len() as f64;
        let label = format!("{}: {} by recipe and layer", self.title, self.unit);
        let mut svg = Svg::new([self.width, bottom + 72.0], &label, &self.title, &self.unit);
        for (at, row) in self.rows.iter().enumerate() {
            let y = TOP + ROW * at as f64;
            svg.text(left - 8.0, y + 12.0, "label end", &short(&row.name));
            for (layer, value) in &row.points {
                let Ok(column) = layers.binary_search(layer) else {
                    continue;
                };
                let shown = number::of_metric(&self.metric, *value);
                let title = format!("{}, layer {layer}: {shown}", row.name);
                let class = class(&scale, *value);
                cell(&mut svg, [left + wide * column as f64, y], [wide, ROW], &class, &title);
            }
        }
        let every = layers.len().div_ceil(LABELS);
        for (column, layer) in layers.iter().enumerate().step_by(every) {
            let x = left + wide * (column as f64 + 0.5);
            svg.text(x, bottom + 14.0, "tick middle", &layer.to_string());
        }
        svg.text(left - 8.0, bottom + 14.0, "tick end", AXIS);
        legend(&mut svg, &scale, left, bottom + 30.0);
        Some(svg.finish())
    }
}

/// Draws the legend: the colour scale with its values, and separate marks for 0 and for NaN or infinity.
fn legend(svg: &mut Svg, scale: &Scale, left: f64, y: f64) {
    for level in 0..LEVELS {
        let at = [left + STEP * level as f64, y];
        cell(svg, at, [STEP, ROW], &format!("heat h{level}"), "");
    }
    let right = left + STEP * LEVELS as f64;
    let scale = scale.clone().between(left, right);
    for (value, label) in scale.ticks() {
        svg.text(scale.at(value), y + ROW + 14.0, "tick middle", &label);
    }
    for (x, class, label) in [(0.0, "heat zero", "0"), (60.0, "heat broken", "NaN or infinite")] {
        let x = right + 40.0 + x;
        cell(svg, [x, y], [STEP, ROW], class, "");
        svg.text(x + STEP + 6.0, y + 12.0, "tick", label);
    }
}

fn class(scale: &Scale, value: f64) -> String {
    match value {
        value if !value.is_finite() => "heat broken".into(),
        value if value <= 0.0 => "heat zero".into(),
        value => {
            let level = scale.clone().between(0.0, LEVELS as f64).at(value) as usize;
            format!("heat h{}", level.min(LEVELS - 1))
        }
    }
}

fn cell(svg: &mut Svg, [x, y]: [f64; 2], [wide, high]: [f64; 2], class: &str, title: &str) {
    svg.0 += &format!("<path d=\"M{x:.1} {y:.0}h{wide:.1}v{high:.0}h-{wide:.1}z\" class=\"{class}\">");
    svg.end_path(title);
}
