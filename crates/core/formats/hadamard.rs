//! Hadamard rotation, which spreads outliers over a row before rounding.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use reference::vectorized;

/// Replaces each row `x` of `cols` channels by `x · H · cols^-1/2`. `H` is in Sylvester's natural order (`H_2n = [[H_n, H_n],
/// [H_n, −H_n]]`). The transform is symmetric and its own inverse.
///
/// Butterflies in f32 compute the transform, and the factor is applied last, as in the fast_hadamard_transform package. The
/// result does not depend on the machine.
pub fn hadamard(x: &mut [f32], cols: usize) -> Result<(), String> {
    if !cols.is_power_of_two() {
        return Err(format!(
            "a Hadamard rotation needs a power of two of channels, not {cols}"
        ));
    }
    if !x.len().is_multiple_of(cols) {
        return Err(format!("{} elements are not whole rows of {cols}", x.len()));
    }
    vectorized!(butterflies(x, cols));
    Ok(())
}

#[inline(always)]
fn butterflies(x: &mut [f32], cols: usize) {
    let mut half = 1;
    while half < cols {
        for pair in x.chunks_exact_mut(2 * half) {
            let (upper, lower) = pair.split_at_mut(half);
            for (a, b) in upper.iter_mut().zip(lower) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
        half *= 2;
    }
    let factor = 1.0 / (cols as f32).sqrt();
    x.iter_mut().for_each(|x| *x *= factor);
}

/// Returns the random signs of a rotation. For 16 channels, they are the signs of TransformerEngine, otherwise bits of a ChaCha8
/// stream that is seeded with the number of channels.
fn signs(size: usize) -> Vec<f32> {
    const TE: [f32; 16] = [
        1.0, 1.0, 1.0, -1.0, 1.0, -1.0, -1.0, -1.0, -1.0, -1.0, -1.0, 1.0, -1.0, 1.0, -1.0, -1.0,
    ];
    if size == 16 {
        return TE.to_vec();
    }
    let mut random = ChaCha8Rng::seed_from_u64(size as u64);
    let sign = |_| if random.next_u32() & 1 == 0 { 1.0 } else { -1.0 };
    (0..size).map(sign).collect()
}

/// Rotates each group of `size` consecutive elements by a random Hadamard transform: multiplies by random signs, then applies
/// [`hadamard`]. `size` is a power of two that divides the length.
pub(super) fn rotate(x: &mut [f32], size: usize) {
    flip(x, &signs(size));
    hadamard(x, size).expect("rotations are whole");
}

/// Inverts [`rotate`], except for rounding errors.
pub(super) fn rotate_back(x: &mut [f32], size: usize) {
    hadamard(x, size).expect("rotations are whole");
    flip(x, &signs(size));
}

fn flip(x: &mut [f32], signs: &[f32]) {
    for row in x.chunks_exact_mut(signs.len()) {
        row.iter_mut().zip(signs).for_each(|(x, sign)| *x *= sign);
    }
}
