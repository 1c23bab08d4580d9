//! Grouped-query attention: several query heads read the keys and values of one head, which are cached apart.
//!
//! s_j = c·q·k_j, p_j = e^{s_j} / (Σ e^{s_j'} + e^{sink}), o = Σ p_j v_j, over the tokens up to the query's own, or the last ones of
//! these. Query head h reads the cached head h / (query heads / cached heads).

use rayon::prelude::*;

use super::attention::{KeyRows, Sizes, attend};
use crate::{Real, Tensor};

/// Tokens that attend together. The cut does not depend on the number of threads.
const TOKENS: usize = 32;

/// Keys and values of one layer.
#[derive(Clone, Debug)]
pub struct KvCache<T> {
    /// Keys and values of each head.
    heads: Vec<[Vec<T>; 2]>,
    /// Channels of a key and of a value.
    dims: [usize; 2],
    /// Number of the first token that is kept.
    first: usize,
    /// Tokens that are kept.
    pub tokens: usize,
}

impl<T: Real> KvCache<T> {
    /// No tokens, of so many heads with keys and values of these many channels.
    pub fn new(heads: usize, dims: [usize; 2]) -> Self {
        Self {
            heads: vec![[Vec::new(), Vec::new()]; heads],
            dims,
            first: 0,
            tokens: 0,
        }
    }

    /// Returns whether it has the heads and channels of another.
    pub fn fits(&self, other: &Self) -> bool {
        self.heads.len() == other.heads.len() && self.dims == other.dims
    }

    /// Adds the tokens' keys and values, `[tokens, heads, channels]` each.
    ///
    /// # Panics
    /// If there are other heads or channels.
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

    /// Drops, now and then, what no later token reads through a window of so many tokens, its own among them.
    pub fn forget(&mut self, window: usize) {
        let excess = (self.tokens + 1).saturating_sub(window);
        if excess > window {
            for (kept, dim) in self.heads.iter_mut().flat_map(|head| head.iter_mut().zip(self.dims)) {
                // A new vector, because the old one's memory may be many times what remains.
                *kept = kept[excess * dim..].to_vec();
            }
            self.first += excess;
            self.tokens -= excess;
        }
    }

    /// Rows that one head keeps of the tokens from `first` to before `end`, by token number.
    fn read(&self, head: usize, first: usize, end: usize) -> KeyRows<'_, T> {
        let (from, to, [keys, values]) = (first - self.first, end - self.first, &self.heads[head]);
        KeyRows {
            keys: &keys[from * self.dims[0]..to * self.dims[0]],
            values: &values[from * self.dims[1]..to * self.dims[1]],
        }
    }

    /// Attends from the last tokens, whose keys have been pushed, `[tokens, query heads, key channels]`, to what is kept: to all of it
    /// up to each token, or to the last `window` of these. A sink is a logit of a query head, not scaled. Gives
    /// `[tokens, query heads, value channels]`.
    ///
    /// # Panics
    /// If query heads are not a multiple of the cached ones.
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
