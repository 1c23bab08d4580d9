//! Rotary position embedding, half-split (GPT-NeoX), on the first r channels of a row.
//!
//! Pair i is channels (i, i + r/2); at position p it turns by φ = p·fᵢ. The table of [`Rope`] says how φ is computed.

use rayon::prelude::*;

use super::BLOCK;
use super::rope::Rope;
use crate::{Real, Tensor};

/// Turns the first r channels of rows.
#[derive(Clone, Debug)]
pub struct HalfRope<T> {
    rope: Rope<T>,
    /// r.
    channels: usize,
    /// Cosines and sines are multiplied by it, and rounded once more: YaRN's attention factor.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::rope::frequencies;

    /// Half-split pairs are the interleaved ones in another order.
    #[test]
    fn agrees_with_interleaved_pairs() {
        let (r, cols, heads, tokens, start) = (6, 9, 2, 70, 5);
        let mut half = HalfRope::<f64>::new(frequencies(r, 1e4, None), 2.0);
        half.extend(start + tokens);
        let mut rope = Rope::<f64>::new(frequencies(r, 1e4, None));
        rope.extend(start + tokens);
        let mut x = Tensor::new(
            [tokens, heads, cols],
            (0..tokens * heads * cols).map(|i| (i as f64).sin()).collect(),
        );
        let before = x.clone();
        // Interleaved pairs are the last channels: pair i of halves stands there as (2i, 2i + 1).
        let source = |c: usize| if c < r { (c % 2) * (r / 2) + c / 2 } else { c };
        let order = |c: usize| if c < cols - r { r + c } else { source(c - (cols - r)) };
        let shuffled = before
            .data
            .chunks(cols)
            .flat_map(|row| (0..cols).map(move |c| row[order(c)]));
        let mut want = Tensor::new(before.shape.clone(), shuffled.collect());
        rope.apply(&mut want, heads, |token| start + token, false);
        // The factor, a power of two here, so that it commutes with rounding.
        want.data
            .chunks_mut(cols)
            .for_each(|row| row[cols - r..].iter_mut().for_each(|x| *x *= 2.0));
        half.apply(&mut x, heads, start);
        for (got, want) in x.data.chunks(cols).zip(want.data.chunks(cols)) {
            assert!((0..cols).all(|c| got[order(c)] == want[c]), "{got:?} {want:?}");
        }
        assert_ne!(x, before);
    }
}
