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
    pub window: Cache<T>,
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
    pub entries: Cache<T>,
}

impl<T: Real> Compressed<T> {
    /// Before the first token, with `rate` tokens to an entry of `dim` channels.
    pub fn new(rate: usize, overlap: bool, dim: usize) -> Self {
        Self {
            pool: Pool::new(rate, overlap, dim),
            entries: Cache::new(dim),
        }
    }
}

/// Rows read as keys and as values; values are kept apart only where the two roles were split.
#[derive(Clone, Debug)]
pub struct Cache<T> {
    dim: usize,
    keys: Vec<T>,
    values: Option<Vec<T>>,
}

impl<T: Real> Cache<T> {
    /// No rows, of `dim` channels.
    pub fn new(dim: usize) -> Self {
        Self {
            dim,
            keys: Vec::new(),
            values: None,
        }
    }

    /// Rows kept.
    pub fn rows(&self) -> usize {
        self.keys.len() / self.dim
    }

    /// Channels of a row.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// All rows as values, `[rows, dim]`, where they are kept apart from the keys.
    pub fn values(&self) -> Option<&[T]> {
        self.values.as_deref()
    }

    /// All rows as keys, `[rows, dim]`.
    pub fn keys(&self) -> &[T] {
        &self.keys
    }

    /// Adds rows `[n, dim]`; `values` are given where the roles are split, and then in every call.
    pub fn push(&mut self, keys: Tensor<T>, values: Option<Tensor<T>>) {
        if let Some(values) = values {
            // Split from the first row on: `Numerics::splits` gives the same answer for all rows.
            append(self.values.get_or_insert_default(), values.data);
        }
        append(&mut self.keys, keys.data);
    }

    /// Forgets the first rows.
    pub fn drop_first(&mut self, rows: usize) {
        // A new vector, because the old one's memory may be many times what remains.
        self.keys = self.keys[rows * self.dim..].to_vec();
        if let Some(values) = &mut self.values {
            *values = values[rows * self.dim..].to_vec();
        }
    }

    /// A range of rows in both roles.
    pub fn read(&self, rows: std::ops::Range<usize>) -> KeyRows<'_, T> {
        let range = rows.start * self.dim..rows.end * self.dim;
        KeyRows {
            keys: &self.keys[range.clone()],
            values: &self.values.as_ref().unwrap_or(&self.keys)[range],
        }
    }

    /// Copies of chosen rows in both roles; the values are `None` where they equal the keys.
    pub fn gather(&self, rows: &[usize]) -> (Vec<T>, Option<Vec<T>>) {
        let pick = |from: &[T]| {
            let rows = rows.iter().map(|row| &from[row * self.dim..(row + 1) * self.dim]);
            rows.collect::<Vec<_>>().concat()
        };
        (pick(&self.keys), self.values.as_deref().map(pick))
    }
}

fn append<T: Real>(to: &mut Vec<T>, more: Vec<T>) {
    if to.is_empty() {
        *to = more;
    } else {
        to.extend_from_slice(&more);
    }
}
