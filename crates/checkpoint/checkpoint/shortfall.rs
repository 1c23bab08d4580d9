//! The noise of a quantized matrix against the noise that rounding to its codes allows.
//!
//! Let `s` be the scale of an element x, `d` the distance of x / s from the nearest code, and `w` the distance of the two codes around
//! it. Rounding to nearest has the noise d² s², for every distribution of x; over many elements the mean of d² is w² / 12. The
//! noise that is allowed is the sum of max(d², w² / 12) s². So rounding to nearest lies at or below 0 dB of it for every input, stochastic
//! rounding 1.6 dB above, and methods that trade the error of an element for that of the output (GPTQ, AutoRound) some dB above.

use super::matrix::{Grid, Matrix};
use ulplab_core::metrics::upper_median;

/// Columns of a part of a row that is judged by itself.
const CELL: usize = 128;
/// Elements below which a part of a row is not judged.
const FEWEST: usize = 8;
/// The noise of codes that are one step off, against that of rounding: w² against w² / 12, in dB.
pub const ONE_STEP: f64 = 10.791_812_460_476_25;

/// The noise of an element that is one and a half steps off, against w² / 12.
const FAR: f64 = 27.0;

/// A noise, and what rounding allows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Noise {
    /// Sum of the squares of the differences.
    pub found: f64,
    /// The sum that rounding allows.
    pub allowed: f64,
}

/// The noise of a matrix, of its rows and columns, and of parts of rows.
#[derive(Clone, Debug, Default)]
pub struct Shortfall {
    /// The noise of the whole matrix, with the scales that the largest magnitudes of groups give.
    pub whole: Noise,
    /// The noise of rows, with the scales that are stored.
    pub rows: Vec<Noise>,
    /// The noise of columns, with the scales that are stored.
    pub cols: Vec<Noise>,
    /// Parts of rows, of one group and at most 128 columns, whose noise is more than one step: their number.
    pub cells: usize,
    /// The first of them: row, first column, and its noise.
    pub first: Option<(usize, usize, Noise)>,
    /// Elements that are farther than one and a half steps from the nearest code: their number.
    pub elements: usize,
    /// The first of them: row, column, and its noise.
    pub element: Option<(usize, usize, Noise)>,
}

impl Noise {
    /// The ratio of the noise to what rounding allows, in dB.
    pub fn db(&self) -> f64 {
        match (self.found, self.allowed) {
            (0.0, _) => f64::NEG_INFINITY,
            (found, allowed) => 10.0 * (found / allowed).log10(),
        }
    }

    fn add(&mut self, found: f64, allowed: f64) {
        self.found += found;
        self.allowed += allowed;
    }
}

impl Shortfall {
    /// The noise of a matrix against a source `[rows, cols]` of finite values. `noise` is the sum over all elements: a part whose own is
    /// below the mean changes nothing. If the source has `fitted` factors of columns, columns and elements are judged only where the codes
    /// of a column are larger than a step: the factor of another one is that of its noise.
    pub fn new(matrix: &Matrix, source: &[f32], noise: f64, fitted: bool) -> Self {
        let (rows, cols) = (matrix.rows, matrix.cols);
        let plain = plain_scales(matrix, source);
        let least = matrix.least * matrix.factor.abs();
        let cells = Cells::new(matrix);
        let mut of = Self {
            rows: vec![Noise::default(); rows],
            cols: vec![Noise::default(); cols],
            ..Self::default()
        };
        let weak = match fitted {
            true => weak_columns(matrix),
            false => vec![false; cols],
        };
        let mean = noise / (rows * cols).max(1) as f64;
        let mut parts = vec![Noise::default(); cells.first.len()];
        for row in 0..rows {
            parts.fill(Noise::default());
            for col in 0..cols {
                let x = f64::from(source[row * cols + col]);
                let code = f64::from(matrix.codes[row * cols + col]);
                let group = matrix.group(row, col);
                let stored = f64::from(matrix.scales[group]) * matrix.factor;
                let off = (x - code * stored).powi(2);
                let plain = plain[group];
                // Scales are chosen within a factor of 2; those that their own type cannot have are the least one.
                let near = match plain < least {
                    true => (2.0 * least, 2.0 * least),
                    false => (plain / 2.0, 2.0 * plain.max(least)),
                };
                let allowed = matrix.rounding(group, x, stored.abs().clamp(near.0, near.1));
                let scale = if plain < least { near.1 } else { plain };
                of.whole.add(off, matrix.rounding(group, x, scale));
                of.rows[row].add(off, allowed);
                of.cols[col].add(if weak[col] { off.min(allowed) } else { off }, allowed);
                parts[cells.of[col]].add(off, allowed);
                if off > (FAR * allowed).max(mean) && !weak[col] {
                    of.elements += 1;
                    of.element.get_or_insert((row, col, Noise { found: off, allowed }));
                }
            }
            let over = |at: &usize| {
                let (part, size) = (parts[*at], cells.size[*at]);
                size >= FEWEST && part.db() > ONE_STEP && part.found > mean * size as f64
            };
            for at in (0..parts.len()).filter(over) {
                of.cells += 1;
                of.first.get_or_insert((row, cells.first[at], parts[at]));
            }
        }
        of
    }
}

