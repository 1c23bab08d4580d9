//! Blockwise inverse (I + A)⁻¹ of a strictly lower triangular matrix A.

use super::policy::{Intermediate, Policy};
use crate::Real;
use crate::real::vectorized;

/// Number of rows of a diagonal block. Blocks below the diagonal are computed from inverted diagonal blocks by matrix products.
pub const BLOCK: usize = 16;

/// Method that inverts a diagonal block. In exact arithmetic, both methods give the same inverse.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Inversion {
    /// Forward substitution, row by row: x_i = e_i − Σ_{j<i} A_ij x_j.
    #[default]
    Substitution,
    /// Neumann product (I − A)(I + A²)(I + A⁴)(I + A⁸), exact since A¹⁶ = 0.
    Neumann,
}

/// Returns X = (I + A)⁻¹ `[size, size]`. The elements of A on and above the diagonal are not read.
pub fn inverse<T: Real>(a: &[T], size: usize, inversion: Inversion, policy: &impl Policy<T>) -> Vec<T> {
    let mut x = vec![T::ZERO; size * size];
    for first in (0..size).step_by(BLOCK) {
        let rows = BLOCK.min(size - first);
        let block = |from: &[T], columns: std::ops::Range<usize>| -> Vec<T> {
            let row = |row: usize| &from[(first + row) * size..][columns.clone()];
            (0..rows).flat_map(row).copied().collect()
        };
        let diagonal = block(a, first..first + rows);
        let diagonal = match inversion {
            Inversion::Substitution => substitution(&diagonal, rows),
            Inversion::Neumann => neumann(&diagonal, rows, policy),
        };
        // Blocks left of the diagonal: X_rc = −X_rr Σ_m A_rm X_mc, for all columns c < r at once.
        if first > 0 {
            let above: Vec<T> = (0..first).flat_map(|row| &x[row * size..][..first]).copied().collect();
            let sum = product(block(a, 0..first), above, [rows, first, first], false, policy);
            let left = product(diagonal.clone(), sum, [rows, rows, first], true, policy);
            for (row, left) in left.chunks_exact(first).enumerate() {
                let to = &mut x[(first + row) * size..][..first];
                to.iter_mut().zip(left).for_each(|(x, &left)| *x = -left);
            }
        }
        for (row, values) in diagonal.chunks_exact(rows).enumerate() {
            x[(first + row) * size + first..][..rows].copy_from_slice(values);
        }
    }
    x
}

fn substitution<T: Real>(a: &[T], n: usize) -> Vec<T> {
    let mut x = vec![T::ZERO; n * n];
    for (i, a) in a.chunks_exact(n).enumerate() {
        let (above, row) = x.split_at_mut(i * n);
        for (j, (x, &a)) in above.chunks_exact(n).zip(a).enumerate() {
            row.iter_mut().zip(&x[..=j]).for_each(|(row, &x)| *row = *row - a * x);
        }
        row[i] = T::ONE;
    }
    x
}

fn neumann<T: Real>(a: &[T], n: usize, policy: &impl Policy<T>) -> Vec<T> {
    let mut power = vec![T::ZERO; n * n];
    for (i, (power, a)) in power.chunks_exact_mut(n).zip(a.chunks_exact(n)).enumerate() {
        power[..i].copy_from_slice(&a[..i]);
    }
    let plus_one = |power: &[T], sign: T| {
        let mut sum: Vec<T> = power.iter().map(|&p| sign * p).collect();
        sum.iter_mut().step_by(n + 1).for_each(|x| *x += T::ONE);
        sum
    };
    let mut x = plus_one(&power, -T::ONE);
    let mut reached = 2;
    while reached < n {
        power = product(power.clone(), power, [n; 3], true, policy);
        x = product(x, plus_one(&power, T::ONE), [n; 3], true, policy);
        reached *= 2;
    }
    x
}

/// Returns x `[m, k]` · y `[k, n]`, with rounded operands. If x is `lower` triangular, the zeros above its diagonal are not
/// multiplied: 0 · NaN is NaN, so a NaN in a later row of y would spread to earlier rows of the result.
fn product<T: Real>(
    mut x: Vec<T>,
    mut y: Vec<T>,
    [m, k, n]: [usize; 3],
    lower: bool,
    policy: &impl Policy<T>,
) -> Vec<T> {
    policy.round(Intermediate::InverseOperand, &mut x, k);
    policy.round(Intermediate::InverseOperand, &mut y, n);
    let mut sum = vec![T::ZERO; m * n];
    vectorized!({
        for (i, (sum, x)) in sum.chunks_exact_mut(n).zip(x.chunks_exact(k)).enumerate() {
            let x = if lower { &x[..=i] } else { x };
            for (&x, y) in x.iter().zip(y.chunks_exact(n)) {
                sum.iter_mut().zip(y).for_each(|(sum, &y)| *sum += x * y);
            }
        }
    });
    sum
}
