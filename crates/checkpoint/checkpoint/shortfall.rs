//! Compares the noise of a quantized matrix with the noise that rounding to its codes allows.
//!
//! For an element x, let `s` be its scale, `d` the distance of x / s from the nearest code, and `w` the distance between the two
//! codes around x / s. Rounding to nearest then has the noise d² s² for every distribution of x, and over many elements the mean
//! of d² is w² / 12. The allowed noise is the sum of max(d², w² / 12) s². Relative to this noise, rounding to nearest is at or
//! below 0 dB for every input, and stochastic rounding is at 1.6 dB. Methods that accept errors of elements to lower the error of
//! the output (GPTQ, AutoRound) are some dB higher.

use super::matrix::{Grid, Matrix};
use ulplab_core::metrics::upper_median;

/// Maximum number of columns in a cell, a part of a row whose noise is checked on its own.
const CELL: usize = 128;
/// Minimum number of elements of a cell whose noise is checked.
const FEWEST: usize = 8;
/// Squared error of a code that is one step w off, relative to the mean w² / 12 of rounding, in dB.
pub const ONE_STEP: f64 = 10.791_812_460_476_25;

/// Squared error of an element that is one and a half steps w off, relative to the mean w² / 12 of rounding.
const FAR: f64 = 27.0;

/// Squared error of some elements, and the squared error that rounding allows for them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Noise {
    /// Sum of squared differences.
    pub found: f64,
    /// Sum of squares that rounding allows.
    pub allowed: f64,
}

/// Noise of a matrix, of its rows and columns, and of its cells (parts of rows).
#[derive(Clone, Debug, Default)]
pub struct Shortfall {
    /// Noise of the whole matrix, and the noise that rounding with amax scales allows.
    pub whole: Noise,
    /// Noise of each row, and the noise that rounding with the stored scales allows.
    pub rows: Vec<Noise>,
    /// Noise of each column, and the noise that rounding with the stored scales allows.
    pub cols: Vec<Noise>,
    /// Number of cells whose mean error exceeds one step. A cell is a part of a row within one group, at most 128 columns wide.
    pub cells: usize,
    /// Row, first column and noise of the first cell that `cells` counts.
    pub first: Option<(usize, usize, Noise)>,
    /// Number of elements whose error is larger than one and a half steps.
    pub elements: usize,
    /// Row, column and noise of the first element that `elements` counts.
    pub element: Option<(usize, usize, Noise)>,
}

impl Noise {
    /// Ratio of the noise to the noise that rounding allows, in dB.
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
    /// Measures the noise of a matrix against `source`, the values `[rows, cols]` before quantization, which are finite. `noise`
    /// is the squared error of all elements. Cells (parts of rows) and elements are outliers only if their error is above its
    /// mean. `fitted` is true if the source was multiplied by fitted column factors. Columns whose RMS code is below one step
    /// then never count as outliers, because noise dominates their factors.
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
                // Limit the stored scale to a factor of 2 around the amax scale: a wrong scale must not raise the allowed noise.
                // If the amax scale is below the smallest normal scale of the type, use twice that smallest scale instead.
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

/// Returns a flag for each column: true if the root mean square of its codes is below one step but not 0.
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

/// Partition of the columns into cells: up to `CELL` columns whose elements in a row share a scale.
#[derive(Default)]
struct Cells {
    /// For each column, the index of the cell that contains it.
    of: Vec<usize>,
    first: Vec<usize>,
    size: Vec<usize>,
}

impl Cells {
    fn new(matrix: &Matrix) -> Self {
        let mut cells = Self::default();
        // For each group of elements that share a scale, index of its newest cell; `usize::MAX` before the first one.
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

/// Amax scale of each group, which maps the largest magnitude of the group to the largest code. With zero points, it maps the
/// range of the group to the range of the codes.
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
    /// Squared error that rounding allows for an element x of a group with this scale.
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

/// Median and robust standard deviation of the finite values; `None` without finite values. The deviation is 1.4826 times the
/// median absolute deviation, which is exact for normal values.
pub fn spread(values: &[f64]) -> Option<(f64, f64)> {
    let finite: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
    let middle = upper_median(finite.clone())?;
    let off = finite.iter().map(|value| (value - middle).abs()).collect();
    Some((middle, 1.4826 * upper_median(off)?))
}
