//! How the buffers of a quantized tensor are stored, told from the source alone: whatever the rule, the codes of a block
//! are nearly proportional to its values, and the factor is its scale.

use super::{Cause, Stored};
use crate::formats::{Format, Global, Group, Scale};
use crate::layouts::{Groups, LAYOUTS, Layout};
use crate::packed::{Grid, codes};

/// A way to store a matrix, and where that puts each of its entries; `None` for what is not in the buffer.
pub struct Order {
    pub name: String,
    /// What it is called if it was not asked for.
    pub cause: Cause,
    pub places: Vec<Option<usize>>,
}

impl Order {
    fn new(
        name: impl Into<String>,
        cause: Cause,
        rows: usize,
        cols: usize,
        at: impl Fn(usize, usize) -> usize,
        len: usize,
    ) -> Self {
        let places = (0..rows * cols).map(|index| Some(at(index / cols, index % cols)).filter(|place| *place < len));
        Self {
            name: name.into(),
            cause,
            places: places.collect(),
        }
    }
}

/// Elements looked at to tell an order of codes.
const ENOUGH: usize = 1 << 22;
/// Channels of a row looked at to tell how far it is from the row before.
const SEGMENT: usize = 256;
/// The least cosine of codes that are where they are taken to be.
const CONVINCING: f64 = 0.6;

/// Codes in the order they are stored in, of 4-bit codes low nibble first.
pub struct Data<'a> {
    grid: &'a Grid,
    raw: Vec<u16>,
    /// Value of each raw code; 0 for what is not finite.
    values: Vec<f32>,
    /// The source with every block divided by its largest magnitude.
    shape: Vec<f32>,
    bits: u32,
}

impl<'a> Data<'a> {
    pub fn new(format: &Format, grid: &'a Grid, x: &[f32], data: &[u8]) -> Self {
        let (raw, repr) = (codes(format, data), format.repr());
        let values = raw
            .iter()
            .map(|code| Some(repr.decode(*code)).filter(|x| x.is_finite()).unwrap_or(0.0));
        let mut shape = x.to_vec();
        for group in 0..grid.len() {
            let amax = grid.elements(group).map(|at| x[at].abs()).fold(0.0f32, f32::max);
            for at in grid.elements(group) {
                let ratio = x[at] / amax;
                shape[at] = if ratio.is_finite() { ratio } else { 0.0 };
            }
        }
        Self {
            grid,
            values: values.collect(),
            raw,
            shape,
            bits: format.element.bits,
        }
    }

    /// The order in which the codes fit the source best, the declared one first if nothing fits better.
    pub fn order(&self) -> Order {
        let Grid { rows, cols, .. } = *self.grid;
        let len = self.raw.len();
        let swaps: &[usize] = if self.bits == 4 { &[0, 1] } else { &[0] };
        let mut orders: Vec<(f64, Order)> = Vec::new();
        let mut add = |name: &str, swap: usize, at: &dyn Fn(usize, usize) -> usize| {
            let (suffix, cause) = match (swap, name) {
                (1, "row-major") => (", high nibble first", Cause::NibbleOrder),
                (1, _) => (", high nibble first", Cause::Layout),
                _ => ("", Cause::Layout),
            };
            let order = Order::new(
                format!("{name}{suffix}"),
                cause,
                rows,
                cols,
                |r, c| at(r, c) ^ swap,
                len,
            );
            orders.push((self.score(&order.places), order));
            orders[orders.len() - 1].0
        };
        let mut best = 0.0f64;
        for &swap in swaps {
            best = best.max(add("row-major", swap, &|r, c| r * cols + c));
            best = best.max(add("column-major", swap, &|r, c| c * rows + r));
        }
        if best < CONVINCING && rows > 1 {
            for &swap in swaps {
                let stride = self.stride(swap);
                add(&format!("rows {stride} elements apart"), swap, &|r, c| r * stride + c);
            }
        }
        let best = (0..orders.len())
            .max_by(|a, b| orders[*a].0.total_cmp(&orders[*b].0).then(b.cmp(a)))
            .unwrap_or(0);
        // Neighbours that are alike fit nearly as well when exchanged; and of codes that fit nothing, nothing is told.
        let better = orders[best].0 > orders[0].0 + 0.02 && orders[best].0 > CONVINCING;
        orders.swap_remove(if better { best } else { 0 }).1
    }

