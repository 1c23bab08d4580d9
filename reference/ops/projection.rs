//! Linear layers y = x·Wᵀ + b, with W stored in the smallest type that represents every weight exactly.
//!
//! Checkpoints store most weights in bf16. A projection keeps such weights in bf16 and converts them before each product, panel
//! by panel; the conversion is exact. So bf16 weights take half the memory of f32 weights, even if the model computes in f64.

use half::bf16;
use rayon::prelude::*;

use super::linear::multiply;
use crate::{Real, Tensor};

/// Number of outputs whose weights are converted and multiplied as one panel. The number does not depend on the number of
/// threads, so results do not either.
pub const PANEL: usize = 128;

/// Number of rows of x that are multiplied at a time; the weights are converted again for each such block of rows.
pub const ROWS: usize = 256;

/// A linear layer, with or without a bias.
#[derive(Clone, Debug)]
pub struct Projection<T> {
    inputs: usize,
    outputs: usize,
    weight: Kept<T>,
    bias: Option<Vec<T>>,
}

/// Weights, row-major, in the smallest of the three types that represents every weight exactly.
#[derive(Clone, Debug)]
enum Kept<T> {
    Bf16(Vec<bf16>),
    F32(Vec<f32>),
    Own(Vec<T>),
}

impl<T: Real> Kept<T> {
    fn of(weights: Vec<T>) -> Self {
        let single = |x: &T| Into::<f64>::into(*x) as f32;
        let is_single = |x: &T| f64::from(single(x)) == Into::<f64>::into(*x);
        if !weights.iter().all(is_single) {
            return Self::Own(weights);
        }
        // The upper half of an f32 is the same number in bf16 if the lower half is 0.
        if weights.iter().all(|x| single(x).to_bits() & 0xffff == 0) {
            let upper = |x: &T| bf16::from_bits((single(x).to_bits() >> 16) as u16);
            return Self::Bf16(weights.iter().map(upper).collect());
        }
        match size_of::<T>() > size_of::<f32>() {
            true => Self::F32(weights.iter().map(single).collect()),
            false => Self::Own(weights),
        }
    }

    /// Calls `work` with a range of the weights, converted to `T`.
    fn with<R>(&self, range: std::ops::Range<usize>, work: impl FnOnce(&[T]) -> R) -> R {
        let widen = |x: f32| T::from_f64(x.into());
        match self {
            Self::Bf16(weights) => work(&weights[range].iter().map(|x| widen(x.to_f32())).collect::<Vec<_>>()),
            Self::F32(weights) => work(&weights[range].iter().map(|&x| widen(x)).collect::<Vec<_>>()),
            Self::Own(weights) => work(&weights[range]),
        }
    }
}

impl<T: Real> Projection<T> {
    /// Creates a projection from weights `[outputs, inputs]` and an optional bias per output.
    pub fn new(weight: Tensor<T>, bias: Option<Vec<T>>) -> Self {
        Self {
            inputs: weight.cols(),
            outputs: weight.rows(),
            weight: Kept::of(weight.data),
            bias,
        }
    }

    /// Returns the number of input channels.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Returns the number of output channels.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// Returns the weights of one output, e.g. the embedding of a token.
    pub fn row(&self, output: usize) -> Vec<T> {
        let first = output * self.inputs;
        self.weight.with(first..first + self.inputs, <[T]>::to_vec)
    }

    /// Applies the layer to x `[.., inputs]`; returns y `[rows, outputs]`.
    pub fn apply(&self, x: &Tensor<T>) -> Tensor<T> {
        let rows = x.data.len() / self.inputs;
        Tensor::new([rows, self.outputs], self.apply_rows(&x.data))
    }

    /// Same as [`Self::apply`], for a slice of rows.
    pub fn apply_rows(&self, x: &[T]) -> Vec<T> {
        let (inputs, outputs) = (self.inputs, self.outputs);
        let mut y = vec![T::ZERO; x.len() / inputs * outputs];
        for (x, y) in x.chunks(ROWS * inputs).zip(y.chunks_mut(ROWS * outputs)) {
            let panel = |first: usize| {
                let columns = PANEL.min(outputs - first);
                let mut part = vec![T::ZERO; x.len() / inputs * columns];
                self.weight.with(first * inputs..(first + columns) * inputs, |weights| {
                    multiply(x, weights, inputs, &mut part);
                });
                part
            };
            let panels: Vec<Vec<T>> = (0..outputs).into_par_iter().step_by(PANEL).map(panel).collect();
            for (row, y) in y.chunks_exact_mut(outputs).enumerate() {
                for (y, part) in y.chunks_mut(PANEL).zip(&panels) {
                    y.copy_from_slice(&part[row * y.len()..(row + 1) * y.len()]);
                }
                for (y, &bias) in y.iter_mut().zip(self.bias.iter().flatten()) {
                    *y += bias;
                }
            }
        }
        y
    }
}
