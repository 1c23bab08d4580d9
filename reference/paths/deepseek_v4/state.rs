//! State of a sequence between calls: the caches.

use crate::ops::attention::KeyRows;
use crate::ops::compressor::Pool;
use crate::ops::rope::Rope;
use crate::{Real, Tensor};

/// The caches of one sequence, of [`Model::state`](super::Model::state) or restored by [`State::from_parts`].
#[derive(Clone, Debug)]
pub struct State<T> {
    pub(super) layers: Vec<LayerState<T>>,
    /// Tokens seen.
    pub(super) tokens: usize,
    /// RoPE tables of sliding layers and of layers with a compressor.
    pub(super) ropes: [Rope<T>; 2],
}

impl<T: Real> State<T> {
    /// Tokens seen so far.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// The caches of a layer.
    ///
    /// # Panics
    /// If there is no such layer.
    pub fn layer(&self, layer: usize) -> &LayerState<T> {
        &self.layers[layer]
    }
}

/// The caches of one layer.
#[derive(Clone, Debug)]
pub struct LayerState<T> {
    /// The last KV vectors, at least as many as the window reaches.
    pub window: CacheParts<T>,
    /// Token number of the window cache's first row.
    pub window_first: usize,
    /// Compressed KV vectors, in layers that have them.
    pub compressed: Option<Compressed<T>>,
    /// The indexer's keys, in sparse layers.
    pub index: Option<Compressed<T>>,
}

/// A compressor's pool with the entries made so far.
#[derive(Clone, Debug)]
pub struct Compressed<T> {
    /// Tokens that are not yet, or not yet for the last time, pooled.
    pub pool: Pool<T>,
    /// Entries made so far, `[n, dim]`.
    pub entries: CacheParts<T>,
}

impl<T: Real> Compressed<T> {
    /// Before the first token, with `rate` tokens to an entry of `dim` channels.
    pub fn new(rate: usize, overlap: bool, dim: usize) -> Self {
        Self {
            pool: Pool::new(rate, overlap, dim),
            entries: CacheParts::new(dim),
        }
    }
}

/// Cached rows `[n, dim]`.
#[derive(Clone, Debug, PartialEq)]
pub struct CacheParts<T> {
    /// The rows as keys.
    pub keys: Tensor<T>,
    /// The rows as values, where [`Numerics::splits`](crate::Numerics::splits) has kept them apart; else they are the keys.
    pub values: Option<Tensor<T>>,
}

impl<T: Real> CacheParts<T> {
    /// No rows, of `dim` channels.
    pub(super) fn new(dim: usize) -> Self {
        Self {
            keys: Tensor::full([0, dim], T::ZERO),
            values: None,
        }
    }

    /// Adds rows `[n, dim]`; `values` are given where the roles are split, and then in every call.
    pub(super) fn push(&mut self, keys: Tensor<T>, values: Option<Tensor<T>>) {
        if let Some(values) = values {
            // Split from the first row on: `Numerics::splits` gives the same answer for all rows.
            let none = || Tensor::full([0, keys.cols()], T::ZERO);
            append(self.values.get_or_insert_with(none), values);
        }
        append(&mut self.keys, keys);
    }

    /// Forgets the first rows.
    pub(super) fn drop_first(&mut self, rows: usize) {
        for kept in [Some(&mut self.keys), self.values.as_mut()].into_iter().flatten() {
            // A new vector, because the old one's memory may be many times what remains.
            kept.data = kept.data[rows * kept.cols()..].to_vec();
            kept.shape[0] -= rows;
        }
    }

    /// A range of rows in both roles.
    pub(super) fn read(&self, rows: std::ops::Range<usize>) -> KeyRows<'_, T> {
        let range = rows.start * self.keys.cols()..rows.end * self.keys.cols();
        KeyRows {
            keys: &self.keys.data[range.clone()],
            values: &self.values.as_ref().unwrap_or(&self.keys).data[range],
        }
    }

    /// Copies of chosen rows in both roles; the values are `None` where they equal the keys.
    pub(super) fn gather(&self, rows: &[usize]) -> (Vec<T>, Option<Vec<T>>) {
        let pick = |from: &Tensor<T>| from.pick(rows.iter().copied()).data;
        (pick(&self.keys), self.values.as_ref().map(pick))
    }
}

fn append<T: Real>(to: &mut Tensor<T>, more: Tensor<T>) {
    to.shape[0] += more.rows();
    if to.data.is_empty() {
        to.data = more.data;
    } else {
        to.data.extend_from_slice(&more.data);
    }
}