    /// The codes in that order, and whether they were there.
    pub fn read(&self, order: &Order) -> (Vec<u16>, Vec<bool>) {
        let codes = order
            .places
            .iter()
            .map(|place| place.map_or(0, |place| self.raw[place]));
        (codes.collect(), order.places.iter().map(Option::is_some).collect())
    }

    /// The code at a place of the buffer.
    pub fn raw(&self, place: usize) -> Option<u16> {
        self.raw.get(place).copied()
    }

    /// Cosine of codes and source.
    fn score(&self, places: &[Option<usize>]) -> f64 {
        let step = self.shape.len().div_ceil(ENOUGH).max(1);
        let rows = (0..self.grid.rows).step_by(step);
        let elements = rows.flat_map(|r| r * self.grid.cols..(r + 1) * self.grid.cols);
        let pairs = elements.map(|at| (self.shape[at], places[at].map_or(0.0, |place| self.values[place])));
        cosine(pairs)
    }

    /// Elements from the first row to where the second fits best.
    fn stride(&self, swap: usize) -> usize {
        let cols = self.grid.cols;
        let second = &self.shape[cols..cols + cols.min(SEGMENT)];
        let last = (8 * cols).min(self.raw.len().saturating_sub(second.len()));
        let fit = |start: usize| {
            let pairs = second.iter().enumerate();
            cosine(pairs.map(|(i, x)| (*x, self.values.get((start + i) ^ swap).copied().unwrap_or(0.0))))
        };
        let strides = (1..=last).map(|start| (fit(start), start));
        strides
            .max_by(|a, b| a.0.total_cmp(&b.0))
            .map_or(cols, |(_, start)| start)
    }
}

fn cosine(pairs: impl Iterator<Item = (f32, f32)>) -> f64 {
    let (mut xx, mut yy, mut xy) = (0.0, 0.0, 0.0);
    for (x, y) in pairs {
        let (x, y) = (f64::from(x), f64::from(y));
        (xx, yy, xy) = (xx + x * x, yy + y * y, xy + x * y);
    }
    if xx * yy > 0.0 { xy / (xx * yy).sqrt() } else { 0.0 }
}

/// log2 of the scale that the codes of each block were made with, by least squares; `None` where all are 0.
///
/// Codes of the largest magnitude there is may have saturated, so they count only where there are no others.
pub fn implied(format: &Format, grid: &Grid, x: &[f32], codes: &[u16], known: &[bool]) -> Vec<Option<f64>> {
    let repr = format.repr();
    let largest = |max: f64, code: &u16| {
        max.max(
            Some(f64::from(repr.decode(*code)).abs())
                .filter(|q| q.is_finite())
                .unwrap_or(0.0),
        )
    };
    let max = codes.iter().fold(0.0, largest);
    let of = |group, largest: f64| {
        let (mut xq, mut qq) = (0.0, 0.0);
        for at in grid.elements(group).filter(|at| known[*at]) {
            let (x, q) = (f64::from(x[at]), f64::from(repr.decode(codes[at])));
            if x.is_finite() && q.is_finite() && q.abs() <= largest {
                (xq, qq) = (xq + x * q, qq + q * q);
            }
        }
        Some((xq / qq).log2()).filter(|log| log.is_finite())
    };
    (0..grid.len())
        .map(|group| of(group, max.next_down()).or_else(|| of(group, max)))
        .collect()
}

/// How the scales are stored, and what the global scale means.
pub struct Scales {
    pub order: Order,
    /// `None` where nothing tells it: there is no such level, or all is zero.
    pub convention: Option<Convention>,
}

/// What is stored above the block scales.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Convention {
    pub stored: Global,
    /// The decoded values are this many times too large under the best convention; 1 if it is right, NaN if what is stored
    /// is no scale.
    pub factor: f64,
}

/// How near in log2 the implied scales of right bytes come, in the median.
const NEAR: f64 = 0.12;

/// How far in log2 they come, in the mean, where they have nothing to do with each other.
const UNRELATED: f64 = 0.4;

