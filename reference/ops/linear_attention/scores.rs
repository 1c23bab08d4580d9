//! Products q·k and k·k of pairs of rows of a chunk, each multiplied by the decay from the earlier to the later row.
//!
//! The decay from row j to row i is exp(G_i − G_j), where G are the running sums of the log decays. The exponent is never
//! positive, so the exponential cannot overflow. Computing exp(G_i) · exp(−G_j) instead would overflow.

use super::inverse::BLOCK;
use super::policy::{Intermediate, Policy};
use crate::Real;
use crate::ops::linear::multiply;
use crate::real::vectorized;

/// Running sums G of the log decays of a chunk (inclusive), `[L, width]`. The sums are in f64, since the rounding error of a
/// sum becomes the relative error of an exponential.
pub(super) struct Sums {
    pub sums: Vec<f64>,
    /// Number of decays per row: 1 or K.
    pub width: usize,
}

impl Sums {
    pub fn row(&self, row: usize) -> &[f64] {
        &self.sums[row * self.width..][..self.width]
    }

    pub fn last(&self) -> &[f64] {
        &self.sums[self.sums.len() - self.width..]
    }

    /// Multiplies channel c of row i by exp(`exponent`(G_ic, c)), where G are the decay sums. The first of `rows` is row `first`
    /// of the chunk.
    pub fn decay<T: Real>(&self, rows: &mut [T], cols: usize, first: usize, exponent: impl Fn(f64, usize) -> f64) {
        let mut factors = vec![T::ZERO; self.width];
        for (row, sums) in rows
            .chunks_exact_mut(cols)
            .zip(self.sums[first * self.width..].chunks_exact(self.width))
        {
            vectorized!({
                for (c, (factor, &sum)) in factors.iter_mut().zip(sums).enumerate() {
                    *factor = T::from_f64(exponent(sum, c));
                }
                T::exp_all(&mut factors);
                scale(row, &factors);
            });
        }
    }
}

/// Multiplies a row by one factor, or elementwise by one factor per element.
#[inline(always)]
pub(super) fn scale<T: Real>(row: &mut [T], factors: &[T]) {
    match *factors {
        [factor] => row.iter_mut().for_each(|x| *x *= factor),
        _ => row.iter_mut().zip(factors).for_each(|(x, &factor)| *x *= factor),
    }
}

/// Returns two matrices `[L, L]`, for x = q and for x = k: Σ_c x_ic k_jc exp(G_ic − G_jc) for j ≤ i, and 0 for j > i.
pub(super) fn scores<T: Real>(q: &[T], k: &[T], cols: usize, sums: &Sums, policy: &impl Policy<T>) -> [Vec<T>; 2] {
    if sums.width == 1 {
        of_heads([q, k], k, cols, &sums.sums, policy)
    } else {
        of_channels([q, k], k, cols, sums, policy)
    }
}

/// Computes scores with one decay per row: the decay is the same for all channels, so it is applied to the finished sum.
fn of_heads<T: Real>(x: [&[T]; 2], k: &[T], cols: usize, sums: &[f64], policy: &impl Policy<T>) -> [Vec<T>; 2] {
    let size = sums.len();
    let k = rounded(k.to_vec(), cols, policy);
    let mut scores = x.map(|x| {
        let mut product = vec![T::ZERO; size * size];
        multiply(&rounded(x.to_vec(), cols, policy), &k, cols, &mut product);
        product
    });
    let mut factors = vec![T::ZERO; size];
    vectorized!({
        for (i, &sum) in sums.iter().enumerate() {
            let factors = &mut factors[..=i];
            for (factor, &other) in factors.iter_mut().zip(sums) {
                *factor = T::from_f64(sum - other);
            }
            T::exp_all(factors);
            for scores in &mut scores {
                let (read, after) = scores[i * size..][..size].split_at_mut(i + 1);
                read.iter_mut().zip(&*factors).for_each(|(x, &factor)| *x *= factor);
                // Assign 0 instead of multiplying by 0: later rows may hold NaN.
                after.fill(T::ZERO);
            }
        }
    });
    scores
}

/// Computes scores with one decay per channel, block by block. Left of the diagonal block, both operands are decayed relative
/// to the first row of the block, so that the scores are one matrix product. Within the diagonal block, the exponent of the right
/// operand would be positive and might overflow, so every pair of rows is computed separately.
fn of_channels<T: Real>(x: [&[T]; 2], k: &[T], cols: usize, sums: &Sums, policy: &impl Policy<T>) -> [Vec<T>; 2] {
    let size = k.len() / cols;
    let mut scores = x.map(|_| vec![T::ZERO; size * size]);
    for first in (0..size).step_by(BLOCK) {
        let rows = BLOCK.min(size - first);
        if first > 0 {
            let anchor = sums.row(first);
            let mut before = k[..first * cols].to_vec();
            sums.decay(&mut before, cols, 0, |sum, c| anchor[c] - sum);
            let before = rounded(before, cols, policy);
            for (scores, x) in scores.iter_mut().zip(x) {
                let mut x = x[first * cols..][..rows * cols].to_vec();
                sums.decay(&mut x, cols, first, |sum, c| sum - anchor[c]);
                let mut product = vec![T::ZERO; rows * first];
                multiply(&rounded(x, cols, policy), &before, cols, &mut product);
                for (row, product) in product.chunks_exact(first).enumerate() {
                    scores[(first + row) * size..][..first].copy_from_slice(product);
                }
            }
        }
        for i in first..first + rows {
            for j in first..=i {
                let (from, to) = (sums.row(j), sums.row(i));
                let mut decayed = k[j * cols..][..cols].to_vec();
                sums.decay(&mut decayed, cols, j, |_, c| to[c] - from[c]);
                let decayed = rounded(decayed, cols, policy);
                for (scores, x) in scores.iter_mut().zip(x) {
                    let x = rounded(x[i * cols..][..cols].to_vec(), cols, policy);
                    multiply(&x, &decayed, cols, &mut scores[i * size + j..][..1]);
                }
            }
        }
    }
    scores
}

fn rounded<T: Real>(mut rows: Vec<T>, cols: usize, policy: &impl Policy<T>) -> Vec<T> {
    policy.round(Intermediate::ScoreOperand, &mut rows, cols);
    rows
}
