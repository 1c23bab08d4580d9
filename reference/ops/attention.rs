//! Multi-query attention with a sink: one softmax over the window keys (of the last tokens) and the compressed keys; all heads
//! share one KV vector per cache row.
//!
//! For a query q of d channels, keys k_j and values v_j: s_j = d^−½ q·k_j, p_j = e^{s_j} / (Σ e^{s_j'} + e^{sink}),
//! o = Σ p_j v_j. The sink is a logit of the head: it is not scaled, and occurs only in the denominator.

use super::linear::{Product, reduce};
use crate::Real;
use crate::real::vectorized;

/// Keys and values of consecutive rows of a cache. In a cache that stores one vector as both key and value, the two slices are
/// equal, unless [`Numerics::splits`](crate::Numerics::splits) requested two copies.
#[derive(Clone, Copy, Debug)]
pub struct KeyRows<'a, T> {
    /// Keys, `[n, key]`.
    pub keys: &'a [T],
    /// Values, `[n, value]`.
    pub values: &'a [T],
}

/// Number of channels of keys and values, and the softmax scale.
#[derive(Clone, Copy, Debug)]
pub struct Sizes<T> {
    /// Number of channels of a query and of a key.
    pub key: usize,
    /// Number of channels of a value.
    pub value: usize,
    /// Softmax scale, the factor of q·k: d^−½ in most models.
    pub scale: T,
}

impl<T: Real> Sizes<T> {
    /// Returns the sizes for keys and values of `dim` channels, with the scale d^−½.
    pub fn of(dim: usize) -> Self {
        Self {
            key: dim,
            value: dim,
            scale: T::ONE / T::from_f64(dim as f64).sqrt(),
        }
    }
}

/// Computes the attention of a block of queries `[rows, heads, key]` over the rows of two caches: the window (part 0) and the
/// compressed cache (part 1). `visible(part, row, key)` is true if a query row may read a key of that part. A sink of −∞ means
/// that the head has no sink. Returns the output o `[rows, heads, value]` and the probabilities `[rows, heads, keys of both
/// parts]`; the probability of an invisible key is exactly 0.
pub fn attend<T: Real>(
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
            y_stride: width,
            ..Product::new([m, n, dim], queries, part.keys)
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
                x_stride: width,
                w_strides: (1, value_dim),
                add: offset > 0,
                ..Product::new([m, value_dim, n], &p[offset..], part.values)
            };
            product.run(&mut out);
        }
        offset += n;
    }
    let values = parts.map(|part| part.values.chunks_exact(value_dim));
    for (row, (out, p)) in out.chunks_exact_mut(value_dim).zip(p.chunks_exact(width)).enumerate() {
        if !vectorized!(all_finite(out)) {
            // The product above also reads invisible values, and 0 · NaN is NaN: add up the visible values only.
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

/// Returns true if all elements are finite. The loop has no early exit, which would prevent vectorisation.
#[inline(always)]
fn all_finite<T: Real>(x: &[T]) -> bool {
    x.iter().fold(true, |finite, &x| finite & (x * T::ZERO == T::ZERO))
}

/// Converts the products q·k of one query to probabilities in place. The subtracted maximum is over all logits and the sink, so
/// that no exponential overflows.
#[inline(always)]
fn softmax<T: Real>(p: &mut [T], mask: &[bool], scale: T, sink: T) {
    for (p, &visible) in p.iter_mut().zip(mask) {
        *p = if visible { *p * scale } else { T::NEG_INFINITY };
    }
    let top = reduce(p, sink, T::max);
    p.iter_mut().for_each(|p| *p = *p - top);
    T::exp_all(p);
    let sum = (sink - top).exp() + reduce(p, T::ZERO, T::add);
    p.iter_mut().for_each(|p| *p = *p / sum);
}
