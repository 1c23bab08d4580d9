//! A row a recipe, dots on one logarithmic axis.

use super::scale::Scale;
use super::{Area, GREY, Mark, line, marker, open, short, text, width};

/// A value.
#[derive(Clone, Debug)]
pub struct Dot {
    pub value: f64,
    pub mark: Mark,
    /// Shown when the pointer rests on the dot.
    pub detail: String,
}

/// A row: the first and last dot are joined.
#[derive(Clone, Debug)]
pub struct DotRow {
    pub name: String,
    pub slot: usize,
    /// Begins a new group: set apart from the row above.
    pub head: bool,
    pub dots: Vec<Dot>,
    /// Stands at the right end.
    pub note: String,
}

/// Rows of dots.
#[derive(Clone, Debug)]
pub struct Dots {
    pub title: String,
    pub unit: String,
    pub rows: Vec<DotRow>,
    /// Width in pixels of the view box; the height follows from the rows.
    pub width: f64,
}

const ROW: f64 = 22.0;
const HEAD: f64 = 8.0;

impl Dots {
    /// The SVG; empty if there is nothing to draw.
    pub fn svg(&self) -> String {
        let values = self.rows.iter().flat_map(|row| row.dots.iter().map(|dot| dot.value));
        let Some(x) = Scale::over(values, true) else {
            return String::new();
        };
        let heads = self.rows.iter().skip(1).filter(|row| row.head).count() as f64;
        let widest = |get: fn(&DotRow) -> &str| self.rows.iter().map(|row| width(&short(get(row)))).fold(0.0, f64::max);
        let notes = widest(|row| &row.note);
        let area = Area {
            left: widest(|row| &row.name) + 12.0,
            right: self.width - if notes > 0.0 { notes + 16.0 } else { 12.0 },
            top: 42.0,
            bottom: 42.0 + ROW * self.rows.len() as f64 + HEAD * heads,
        };
        let x = x.between(area.left, area.right);
        let label = format!("{}: {}", self.title, self.unit);
        let mut svg = open([self.width, area.bottom + 24.0], &label, &self.title, &self.unit);
        for (value, label) in x.ticks() {
            line(&mut svg, [x.at(value), area.top], [x.at(value), area.bottom], "grid");
            text(&mut svg, x.at(value), area.bottom + 16.0, "tick middle", &label);
        }
        let mut y = area.top - ROW / 2.0;
        for (at, row) in self.rows.iter().enumerate() {
            y += ROW + if row.head && at > 0 { HEAD } else { 0.0 };
            self.row(&mut svg, row, y, area, &x);
        }
        svg + "</svg>"
    }

    fn row(&self, svg: &mut String, row: &DotRow, y: f64, area: Area, x: &Scale) {
        let slot = row.slot.min(GREY);
        line(svg, [area.left, y], [area.right, y], "grid");
        text(svg, area.left - 10.0, y + 4.0, "label end", &short(&row.name));
        text(svg, area.right + 12.0, y + 4.0, "tick", &row.note);
        let drawable: Vec<&Dot> = row
            .dots
            .iter()
            .filter(|dot| dot.value.is_finite() && dot.value > 0.0)
            .collect();
        if let [first, .., last] = drawable[..] {
            line(
                svg,
                [x.at(first.value), y],
                [x.at(last.value), y],
                &format!("join s{slot}"),
            );
        }
        for dot in drawable {
            marker(svg, [x.at(dot.value), y], 4.5, row.slot, dot.mark, &dot.detail);
        }
    }
}
