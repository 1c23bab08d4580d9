//! RMS norm, y = w ⊙ x · (mean(x²) + ε)^−½, without intermediate rounding to a format. Without weights, w is 1.

use rayon::prelude::*;

use super::BLOCK;
use super::linear::dot;
use crate::real::vectorized;
use crate::{Real, Tensor};

/// Normalises every row (all channels of the last dimension) in place.
pub fn rmsnorm<T: Real>(x: &mut Tensor<T>, weight: Option<&[T]>, eps: T) {
    let cols = x.cols();
    x.data.par_chunks_mut(BLOCK * cols).for_each(|block| {
        vectorized!({
            for row in block.chunks_exact_mut(cols) {
                let scale = inverse_rms(row, eps);
                match weight {
                    Some(weight) => row.iter_mut().zip(weight).for_each(|(x, &w)| *x = *x * scale * w),
                    None => row.iter_mut().for_each(|x| *x *= scale),
                }
            }
        });
    });
}

/// Returns (mean(x²) + ε)^−½.
#[inline(always)]
pub fn inverse_rms<T: Real>(row: &[T], eps: T) -> T {
    let mean = dot(row, row) / T::from_f64(row.len() as f64);
    T::ONE / (mean + eps).sqrt()
}
