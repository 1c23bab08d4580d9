//! A scatter chart of cost against error, with the Pareto front.

use super::scale::Scale;
use super::{Area, Bound, Chart, Coloured, GREY, Mark, Svg, short, unit, width};
use crate::number;
use crate::table::{Row, Table};

/// The point of one candidate in the chart.
#[derive(Clone, Debug)]
pub struct Point {
    pub name: String,
    /// Index of the point's colour and marker shape. A [`GREY`] point has no name.
    pub slot: usize,
    pub mark: Mark,
    pub cost: f64,
    pub error: f64,
    /// Text that appears when the pointer rests on the point.
    pub detail: String,
}

impl Coloured for Point {
    fn slot(&mut self) -> &mut usize {
        &mut self.slot
    }
}

/// A scatter chart. Both axes are logarithmic, and smaller values are better on both axes.
#[derive(Clone, Debug, Default)]
pub struct Scatter {
    pub title: String,
    pub unit: String,
    pub cost_unit: String,
    pub points: Vec<Point>,
    pub bound: Option<Bound>,
    /// Points (cost, error) of a line for comparison; if the list is empty, the Pareto front is drawn instead.
    pub guide: Vec<[f64; 2]>,
    /// Width and height in pixels of the view box.
    pub size: [f64; 2],
}

/// Largest area of other marks, in square pixels, that a label may cover. The label of a point that is not on the Pareto front is
/// left out if it would cover more.
const CROWDED: f64 = 60.0;

/// Rectangle of a label or mark: left, right, top, bottom.
type Place = [f64; 4];

impl Chart for Scatter {
    fn title(&self) -> &str {
        &self.title
    }

    fn is_empty(&self) -> bool {
        self.scales().is_none()
    }

    fn table(&self) -> Table {
        let row = |point: &Point| {
            let numbers = [point.cost, point.error].map(number::error);
            Row::new(std::iter::once(point.name.clone()).chain(numbers))
        };
        Table {
            heads: [String::new(), self.cost_unit.clone(), self.unit.clone()].into(),
            rows: self.points.iter().map(row).collect(),
            numbers: true,
        }
    }

    fn svg(&self) -> Option<String> {
        let points: Vec<&Point> = self.drawable().collect();
        let [x, y] = self.scales()?;
        let [wide, high] = self.size;
        let area = Area {
            left: 52.0,
            right: wide - 12.0,
            top: 42.0,
            bottom: high - 40.0,
        };
        let (x, y) = (x.between(area.left, area.right), y.between(area.bottom, area.top));
        let label = format!("{}: {} against {}", self.title, self.unit, self.cost_unit);
        let unit = unit(&self.unit, points.iter().map(|point| point.slot));
        let mut svg = Svg::new(self.size, &label, &self.title, &unit);
        self.axes(&mut svg, area, &x, &y);
        let front = front(&points);
        let stepped = front.iter().map(|point| [x.at(point.cost), y.at(point.error)]);
        let straight = self.guide.iter().map(|[cost, error]| [x.at(*cost), y.at(*error)]);
        let path = match self.guide.is_empty() {
            true => joined(stepped, |[x, y]| format!("H{x:.1}V{y:.1}")),
            false => joined(straight, |[x, y]| format!("L{x:.1} {y:.1}")),
        };
        svg.0 += &format!("<path d=\"{path}\" class=\"front\"/>");
        let spots: Vec<[f64; 2]> = points.iter().map(|p| [x.at(p.cost), y.at(p.error)]).collect();
        let taken = spots.iter().map(|[x, y]| [x - 6.0, x + 6.0, y - 6.0, y + 6.0]);
        let mut taken: Vec<Place> = taken.collect();
        // Labels also avoid the stepped line of the Pareto front, if there is room elsewhere. The line's rectangles are so thin
        // that no label is left out because of them.
        let corners = front.windows(2).flat_map(|pair| {
            let [a, b] = [pair[0], pair[1]].map(|point| [x.at(point.cost), y.at(point.error)]);
            let across = [a[0].min(b[0]), a[0].max(b[0]), a[1] - 0.4, a[1] + 0.4];
            let down = [b[0] - 0.4, b[0] + 0.4, a[1].min(b[1]), a[1].max(b[1])];
            [across, down]
        });
        let corners: Vec<Place> = corners.filter(|_| self.guide.is_empty()).collect();
        taken.extend(corners);
        // Draw grey points first, so that they do not cover coloured points.
        let (grey, named): (Vec<_>, Vec<_>) = points.iter().zip(&spots).partition(|(point, _)| point.slot >= GREY);
        for (point, at) in grey.into_iter().chain(named.clone()) {
            svg.marker(*at, 5.0, point.slot, point.mark, &point.detail);
        }
        // Draw the names of coloured points: always for points on the front, and for other points if there is room.
        let on_front = |point: &Point| front.iter().any(|other| other.name == point.name);
        let (first, rest): (Vec<_>, Vec<_>) = named.into_iter().partition(|(point, _)| on_front(point));
        for (point, at) in first.into_iter().chain(rest) {
            let name = short(&point.name);
            let (place, class, covered) = free_place(&name, *at, area, &taken);
            if covered > CROWDED && !on_front(point) {
                continue;
            }
            taken.push(place);
            let anchor = if class == "end" { place[1] } else { place[0] };
            let class = format!("series {class} s{}", point.slot);
            svg.text(anchor, place[3] - 3.0, &class, &name);
        }
        Some(svg.finish())
    }
}

