//! Rotary position embedding, half-split (GPT-NeoX), on the first r channels of a row.
//!
//! Pair i is channels (i, i + r/2); at position p it turns by φ = p·fᵢ. The table of [`Rope`] says how φ is computed.

use rayon::prelude::*;

use super::BLOCK;
use super::rope::Rope;
use crate::{Real, Tensor};

/// Turns the first r channels of every row of `x` `[.., cols]` in place. Rows are `heads` to a token, one token after the other, and
/// token i is at position `start + i`.
///
/// # Panics
/// If a position lies beyond the table, or rows have fewer than r channels.
pub fn turn_halves<T: Real>(rope: &Rope<T>, x: &mut Tensor<T>, heads: usize, start: usize) {
    let (cols, turned) = (x.cols(), rope.channels());
    let blocks = x.data.par_chunks_mut(BLOCK * heads * cols).enumerate();
    blocks.for_each(|(block, rows)| {
        for (row, x) in rows.chunks_exact_mut(cols).enumerate() {
            let position = start + block * BLOCK + row / heads;
            let (first, second) = x[..turned].split_at_mut(turned / 2);
            for ((a, b), &(cos, sin)) in first.iter_mut().zip(second).zip(rope.turns(position)) {
                (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::rope::frequencies;

    /// Half-split pairs are the interleaved ones in another order.
    #[test]
    fn agrees_with_interleaved_pairs() {
        let (r, cols, heads, tokens, start) = (6, 9, 2, 70, 5);
        let mut rope = Rope::<f64>::scaled(frequencies(r, 1e4, None), 1.25);
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
        turn_halves(&rope, &mut x, heads, start);
        for (got, want) in x.data.chunks(cols).zip(want.data.chunks(cols)) {
            assert!((0..cols).all(|c| got[order(c)] == want[c]), "{got:?} {want:?}");
        }
        assert_ne!(x, before);
    }
}
