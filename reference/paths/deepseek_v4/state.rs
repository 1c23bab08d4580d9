//! State of a sequence between calls: the caches, which may be stored and restored as plain tensors.

use super::config::{Config, LayerType};
use crate::ops::attention::KeyRows;
use crate::ops::compressor::Pooling;
use crate::ops::rope::Rope;
use crate::{Real, Tensor};

/// Caches of one sequence, created by [`Model::state`](super::Model::state) or restored by [`State::from_parts`].
#[derive(Clone, Debug)]
pub struct State<T> {
    pub(super) parts: StateParts<T>,
    /// Number of channels of the window caches, and the sizes of each layer's compressors.
    sizes: (usize, Vec<[Option<Pooling>; 2]>),
    /// RoPE tables of sliding layers, and of layers with a compressor.
    pub(super) ropes: [Rope<T>; 2],
}

/// State of one sequence as plain tensors. [`State::from_parts`] restores the state from these tensors and the configuration.
/// RoPE tables are not included: they follow from the configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct StateParts<T> {
    /// Number of tokens processed.
    pub tokens: usize,
    /// Caches of each layer.
    pub layers: Vec<LayerParts<T>>,
}

/// The caches of one layer.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerParts<T> {
    /// KV vectors of the last n processed tokens, `[n, head_dim]`. n is at least `sliding_window − 1`, or the number of all
    /// processed tokens if smaller. Older rows do not affect the result.
    pub window: CacheParts<T>,
    /// Compressed KV cache; `None` if the layer has no compressor.
    pub compressed: Option<CompressedParts<T>>,
    /// Keys of the indexer, which are never read as values; `None` if the layer is not sparse.
    pub index: Option<CompressedParts<T>>,
}

/// State of a compressor between two tokens. dim is `head_dim`, or `index_head_dim` in the indexer. The width of pending rows (of
/// tokens that are not yet pooled) is `2 · dim` in sparse layers, whose windows overlap, and `dim` in heavy layers.
#[derive(Clone, Debug, PartialEq)]
pub struct CompressedParts<T> {
    /// Entries completed so far, `[tokens / rate, dim]`.
    pub entries: CacheParts<T>,
    /// Values of the tokens that later entries pool, `[waiting, width]`.
    pub pending_values: Tensor<T>,
    /// Logits of the tokens of `pending_values`, `[waiting, width]`; the bias of the position is already added.
    pub pending_logits: Tensor<T>,
}

/// Cached rows `[n, dim]`.
#[derive(Clone, Debug, PartialEq)]
pub struct CacheParts<T> {
    /// The rows as keys.
    pub keys: Tensor<T>,
    /// Separate copies of the rows that are read as values, if [`Numerics::splits`](crate::Numerics::splits) requested them;
    /// `None` if the values equal the keys.
    pub values: Option<Tensor<T>>,
}

impl<T: Real> State<T> {
    /// Creates the state of an empty sequence.
    ///
    /// # Errors
    /// Returns the errors of [`Config::check`].
    pub fn new(config: &Config) -> Result<Self, String> {
        config.check()?;
        Ok(Self::empty(config))
    }

    /// Creates the state of an empty sequence without checking the configuration.
    pub(super) fn empty(config: &Config) -> Self {
        let sizes = sizes(config);
        let compressed = |sizes: Pooling| {
            let [pending_values, pending_logits] = sizes.pending();
            CompressedParts {
                entries: CacheParts::new(sizes.dim),
                pending_values,
                pending_logits,
            }
        };
        let layers = sizes.1.iter().map(|[main, index]| LayerParts {
            window: CacheParts::new(config.head_dim),
            compressed: main.map(compressed),
            index: index.map(compressed),
        });
        let layers = layers.collect();
        Self {
            parts: StateParts { tokens: 0, layers },
            sizes,
            ropes: [LayerType::Sliding, LayerType::Heavy].map(|kind| Rope::new(config.rope_frequencies(kind))),
        }
    }

    /// Returns the number of tokens processed so far.
    pub fn tokens(&self) -> usize {
        self.parts.tokens
    }

    /// Returns the caches of a layer.
    ///
    /// # Panics
    /// If the layer does not exist.
    pub fn layer(&self, layer: usize) -> &LayerParts<T> {
        &self.parts.layers[layer]
    }

    /// Returns an error if a model of this configuration cannot continue from this state.
    pub(super) fn check(&self, config: &Config) -> Result<(), String> {
        match self.sizes == sizes(config) {
            true => Ok(()),
            false => Err("the state is that of a model with another configuration".into()),
        }
    }

    /// Returns a copy of the state as tensors.
    pub fn to_parts(&self) -> StateParts<T> {
        self.parts.clone()
    }