/// True for columns whose codes are not all 0 and have a root mean square below a step.
fn weak_columns(matrix: &Matrix) -> Vec<bool> {
    let mut sums = vec![(0.0f64, 0.0f64); matrix.cols];
    for row in 0..matrix.rows {
        for (col, (values, steps)) in sums.iter_mut().enumerate() {
            let step = f64::from(matrix.scales[matrix.group(row, col)]) * matrix.factor;
            *values += (f64::from(matrix.codes[row * matrix.cols + col]) * step).powi(2);
            *steps += step * step;
        }
    }
    let is_weak = |(values, steps): (f64, f64)| 0.0 < values && values < steps;
    sums.into_iter().map(is_weak).collect()
}

/// The parts of a row.
#[derive(Default)]
struct Cells {
    /// The part of each column.
    of: Vec<usize>,
    first: Vec<usize>,
    size: Vec<usize>,
}

impl Cells {
    fn new(matrix: &Matrix) -> Self {
        let mut cells = Self::default();
        // The part that a group has open.
        let mut open = vec![usize::MAX; matrix.scales.len()];
        for col in 0..matrix.cols {
            let group = matrix.group(0, col);
            if open[group] == usize::MAX || cells.size[open[group]] == CELL {
                open[group] = cells.size.len();
                cells.first.push(col);
                cells.size.push(0);
            }
            cells.of.push(open[group]);
            cells.size[open[group]] += 1;
        }
        cells
    }
}

/// The scale of each group that puts its largest magnitude, or its range if it has zero points, on the largest code.
fn plain_scales(matrix: &Matrix, source: &[f32]) -> Vec<f64> {
    let mut ends = vec![(0f64, 0f64); matrix.scales.len()];
    for row in 0..matrix.rows {
        for col in 0..matrix.cols {
            let x = f64::from(source[row * matrix.cols + col]);
            let end = &mut ends[matrix.group(row, col)];
            *end = (end.0.min(x), end.1.max(x));
        }
    }
    let scale = |(low, high): (f64, f64)| {
        let amax = high.max(-low);
        match &matrix.grid {
            Grid::Values(values) => amax / f64::from(*values.last().expect("a format has values")),
            Grid::Integers { bits, zeros: Some(_) } => (high - low) / f64::from((1u32 << bits) - 1),
            Grid::Integers { bits, zeros: None } => 2.0 * amax / f64::from((1u32 << bits) - 1),
        }
    };
    ends.into_iter().map(scale).collect()
}

impl Matrix {
    /// The square that rounding an element x of a group with a scale allows.
    fn rounding(&self, group: usize, x: f64, scale: f64) -> f64 {
        if scale == 0.0 || !scale.is_finite() {
            return 0.0;
        }
        let t = x / scale;
        let (distance, width) = match &self.grid {
            Grid::Values(values) => {
                let at = values.partition_point(|value| f64::from(*value) < t);
                let at = at.clamp(1, values.len() - 1);
                let (low, high) = (f64::from(values[at - 1]), f64::from(values[at]));
                ((t - low).abs().min((high - t).abs()), high - low)
            }
            Grid::Integers { bits, zeros } => {
                let steps = f64::from((1u32 << bits) - 1);
                let middle = f64::from(1u32 << (bits - 1));
                let zero = zeros.as_ref().map_or(middle, |zeros| f64::from(zeros[group]));
                let nearest = t.round().clamp(-zero, steps - zero);
                ((t - nearest).abs(), 1.0)
            }
        };
        (distance * distance).max(width * width / 12.0) * scale * scale
    }
}

/// Median, and the standard deviation that the median deviation from it stands for: 1.4826 of it for normal values; `None` without finite
/// values; only these count.
pub fn spread(values: &[f64]) -> Option<(f64, f64)> {
    let finite: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
    let middle = upper_median(finite.clone())?;
    let off = finite.iter().map(|value| (value - middle).abs()).collect();
    Some((middle, 1.4826 * upper_median(off)?))
}