impl Scatter {
    /// Returns the points that can be drawn on a logarithmic axis.
    fn drawable(&self) -> impl Iterator<Item = &Point> {
        let points = self.points.iter();
        points.filter(|point| point.error.is_finite() && point.error > 0.0)
    }

    /// Returns the scales of costs and errors; `None` if there is nothing to draw.
    fn scales(&self) -> Option<[Scale; 2]> {
        let bound = self.bound.iter().map(|bound| bound.value);
        let costs = Scale::over(self.drawable().map(|point| point.cost), true)?;
        let errors = Scale::over(self.drawable().map(|point| point.error).chain(bound), true)?;
        Some([costs, errors])
    }

    fn axes(&self, svg: &mut Svg, area: Area, x: &Scale, y: &Scale) {
        svg.rules(area, y);
        for (value, label) in x.ticks() {
            let at = x.at(value);
            svg.line([at, area.top], [at, area.bottom], "grid");
            svg.text(at, area.bottom + 16.0, "tick middle", &label);
        }
        svg.edge(area, 33.0, &self.cost_unit);
        if let Some(bound) = &self.bound {
            let at = y.at(bound.value);
            svg.line([area.left, at], [area.right, at], "bound");
            svg.text(area.right - 4.0, at - 4.0, "bound-label end", &bound.label);
        }
    }
}

/// Returns an SVG path through points; `go` formats the segment to each point except the first.
fn joined(points: impl Iterator<Item = [f64; 2]>, go: fn([f64; 2]) -> String) -> String {
    let step = |(at, [x, y]): (usize, [f64; 2])| match at {
        0 => format!("M{x:.1} {y:.1}"),
        _ => go([x, y]),
    };
    points.enumerate().map(step).collect()
}

/// Returns the Pareto front, sorted by cost: each point has a smaller error than all other points that cost the same or less.
pub fn front<'a>(points: &[&'a Point]) -> Vec<&'a Point> {
    let mut sorted = points.to_vec();
    sorted.sort_by(|a, b| a.cost.total_cmp(&b.cost).then(a.error.total_cmp(&b.error)));
    let mut best = f64::INFINITY;
    sorted.retain(|point| {
        let better = point.error < best;
        best = best.min(point.error);
        better
    });
    sorted
}

/// Chooses the rectangle for the label of the point `[x, y]`: the one that covers the least area of points and other labels. Also
/// returns the label's CSS class, and the covered area in square pixels.
fn free_place(name: &str, [x, y]: [f64; 2], area: Area, taken: &[Place]) -> (Place, &'static str, f64) {
    let wide = width(name);
    let side = |left: bool, dy: f64| -> (Place, &'static str) {
        let (from, class) = match left {
            true => (x - 9.0 - wide, "end"),
            false => (x + 9.0, "start"),
        };
        ([from, from + wide, y + dy - 7.0, y + dy + 7.0], class)
    };
    let places = [0.0, -10.0, 10.0, -20.0, 20.0].into_iter();
    let places = places.flat_map(|dy| [side(false, dy), side(true, dy)]);
    let outside = |p: &Place| (area.left - p[0]).max(0.0) + (p[1] - area.right).max(0.0);
    let covered = |p: &Place| -> f64 {
        let overlap =
            |q: &Place| (p[1].min(q[1]) - p[0].max(q[0])).max(0.0) * (p[3].min(q[3]) - p[2].max(q[2])).max(0.0);
        taken.iter().map(overlap).sum::<f64>() + 100.0 * outside(p)
    };
    let best = places.min_by(|a, b| covered(&a.0).total_cmp(&covered(&b.0)));
    let (place, class) = best.unwrap_or_else(|| side(false, 0.0));
    (place, class, covered(&place))
}