/// The largest values per unit of the decoding scale that rules know: 6·448, and 6·256 of four-over-six.
const SPANS: [f32; 2] = [2688.0, 1536.0];

/// Finds the order and convention under which the scales fit what the codes imply.
pub fn scales(format: &Format, grid: &Grid, stored: &Stored, implied: &[Option<f64>]) -> Option<Scales> {
    let scaling = format.scaling?;
    let raw: Vec<f64> = stored
        .scale
        .chunks_exact(scaling.scale.bytes())
        .map(|bytes| f64::from(scaling.scale.value(bytes)).log2())
        .collect();
    let meanings = meanings(format, stored);
    let mut orders = orders(scaling.scale, grid, stored, &raw, &meanings[0].1, implied);
    // [order][meaning]
    let fits: Vec<Vec<Fit>> = orders
        .iter()
        .map(|order| {
            let fit =
                |(_, levels): &(Option<Global>, Vec<f64>)| Fit::new(&scaling.scale, grid, &raw, order, levels, implied);
            meanings.iter().map(fit).collect()
        })
        .collect();
    let loss = |order: usize| fits[order].iter().map(|fit| fit.loss).fold(f64::INFINITY, f64::min);
    let best = (0..orders.len())
        .min_by(|a, b| loss(*a).total_cmp(&loss(*b)).then(a.cmp(b)))
        .unwrap_or(0);
    let chosen = if loss(best) < 0.7 * loss(0) { best } else { 0 };
    let fits = &fits[chosen];
    let near = |fit: &Fit| fit.loss <= 1.1 * loss(chosen) + 1e-9;
    let distance = |at: usize| {
        if near(&fits[at]) {
            fits[at].residue.abs()
        } else {
            f64::INFINITY
        }
    };
    let closest = (0..fits.len())
        .min_by(|a, b| distance(*a).total_cmp(&distance(*b)).then(a.cmp(b)))
        .unwrap_or(0);
    let meaning = if distance(0) <= distance(closest) + 0.1 {
        0
    } else {
        closest
    };
    let usable = stored.global.iter().any(|global| global.is_finite() && *global > 0.0);
    let residue = if usable { fits[meaning].residue } else { f64::NAN };
    // Of codes that fit nothing, nothing is told.
    let told = implied.iter().any(Option::is_some) && (!usable || fits[meaning].loss < UNRELATED);
    Some(Scales {
        order: orders.swap_remove(chosen),
        convention: meanings[meaning].0.filter(|_| told).map(|stored| Convention {
            stored,
            factor: if residue.abs() < NEAR { 1.0 } else { residue.exp2() },
        }),
    })
}

/// How well scales fit what the codes imply.
struct Fit {
    /// Mean distance in log2 from the median difference, at most 1/2 each.
    loss: f64,
    /// The median difference.
    residue: f64,
}

impl Fit {
    fn new(scale: &Scale, grid: &Grid, raw: &[f64], order: &Order, levels: &[f64], implied: &[Option<f64>]) -> Self {
        let level = |group: usize| match levels {
            [] => 0.0,
            [level] => *level,
            _ => levels[group / grid.count.1],
        };
        let differences: Vec<f64> = implied
            .iter()
            .enumerate()
            .filter_map(|(group, implied)| {
                let stored = order.places[group].map_or(f64::NAN, |place| raw[place]);
                implied.map(|implied| stored + level(group) - implied)
            })
            .collect();
        let mut finite: Vec<f64> = differences.iter().copied().filter(|d| d.is_finite()).collect();
        finite.sort_by(f64::total_cmp);
        let residue = finite.get(finite.len() / 2).copied().unwrap_or(0.0);
        // A power of two is right or far off.
        let dead = if matches!(scale, Scale::E8m0(_)) { 0.35 } else { 0.0 };
        let loss = |d: &f64| {
            let distance = (d - residue).abs();
            if distance.is_finite() {
                if distance < dead { 0.0 } else { distance.min(0.5) }
            } else {
                0.5
            }
        };
        Self {
            loss: differences.iter().map(loss).sum::<f64>() / differences.len().max(1) as f64,
            residue,
        }
    }
}

