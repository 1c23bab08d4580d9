//! Statistics of a quantized matrix, and its distance from a source, the matrix before quantization.

use super::matrix::Matrix;

/// Statistics of a matrix or of a stack of matrices.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    /// Number of elements.
    pub elements: u64,
    /// Number of codes with the largest magnitude.
    pub saturated: u64,
    /// Number of codes that are NaN or infinite.
    pub nan_codes: u64,
    /// Number of groups of elements, each with one scale.
    pub blocks: u64,
    /// Number of groups whose elements are all zero.
    pub dead: u64,
    /// Number of groups with a scale of 0 and a code that is not 0.
    pub lost: u64,
    /// Mean over all elements of the code minus the zero point, in steps.
    pub mean_code: f64,
    /// Root mean square of the decoded elements; for a stack, of the matrix whose gain ([`Self::gain`]) is farthest from 1.
    pub rms: f64,
    /// Same as `rms`, with each block scale replaced by its reciprocal: shows if scales are stored inverted.
    pub rms_inverted: f64,
    /// Same as `rms`, with the global scale replaced by its reciprocal; `None` without a global scale.
    pub rms_global_inverted: Option<f64>,
    /// Number of input channels.
    pub cols: usize,
}

/// Sum of squares of a source matrix, and squared distances of a quantized matrix from the source.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Against {
    /// Sum of the squares of the source.
    pub signal: f64,
    /// Sum of the squares of the differences.
    pub noise: f64,
    /// Same as `noise`, with each block scale replaced by its reciprocal: shows if scales are stored inverted.
    pub noise_inverted: f64,
    /// Same as `noise`, with the global scale replaced by its reciprocal; infinite without a global scale.
    pub noise_global_inverted: f64,
}

impl Measured {
    /// Computes the statistics of a matrix. `top` is the largest magnitude that a code can have; without it no code counts as
    /// saturated.
    pub fn new(matrix: &Matrix, top: Option<f32>) -> Self {
        let groups = matrix.scales.len();
        let (mut energy, mut sum) = (vec![0.0f64; groups], 0.0);
        let (mut saturated, mut nan_codes) = (0, 0);
        for (row, codes) in matrix.codes.chunks_exact(matrix.cols.max(1)).enumerate() {
            for (col, code) in codes.iter().enumerate() {
                if !code.is_finite() {
                    nan_codes += 1;
                    continue;
                }
                saturated += u64::from(top.is_some_and(|top| code.abs() >= top));
                energy[matrix.group(row, col)] += f64::from(*code) * f64::from(*code);
                sum += f64::from(*code);
            }
        }
        let elements = matrix.codes.len() as u64;
        let of = |scale: fn(f64) -> f64, factor: f64| {
            let scaled = energy.iter().zip(&matrix.scales).filter(|(energy, _)| **energy > 0.0);
            let squares = scaled.map(|(energy, stored)| energy * scale(f64::from(*stored)).powi(2));
            (squares.sum::<f64>() / elements.max(1) as f64).sqrt() * factor.abs()
        };
        let inverse = |scale: f64| if scale == 0.0 { 0.0 } else { 1.0 / scale };
        let plain = |scale: f64| scale;
        let lost = |(energy, scale): &(&f64, &f32)| **energy > 0.0 && **scale == 0.0;
        Self {
            elements,
            saturated,
            nan_codes,
            blocks: groups as u64,
            dead: energy.iter().filter(|energy| **energy == 0.0).count() as u64,
            lost: energy.iter().zip(&matrix.scales).filter(lost).count() as u64,
            mean_code: sum / elements.max(1) as f64,
            rms: of(plain, matrix.factor),
            rms_inverted: of(inverse, matrix.factor),
            rms_global_inverted: matrix.has_global.then(|| of(plain, 1.0 / matrix.factor)),
            cols: matrix.cols,
        }
    }

    /// Joins the statistics of two matrices of a stack. Counts are added, and the mean with the larger magnitude is kept. All
    /// root mean squares come from the matrix whose gain is farther from 1, so that they can be compared with each other.
    #[must_use]
    pub fn joined(self, other: Self) -> Self {
        let far = |one: &Self| one.gain(one.rms).log2().abs();
        let mean_code = match self.mean_code.abs() > other.mean_code.abs() {
            true => self.mean_code,
            false => other.mean_code,
        };
        Self {
            elements: self.elements + other.elements,
            saturated: self.saturated + other.saturated,
            nan_codes: self.nan_codes + other.nan_codes,
            blocks: self.blocks + other.blocks,
            dead: self.dead + other.dead,
            lost: self.lost + other.lost,
            mean_code,
            ..if far(&other) > far(&self) { other } else { self }
        }
    }

    /// Ratio of the magnitude of the matrix's outputs to the magnitude of independent inputs: `rms` times the square root of the
    /// number of inputs.
    pub fn gain(&self, rms: f64) -> f64 {
        rms * (self.cols as f64).sqrt()
    }
}

impl Against {
    /// Measures the squared distances of a quantized matrix from a source of shape `[rows, cols]`.
    pub fn new(matrix: &Matrix, source: &[f32]) -> Self {
        let mut sums = Self {
            signal: 0.0,
            noise: 0.0,
            noise_inverted: 0.0,
            noise_global_inverted: if matrix.has_global { 0.0 } else { f64::INFINITY },
        };
        for row in 0..matrix.rows {
            for col in 0..matrix.cols {
                let want = f64::from(source[row * matrix.cols + col]);
                let code = f64::from(matrix.codes[row * matrix.cols + col]);
                let scale = f64::from(matrix.scales[matrix.group(row, col)]);
                let off = |got: f64| (want - got) * (want - got);
                sums.signal += want * want;
                sums.noise += off(code * scale * matrix.factor);
                sums.noise_inverted += off(code / scale * matrix.factor);
                sums.noise_global_inverted += off(code * scale / matrix.factor);
            }
        }
        sums
    }

    /// Returns the SQNR in dB for the squared error `noise`; infinite if `noise` is 0.
    pub fn db(&self, noise: f64) -> f64 {
        if noise == 0.0 {
            f64::INFINITY
        } else {
            10.0 * (self.signal / noise).log10()
        }
    }
}
