//! Rotary position embedding, half-split (GPT-NeoX), on the first r channels of a row.
//!
//! Pair i is channels (i, i + r/2); at position p it turns by φ = p·fᵢ. The table of [`Rope`] says how φ is computed.

use rayon::prelude::*;

use super::BLOCK;
use super::rope::Rope;
use crate::{Real, Tensor};

/// Rotary position embedding, half-split, of the first r channels of a row.
#[derive(Clone, Debug)]
pub struct HalfRope<T> {
    rope: Rope<T>,
    /// Number r of channels that are rotated.
    channels: usize,
    /// YaRN's attention factor: cosines and sines are multiplied by it, and rounded again.
    factor: T,
}

impl<T: Real> HalfRope<T> {
    /// Makes it of r/2 frequencies. It is ready for no position yet: call [`HalfRope::extend`] first.
    pub fn new(frequencies: Vec<f32>, factor: f64) -> Self {
        Self {
            channels: 2 * frequencies.len(),
            rope: Rope::new(frequencies),
            factor: T::from_f64(factor),
        }
    }

    /// Makes it ready for positions below this one.
    pub fn extend(&mut self, positions: usize) {
        self.rope.extend(positions);
    }

    /// Turns the first r channels of every row of `x` `[.., cols]` in place. Rows are `heads` to a token, one token after the other, and
    /// token i is at position `start + i`.
    ///
    /// # Panics
    /// If it is not ready for a position, or rows have fewer than r channels.
    pub fn apply(&self, x: &mut Tensor<T>, heads: usize, start: usize) {
        let (cols, turned, factor) = (x.cols(), self.channels, self.factor);
        let blocks = x.data.par_chunks_mut(BLOCK * heads * cols).enumerate();
        blocks.for_each(|(block, rows)| {
            for (row, x) in rows.chunks_exact_mut(cols).enumerate() {
                let position = start + block * BLOCK + row / heads;
                let (first, second) = x[..turned].split_at_mut(turned / 2);
                for ((a, b), &(cos, sin)) in first.iter_mut().zip(second).zip(self.rope.turns(position)) {
                    let (cos, sin) = (cos * factor, sin * factor);
                    (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
                }
            }
        });
    }
}
