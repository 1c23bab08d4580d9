//! Counts and energies of a quantized matrix, and its distance from a source.

use super::matrix::Matrix;

/// Counts over a matrix.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    /// Elements.
    pub elements: u64,
    /// Codes of the largest magnitude.
    pub saturated: u64,
    /// Codes that are NaN or infinite.
    pub nan_codes: u64,
    /// Groups that share a scale.
    pub blocks: u64,
    /// Groups whose elements are all zero.
    pub dead: u64,
    /// Groups with a scale of zero and codes that are not.
    pub lost: u64,
    /// Mean of the codes less their zero points, in steps.
    pub mean_code: f64,
    /// Root of the mean square of the decoded elements; of a stack that of the matrix whose gain is farthest from 1.
    pub rms: f64,
    /// The same with the reciprocals of the block scales.
    pub rms_inverted: f64,
    /// The same with the reciprocal of the global scale; `None` without one.
    pub rms_global_inverted: Option<f64>,
    /// Inputs of an output.
    pub cols: usize,
}

/// Distances from a source.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Against {
    /// Sum of the squares of the source.
    pub signal: f64,
    /// Sum of the squares of the differences.
    pub noise: f64,
    /// With the reciprocals of the block scales.
    pub noise_inverted: f64,
    /// With the reciprocal of the global scale; infinite without one.
    pub noise_global_inverted: f64,
}

impl Measured {
    /// Counts over a matrix; `top` is the largest magnitude of its codes.
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

    /// The counts of both matrices of a stack. The mean is that of the larger magnitude, and all roots are of the matrix whose gain
    /// is farther from 1: its size with reciprocals cannot be compared with the size of another.
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

    /// The ratio of an output to the inputs, if these are independent: the root mean square of a row's sum.
    pub fn gain(&self, rms: f64) -> f64 {
        rms * (self.cols as f64).sqrt()
    }
}

impl Against {
    /// Distances from a source `[rows, cols]`.
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

    /// The ratio of the source to a noise, in dB; infinite without noise.
    pub fn db(&self, noise: f64) -> f64 {
        if noise == 0.0 {
            f64::INFINITY
        } else {
            10.0 * (self.signal / noise).log10()
        }
    }
}
