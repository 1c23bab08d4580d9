//! Lightning indexer: selects the compressed cache entries (each pools several tokens) that a query attends to.
//!
//! A query of H heads with d channels has the vectors q_h, and entry w has the key k_w. The score of entry w is
//! Σ_h a_h · max(0, q_h·k_w). The head weights a_h = (W_w x)_h · d^−½ · H^−½ are projected from the token's input x, and may be
//! negative. The k visible entries with the largest scores are selected.

use rayon::prelude::*;

use super::BLOCK;
use super::linear::Product;
use super::top_k::top_k;
use crate::real::vectorized;
use crate::{Choice, Real, Tensor};

/// Selects the `k` best entries for each query `[n, heads, dim]`, given scaled head weights `[n, heads]` and all keys `[entries,
/// dim]`. Query `row` may select among the first `visible(row)` entries.
pub fn select<T: Real>(
    query: &Tensor<T>,
    head_weights: &Tensor<T>,
    keys: &[T],
    k: usize,
    visible: impl Fn(usize) -> usize + Sync,
) -> Choice<T> {
    let (rows, heads, dim) = (query.shape[0], query.shape[1], query.cols());
    let entries = keys.len() / dim;
    let mut scores = Tensor::full([rows, entries.max(1)], T::NEG_INFINITY);
    let mut indices = vec![-1; rows * k];
    let width = scores.cols();
    let blocks = scores.data.par_chunks_mut(BLOCK * width);
    let blocks = blocks.zip(indices.par_chunks_mut(BLOCK * k)).enumerate();
    blocks.for_each(|(block, (scores, indices))| {
        let first = block * BLOCK;
        let rows = scores.len() / width;
        let seen = visible(first + rows - 1);
        let mut products = vec![T::ZERO; rows * heads * seen];
        let queries = &query.data[first * heads * dim..(first + rows) * heads * dim];
        Product::new([rows * heads, seen, dim], queries, keys).run(&mut products);
        let rows = scores.chunks_exact_mut(width).zip(indices.chunks_exact_mut(k));
        for (row, (scores, indices)) in rows.enumerate() {
            let visible = visible(first + row);
            let scores = &mut scores[..visible];
            scores.fill(T::ZERO);
            vectorized!({
                for (head, &weight) in head_weights.row(first + row).iter().enumerate() {
                    let products = &products[(row * heads + head) * seen..][..visible];
                    for (score, &product) in scores.iter_mut().zip(products) {
                        *score += weight * product.larger(T::ZERO);
                    }
                }
            });
            top_k(scores, visible, k, indices);
        }
    });
    Choice { indices, k, scores }
}