/// What the stored global scales may mean, and the log2 of what they multiply codes by; the format's own first.
fn meanings(format: &Format, stored: &Stored) -> Vec<(Option<Global>, Vec<f64>)> {
    let Some((Scale::E4m3(rule), Some(_))) = format.scaling.map(|scaling| (scaling.scale, format.global)) else {
        return vec![(None, Vec::new())];
    };
    let logs = |factor: f64, power: f64| -> Vec<f64> {
        stored
            .global
            .iter()
            .map(|global| power * f64::from(*global).log2() - factor.log2())
            .collect()
    };
    let amax = SPANS.map(|span| (Some(Global::Amax), logs(f64::from(span), 1.0)));
    let others = [
        (Some(Global::Decode), logs(1.0, 1.0)),
        (Some(Global::Encode), logs(1.0, -1.0)),
    ];
    let mut all: Vec<_> = amax.into_iter().chain(others).collect();
    let own = |meaning: &(Option<Global>, Vec<f64>)| {
        meaning.0 == Some(rule.stored) && (rule.stored != Global::Amax || meaning.1 == logs(f64::from(rule.span), 1.0))
    };
    if let Some(at) = all.iter().position(own) {
        all.swap(0, at);
    }
    all
}

/// All orders that scales of that number may be in, the declared one first.
fn orders(
    scale: Scale,
    grid: &Grid,
    stored: &Stored,
    raw: &[f64],
    levels: &[f64],
    implied: &[Option<f64>],
) -> Vec<Order> {
    let ((down, across), len) = (grid.count, raw.len());
    let row_major = |stride: usize| {
        let name = if stride == across {
            "row-major".into()
        } else {
            format!("rows {stride} scales apart")
        };
        Order::new(name, Cause::Layout, down, across, |r, c| r * stride + c, len)
    };
    let mut orders = vec![row_major(across)];
    if down > 1 && across > 1 {
        orders.push(Order::new(
            "column-major",
            Cause::Layout,
            down,
            across,
            |r, c| c * down + r,
            len,
        ));
        // Told from the first rows; the others follow.
        let first = down.min(4);
        let loss = |stride: &usize| {
            let order = Order::new("", Cause::Layout, first, across, |r, c| r * stride + c, len);
            Fit::new(&scale, grid, raw, &order, levels, &implied[..first * across]).loss
        };
        let strides = (1..=4 * across + 16).map(|stride| (loss(&stride), stride));
        let best = strides
            .min_by(|a, b| a.0.total_cmp(&b.0))
            .map_or(across, |(_, stride)| stride);
        if best != across {
            orders.push(row_major(best));
        }
    }
    let layouts = LAYOUTS
        .iter()
        .filter(|layout| layout.groups == Groups::None && layout.scale == scale.bytes());
    for layout in layouts {
        if let Ok(placement) = layout.place(&[down, across], &[])
            && placement.len() == len * scale.bytes()
        {
            let blocked = layout.name.starts_with("blocked");
            let cause = if blocked { Cause::Swizzle } else { Cause::Layout };
            let at = |r, c| {
                placement
                    .offset(r, c)
                    .map_or(usize::MAX, |offset| offset / scale.bytes())
            };
            orders.push(Order::new(layout.name, cause, down, across, at, len));
        }
    }
    if let Some(declared) = stored.layout
        && let Some(at) = orders.iter().position(|order| order.name == declared.name)
    {
        orders.swap(0, at);
    }
    orders
}

/// Where the scales of all groups are in the declared order.
pub fn declared(grid: &Grid, layout: Option<&'static Layout>, size: usize) -> Vec<Option<usize>> {
    let (down, across) = grid.count;
    let placement = layout.and_then(|layout| layout.place(&[down, across], &[]).ok());
    let place = |group| match &placement {
        Some(placement) => placement
            .offset(group / across, group % across)
            .map(|offset| offset / size),
        None => Some(group),
    };
    (0..grid.len()).map(place).collect()
}

/// The global scale above a group; 1 where there is none.
pub fn global_of(format: &Format, grid: &Grid, globals: &[f32], group: usize) -> f32 {
    match (format.global, globals) {
        (Some(Group::Token), globals) => globals[grid.place(group)[0]],
        (_, [global, ..]) => *global,
        _ => 1.0,
    }
}