    /// Restores a state from its parts. Later results are bit-identical to those of the state on which [`State::to_parts`] was
    /// called.
    ///
    /// # Errors
    /// Returns the errors of [`Config::check`], and an error for a tensor that is missing, unexpected, or not of the shape
    /// given by the configuration and the number of tokens. The message names the layer and the tensor.
    pub fn from_parts(config: &Config, mut parts: StateParts<T>) -> Result<Self, String> {
        let state = Self::new(config)?;
        let (tokens, found, expected) = (parts.tokens, parts.layers.len(), state.sizes.1.len());
        if found != expected {
            return Err(format!("the state has {found} layers, the configuration {expected}"));
        }
        let enough = tokens.min(config.sliding_window - 1);
        for (number, (layer, [main, index])) in parts.layers.iter_mut().zip(&state.sizes.1).enumerate() {
            let wrong = |message: String| format!("layer {number}: {message}");
            let rows = layer.window.keys.shape.first().copied().unwrap_or(0);
            if !(enough..=tokens).contains(&rows) {
                return Err(wrong(format!(
                    "window has {rows} rows, expected {enough} to {tokens} after {tokens} tokens"
                )));
            }
            layer.window.check("window", [rows, config.head_dim]).map_err(wrong)?;
            for (what, sizes, found) in [
                ("compressed", main, &mut layer.compressed),
                ("index", index, &mut layer.index),
            ] {
                match (sizes, found) {
                    (Some(sizes), Some(found)) => found.check(what, *sizes, tokens).map_err(wrong)?,
                    (None, None) => {}
                    (Some(_), None) => return Err(wrong(format!("{what} is missing"))),
                    (None, Some(_)) => return Err(wrong(format!("{what} is given, but the layer has none"))),
                }
            }
            let index = layer.index.as_ref();
            if index.is_some_and(|index| index.entries.values.is_some()) {
                return Err(wrong("index has values, but is read as keys only".into()));
            }
        }
        Ok(Self { parts, ..state })
    }
}

/// Returns the number of channels of window caches, and the sizes of two compressors per layer: one for keys, one for the keys of
/// the indexer.
fn sizes(config: &Config) -> (usize, Vec<[Option<Pooling>; 2]>) {
    let layers = config.layer_types.iter().map(|kind| config.pools(*kind));
    (config.head_dim, layers.collect())
}

impl<T: Real> CompressedParts<T> {
    /// Returns an error if a tensor of this state has a wrong shape for a compressor of these sizes after `tokens` tokens.
    fn check(&mut self, what: &str, sizes: Pooling, tokens: usize) -> Result<(), String> {
        let shape = [tokens - sizes.needed(tokens), sizes.width()];
        has_shape(&format!("{what} pending_values"), &self.pending_values, shape)?;
        has_shape(&format!("{what} pending_logits"), &self.pending_logits, shape)?;
        let shape = [tokens / sizes.rate, sizes.dim];
        self.entries.check(&format!("{what} entries'"), shape)
    }
}

impl<T: Real> CacheParts<T> {
    /// Creates an empty cache whose rows have `dim` channels.
    fn new(dim: usize) -> Self {
        Self {
            keys: Tensor::full([0, dim], T::ZERO),
            values: None,
        }
    }

    /// Returns an error if the rows do not have the shape `shape`.
    fn check(&mut self, what: &str, shape: [usize; 2]) -> Result<(), String> {
        has_shape(&format!("{what} keys"), &self.keys, shape)?;
        if let Some(values) = &self.values {
            has_shape(&format!("{what} values"), values, shape)?;
        }
        // Drop the values of an empty cache: the first rows that are added decide if keys and values are split.
        self.values.take_if(|_| shape[0] == 0);
        Ok(())
    }

    /// Appends rows `[n, dim]`. `values` must be `Some` in every call if keys and values are split, and `None` in every call
    /// otherwise.
    pub(super) fn push(&mut self, keys: Tensor<T>, values: Option<Tensor<T>>) {
        if let Some(values) = values {
            // `self.values` is `None` only in an empty cache, since `Numerics::splits` returns the same for all rows.
            let none = || Tensor::full([0, keys.cols()], T::ZERO);
            append(self.values.get_or_insert_with(none), values);
        }
        append(&mut self.keys, keys);
    }

    /// Drops the first rows.
    pub(super) fn drop_first(&mut self, rows: usize) {
        for kept in [Some(&mut self.keys), self.values.as_mut()].into_iter().flatten() {
            // Allocate a new vector: the memory of the old vector may be many times the size of the rows that remain.
            kept.data = kept.data[rows * kept.cols()..].to_vec();
            kept.shape[0] -= rows;
        }
    }

    /// Returns a range of rows as keys and as values.
    pub(super) fn read(&self, rows: std::ops::Range<usize>) -> KeyRows<'_, T> {
        let range = rows.start * self.keys.cols()..rows.end * self.keys.cols();
        KeyRows {
            keys: &self.keys.data[range.clone()],
            values: &self.values.as_ref().unwrap_or(&self.keys).data[range],
        }
    }

    /// Copies selected rows as keys and as values; the values are `None` if they equal the keys.
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

fn has_shape<T>(what: &str, tensor: &Tensor<T>, expected: [usize; 2]) -> Result<(), String> {
    // The fields of a tensor are public: a caller may have set the right shape with a wrong number of elements.
    match tensor.shape == expected && Some(tensor.data.len()) == expected[0].checked_mul(expected[1]) {
        true => Ok(()),
        false => Err(format!(
            "{what} have shape {:?} and {} elements, expected {expected:?}",
            tensor.shape,
            tensor.data.len()
        )),
    }
}
