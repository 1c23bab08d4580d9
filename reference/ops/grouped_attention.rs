//! Grouped-query attention: several query heads share the keys and values of one cached head. Keys and values are cached
//! separately.
//!
//! For a query q, keys k_j and values v_j: s_j = c·q·k_j, p_j = e^{s_j} / (Σ e^{s_j'} + e^{sink}), o = Σ p_j v_j. c is the
//! softmax scale; the sink is an unscaled logit of the head. The sum is over all tokens up to the token of the query, or over the
//! last `window` of these tokens. Query head h reads the cached head h / (query heads / cached heads).

use rayon::prelude::*;

use super::attention::{KeyRows, Sizes, attend};
use crate::{Real, Tensor};

/// Number of tokens whose attention is computed as one block. The number does not depend on the number of threads, so results do
/// not either.
const TOKENS: usize = 32;

/// Cached keys and values of one layer.
#[derive(Clone, Debug)]
pub struct KvCache<T> {
    /// Keys and values of each head.
    heads: Vec<[Vec<T>; 2]>,
    /// Number of channels of a key and of a value.
    dims: [usize; 2],
    /// Index of the first cached token.
    first: usize,
    /// Number of cached tokens.
    pub tokens: usize,
}

impl<T: Real> KvCache<T> {
    /// Creates an empty cache. `dims` has the number of channels of a key and of a value.
    pub fn new(heads: usize, dims: [usize; 2]) -> Self {
        Self {
            heads: vec![[Vec::new(), Vec::new()]; heads],
            dims,
            first: 0,
            tokens: 0,
        }
    }

    /// Returns true if the other cache has the same number of heads and channels.
    pub fn fits(&self, other: &Self) -> bool {
        self.heads.len() == other.heads.len() && self.dims == other.dims
    }

    /// Appends the keys and values of tokens, each of shape `[tokens, heads, channels]`.
    ///
    /// # Panics
    /// If the number of heads or channels differs from the cache's, or if `keys` and `values` differ in the number of tokens.
    pub fn push(&mut self, keys: &Tensor<T>, values: &Tensor<T>) {
        let heads = self.heads.len();
        assert_eq!(keys.shape, [keys.shape[0], heads, self.dims[0]]);
        assert_eq!(values.shape, [keys.shape[0], heads, self.dims[1]]);
        for token in 0..keys.shape[0] {
            for (number, [own_keys, own_values]) in self.heads.iter_mut().enumerate() {
                own_keys.extend_from_slice(keys.row(token * heads + number));
                own_values.extend_from_slice(values.row(token * heads + number));
            }
        }
        self.tokens += keys.shape[0];
    }

    /// Drops the cached tokens that no later token reads, given that a token reads the last `window` tokens, itself included. To
    /// copy rarely, does nothing until more than `window` tokens can be dropped.
    pub fn forget(&mut self, window: usize) {
        let excess = (self.tokens + 1).saturating_sub(window);
        if excess > window {
            for (kept, dim) in self.heads.iter_mut().flat_map(|head| head.iter_mut().zip(self.dims)) {
                // Allocate a new vector: the memory of the old vector may be many times the size of the rows that remain.
                *kept = kept[excess * dim..].to_vec();
            }
            self.first += excess;
            self.tokens -= excess;
        }
    }

    /// Returns the keys and values of one head for the tokens `first..end`, counted from the start of the sequence.
    fn read(&self, head: usize, first: usize, end: usize) -> KeyRows<'_, T> {
        let (from, to, [keys, values]) = (first - self.first, end - self.first, &self.heads[head]);
        KeyRows {
            keys: &keys[from * self.dims[0]..to * self.dims[0]],
            values: &values[from * self.dims[1]..to * self.dims[1]],
        }
    }

    /// Computes the attention of the last tokens, whose keys must already be in the cache. Each token reads all cached tokens up
    /// to itself, or the last `window` of these. Queries are `[tokens, query heads, key channels]`; a sink is an unscaled logit
    /// of a query head. Returns `[tokens, query heads, value channels]`.
    ///
    /// # Panics
    /// If the number of query heads is not a multiple of the number of cached heads, or the number of channels differs from the
    /// keys'.
    pub fn attend(&self, query: &Tensor<T>, scale: T, window: Option<usize>, sinks: Option<&[T]>) -> Tensor<T> {
        let [tokens, heads, dim] = query.shape[..] else {
            panic!("queries have shape {:?}", query.shape);
        };
        let group = heads / self.heads.len();
        assert!(group * self.heads.len() == heads && dim == self.dims[0]);
        let start = self.first + self.tokens - tokens;
        let none = vec![T::NEG_INFINITY; heads];
        let sinks = sinks.unwrap_or(&none);
        let sizes = Sizes {
            key: dim,
            value: self.dims[1],
            scale,
        };
        let empty = KeyRows { keys: &[], values: &[] };
        let oldest = |token: usize| window.map_or(0, |window| (token + 1).saturating_sub(window));
        let piece = |(first, head): (usize, usize)| {
            let rows = TOKENS.min(tokens - first);
            let queries = (first..first + rows).flat_map(|token| {
                let at = (token * heads + head * group) * dim;
                &query.data[at..at + group * dim]
            });
            let queries: Vec<T> = queries.copied().collect();
            let (now, begin) = (start + first, oldest(start + first));
            let read = self.read(head, begin, now + rows);
            let seen = |_: usize, row: usize, key: usize| (oldest(now + row)..=now + row).contains(&(begin + key));
            attend(&queries, &sinks[head * group..][..group], sizes, [read, empty], seen).0
        };
        let blocks = (0..tokens).step_by(TOKENS);
        let pieces: Vec<(usize, usize)> = blocks
            .flat_map(|first| (0..self.heads.len()).map(move |head| (first, head)))
            .collect();
        let found: Vec<Vec<T>> = pieces.par_iter().map(|&piece_at| piece(piece_at)).collect();
        let mut out = Tensor::full([tokens, heads, sizes.value], T::ZERO);
        let width = group * sizes.value;
        for ((first, head), found) in pieces.into_iter().zip(found) {
            for (row, found) in found.chunks_exact(width).enumerate() {
                let at = ((first + row) * heads + head * group) * sizes.value;
                out.data[at..at + width].copy_from_slice(found);
            }
        }
        out
    }
}
