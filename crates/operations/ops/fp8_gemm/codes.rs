//! The product of rows that another operation has left as codes.

use super::Sums;

/// Codes `[rows, K]`, and their scales: one for each row and 128 columns of x, one for each 128 × 128 of w.
#[derive(Clone, Copy)]
pub struct Coded<'a> {
    /// E4M3.
    pub codes: &'a [u8],
    /// Factors of the codes.
    pub scales: &'a [f32],
}

/// x · wᵀ in f32 as the operation defines it, to the bit; w has `n` rows.
pub fn product(x: Coded, w: Coded, n: usize) -> Vec<f32> {
    let k = w.codes.len() / n;
    super::want(
        Sums::Defined,
        [x.codes, w.codes],
        [x.scales, w.scales],
        [x.codes.len() / k, n, k],
    )
}
