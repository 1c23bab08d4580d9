//! A dot chart: one row per recipe; the dots of a row are its values on a logarithmic axis that all rows share.

use super::scale::Scale;
use super::{Area, Chart, GREY, Mark, Svg, short, width};
use crate::number;
use crate::table::{Row, Table};

/// One value of a row.
#[derive(Clone, Debug)]
pub struct Dot {
    pub value: f64,
    pub mark: Mark,
    /// Text that appears when the pointer rests on the dot.
    pub detail: String,
}

/// A row of dots; a line joins its first and last dot.
#[derive(Clone, Debug, Default)]
pub struct DotRow {
    pub name: String,
    pub slot: usize,
    /// True if the row begins a new group, so that a gap is drawn above it.
    pub head: bool,
    pub dots: Vec<Dot>,
    /// Text at the right end of the row.
    pub note: String,
}

/// A chart with rows of dots.
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

impl Chart for Dots {
    fn title(&self) -> &str {
        &self.title
    }

    fn is_empty(&self) -> bool {
        self.scale().is_none()
    }

    fn table(&self) -> Table {
        let row = |row: &DotRow| {
            let values: Vec<String> = row.dots.iter().map(|dot| number::error(dot.value)).collect();
            Row::new([row.name.clone(), values.join(", "), row.note.clone()])
        };
        Table {
            heads: [String::new(), self.unit.clone(), String::new()].into(),
            rows: self.rows.iter().map(row).collect(),
            numbers: true,
        }
    }

    fn svg(&self) -> Option<String> {
        let x = self.scale()?;
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
        let mut svg = Svg::new([self.width, area.bottom + 24.0], &label, &self.title, &self.unit);
        for (value, label) in x.ticks() {
            svg.line([x.at(value), area.top], [x.at(value), area.bottom], "grid");
            svg.text(x.at(value), area.bottom + 16.0, "tick middle", &label);
        }
        let mut y = area.top - ROW / 2.0;
        for (at, row) in self.rows.iter().enumerate() {
            y += ROW + if row.head && at > 0 { HEAD } else { 0.0 };
            self.row(&mut svg, row, y, area, &x);
        }
        Some(svg.finish())
    }
}

impl Dots {
    /// Returns the scale of the values; `None` if there is nothing to draw.
    fn scale(&self) -> Option<Scale> {
        let values = self.rows.iter().flat_map(|row| row.dots.iter().map(|dot| dot.value));
        Scale::over(values, true)
    }

    fn row(&self, svg: &mut Svg, row: &DotRow, y: f64, area: Area, x: &Scale) {
        let slot = row.slot.min(GREY);
        svg.line([area.left, y], [area.right, y], "grid");
        svg.text(area.left - 10.0, y + 4.0, "label end", &short(&row.name));
        svg.text(area.right + 12.0, y + 4.0, "tick", &row.note);
        let drawable = row.dots.iter().filter(|dot| dot.value.is_finite() && dot.value > 0.0);
        let drawable: Vec<&Dot> = drawable.collect();
        if let [first, .., last] = drawable[..] {
            svg.line([x.at(first.value), y], [x.at(last.value), y], &format!("join s{slot}"));
        }
        for dot in drawable {
            svg.marker([x.at(dot.value), y], 4.5, row.slot, dot.mark, &dot.detail);
        }
    }
}
