//! Rotary positions of half-split pairs.

use reference::Tensor;
use reference::ops::rope::{Rope, frequencies};

/// Half-split pairs are the interleaved ones in another order.
#[test]
fn agrees_with_interleaved_pairs() {
    let (r, cols, heads, tokens, start) = (6, 9, 2, 70, 5);
    let mut half = Rope::<f64>::new(frequencies(r, 1e4, None)).times(2.0);
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
    half.apply_half(&mut x, heads, start);
    for (got, want) in x.data.chunks(cols).zip(want.data.chunks(cols)) {
        assert!((0..cols).all(|c| got[order(c)] == want[c]), "{got:?} {want:?}");
    }
    assert_ne!(x, before);
}
