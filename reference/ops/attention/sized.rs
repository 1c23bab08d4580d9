//! Attention with keys and values of different sizes, and any scale.

use super::super::linear::Product;
use super::{KeyRows, all_finite, softmax};
use crate::Real;
use crate::real::vectorized;

/// The sizes of keys and values, and what q·k is multiplied by.
#[derive(Clone, Copy, Debug)]
pub struct Sizes<T> {
    /// Channels of a query and of a key.
    pub key: usize,
    /// Channels of a value.
    pub value: usize,
    /// In place of d^−½.
    pub scale: T,
}

/// [`attend`](super::attend) with keys and values of other sizes, or another scale; a sink of −∞ is none. The values of a part are as many
/// rows as its keys, and o is `[rows, heads, value]`.
pub fn attend_sized<T: Real>(
    queries: &[T],
    sinks: &[T],
    sizes: Sizes<T>,
    parts: [KeyRows<'_, T>; 2],
    visible: impl Fn(usize, usize, usize) -> bool,
) -> (Vec<T>, Vec<T>) {
    let Sizes {
        key: dim,
        value: value_dim,
        scale,
    } = sizes;
    let m = queries.len() / dim;
    let counts = parts.map(|part| part.keys.len() / dim);
    let width = counts[0] + counts[1];
    let mut p = vec![T::ZERO; m * width];
    let mut offset = 0;
    for (part, n) in parts.iter().zip(counts) {
        let product = Product {
            m,
            n,
            k: dim,
            x: queries,
            x_stride: dim,
            w: part.keys,
            w_strides: (dim, 1),
            y_stride: width,
            add: false,
        };
        product.run(&mut p[offset..]);
        offset += n;
    }
    let mut mask = Vec::with_capacity(m / sinks.len() * width);
    for row in 0..m / sinks.len() {
        for (part, n) in counts.into_iter().enumerate() {
            mask.extend((0..n).map(|key| visible(part, row, key)));
        }
    }
    vectorized!({
        for (row, p) in p.chunks_exact_mut(width).enumerate() {
            let mask = &mask[row / sinks.len() * width..][..width];
            softmax(p, mask, scale, sinks[row % sinks.len()]);
        }
    });
    let mut out = vec![T::ZERO; m * value_dim];
    let mut offset = 0;
    for (part, n) in parts.iter().zip(counts) {
        if n > 0 {
            let product = Product {
                m,
                n: value_dim,
                k: n,
                x: &p[offset..],
                x_stride: width,
                w: part.values,
                w_strides: (1, value_dim),
                y_stride: value_dim,
                add: offset > 0,
            };
            product.run(&mut out);
        }
        offset += n;
    }
    let values = parts.map(|part| part.values.chunks_exact(value_dim));
    for (row, (out, p)) in out.chunks_exact_mut(value_dim).zip(p.chunks_exact(width)).enumerate() {
        if !vectorized!(all_finite(out)) {
            // Zero times NaN is NaN: only what the query may see may reach it.
            out.fill(T::ZERO);
            let mask = &mask[row / sinks.len() * width..][..width];
            let rows = values.clone().into_iter().flatten();
            for ((value, &p), _) in rows.zip(p).zip(mask).filter(|(_, visible)| **visible) {
                out.iter_mut().zip(value).for_each(|(out, &value)| *out += p * value);
            }
        }
    }
    (out, p)
}

#[cfg(test)]
mod tests {
    use super::super::attend;
    use super::*;

    /// Where sizes and scale are those of [`attend`], it is the same to the bit.
    #[test]
    fn it_is_the_other_form_where_both_apply() {
        let wave = |n: usize, step: f32| (0..n).map(|i| (i as f32 * step).sin() * 2.0).collect::<Vec<f32>>();
        let (dim, queries, sinks) = (4, wave(3 * 2 * 4, 0.7), [0.3, -1.0]);
        let (keys, values, others) = (wave(5 * 4, 1.3), wave(5 * 4, 0.9), wave(2 * 4, 2.1));
        let parts = [
            KeyRows {
                keys: &keys,
                values: &values,
            },
            KeyRows {
                keys: &others,
                values: &others,
            },
        ];
        let visible = |part: usize, row: usize, key: usize| if part == 0 { key <= row + 1 } else { key < row };
        let sizes = Sizes {
            key: dim,
            value: dim,
            scale: 1.0 / (dim as f32).sqrt(),
        };
        let want = attend(&queries, &sinks, dim, parts, visible);
        assert_eq!(attend_sized(&queries, &sinks, sizes, parts, visible), want);
    }
}
