//! Depthwise (per-channel) causal convolution over the last k tokens. The state holds the last inputs for the next call.
//!
//! Token t and channel c have the input x_tc and the output y_tc = Σᵢ w_ci · x_(t−k+1+i)c for i from 0 to k − 1, followed by silu
//! in some models. Inputs before the first token are 0.

use rayon::prelude::*;

use super::BLOCK;
use crate::real::vectorized;
use crate::{Real, Tensor};

/// A causal convolution over k tokens.
#[derive(Clone, Debug)]
pub struct ShortConv<T> {
    /// Weights, `[k, channels]`; the last row is for the current token.
    taps: Tensor<T>,
    silu: bool,
}

impl<T: Real> ShortConv<T> {
    /// Creates a convolution from weights `[channels, k]`. `silu` is true if silu is applied to the result.
    pub fn new(weight: &Tensor<T>, silu: bool) -> Self {
        let taps = weight.swapped();
        Self { taps, silu }
    }

    /// Returns the shape `[k − 1, channels]` of a state: the inputs of the previous tokens, oldest first, or zeros before the
    /// first token.
    pub fn state(&self) -> [usize; 2] {
        [self.taps.rows() - 1, self.taps.cols()]
    }

    /// Maps inputs `[tokens, channels]` to outputs of the same shape, and replaces the state by the inputs of the last tokens.
    /// Sums are added oldest token first: the result is bit-identical however the tokens of a sequence are divided among calls.
    ///
    /// # Panics
    /// If the inputs or the state have a different number of channels.
    pub fn apply(&self, x: &Tensor<T>, state: &mut Tensor<T>) -> Tensor<T> {
        let (kernel, channels) = (self.taps.rows(), self.taps.cols());
        assert!(x.cols() == channels && state.shape == [kernel - 1, channels]);
        let mut inputs = std::mem::take(&mut state.data);
        inputs.extend_from_slice(&x.data);
        let mut y = Tensor::full([x.rows(), channels], T::ZERO);
        let blocks = y.data.par_chunks_mut(BLOCK * channels).enumerate();
        blocks.for_each(|(block, rows)| {
            vectorized!({
                for (row, y) in rows.chunks_exact_mut(channels).enumerate() {
                    let first = (block * BLOCK + row) * channels;
                    let read = inputs[first..].chunks_exact(channels);
                    for (taps, x) in self.taps.data.chunks_exact(channels).zip(read) {
                        for ((y, &w), &x) in y.iter_mut().zip(taps).zip(x) {
                            *y += w * x;
                        }
                    }
                    if self.silu {
                        y.iter_mut().for_each(|y| *y *= y.sigmoid());
                    }
                }
            });
        });
        state.data = inputs.split_off(x.data.len());
        y
    }
}
