//! State of a sequence between calls: the caches, which may be stored and restored as plain tensors.

use super::config::{Config, LayerType};
use crate::ops::attention::KeyRows;
use crate::ops::compressor::Pooling;
use crate::ops::rope::Rope;
use crate::{Real, Tensor};

/// The caches of one sequence, of [`Model::state`](super::Model::state) or restored by [`State::from_parts`].
#[derive(Clone, Debug)]
pub struct State<T> {
    pub(super) parts: StateParts<T>,
    /// Channels of the window caches, and the sizes of each layer's compressors.
    sizes: (usize, Vec<[Option<Pooling>; 2]>),
    /// RoPE tables of sliding layers and of layers with a compressor.
    pub(super) ropes: [Rope<T>; 2],
}

/// The state of one sequence as tensors; with the configuration it is all that [`State::from_parts`] needs. RoPE tables are
/// not among it: they follow from the configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct StateParts<T> {
    /// Tokens seen.
    pub tokens: usize,
    /// One for each layer.
    pub layers: Vec<LayerParts<T>>,
}

/// The caches of one layer.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerParts<T> {
    /// The last KV vectors, `[n, head_dim]`, up to the last token seen: at least the last `sliding_window − 1`, or all if
    /// fewer were seen. More change nothing.
    pub window: CacheParts<T>,
    /// The compressed KV cache, in layers that have one.
    pub compressed: Option<CompressedParts<T>>,
    /// The indexer's keys, in sparse layers. Nothing reads them as values.
    pub index: Option<CompressedParts<T>>,
}

/// A compressor between two tokens: dim is `head_dim`, or `index_head_dim` in the indexer. Rows that wait are `2 · dim` wide
/// in sparse layers, whose windows overlap, and `dim` wide in heavy ones.
#[derive(Clone, Debug, PartialEq)]
pub struct CompressedParts<T> {
    /// Entries made so far, `[tokens / rate, dim]`.
    pub entries: CacheParts<T>,
    /// Values of the tokens that later entries pool, `[waiting, width]`.
    pub pending_values: Tensor<T>,
    /// Their logits, with the bias of their position added, `[waiting, width]`.
    pub pending_logits: Tensor<T>,
}

/// Cached rows `[n, dim]`.
#[derive(Clone, Debug, PartialEq)]
pub struct CacheParts<T> {
    /// The rows as keys.
    pub keys: Tensor<T>,
    /// The rows as values, where [`Numerics::splits`](crate::Numerics::splits) has kept them apart; else they are the keys.
    pub values: Option<Tensor<T>>,
}

impl<T: Real> State<T> {
    /// An empty sequence.
    ///
    /// # Errors
    /// What [`Config::check`] finds.
    pub fn new(config: &Config) -> Result<Self, String> {
        config.check()?;
        Ok(Self::empty(config))
    }

    /// The parts of a new sequence; the configuration must have been checked.
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

    /// Tokens seen so far.
    pub fn tokens(&self) -> usize {
        self.parts.tokens
    }

    /// The caches of a layer.
    ///
    /// # Panics
    /// If there is no such layer.
    pub fn layer(&self, layer: usize) -> &LayerParts<T> {
        &self.parts.layers[layer]
    }

    /// Returns whether a model of this configuration can go on from here.
    pub(super) fn check(&self, config: &Config) -> Result<(), String> {
        match self.sizes == sizes(config) {
            true => Ok(()),
            false => Err("the state is that of a model with another configuration".into()),
        }
    }

    /// A copy of the state as tensors.
    pub fn to_parts(&self) -> StateParts<T> {
        self.parts.clone()
    }

    /// The state of these parts: what follows is bit for bit what would have followed [`State::to_parts`].
    ///
    /// # Errors
    /// What [`Config::check`] finds, and every tensor that is missing, not expected or not of the shape that the
    /// configuration and the number of tokens demand; the message names layer and tensor.
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

/// Channels of window caches, and the sizes of each layer's compressors, of keys and of the indexer.
fn sizes(config: &Config) -> (usize, Vec<[Option<Pooling>; 2]>) {
    let layers = config.layer_types.iter().map(|kind| config.pools(*kind));
    (config.head_dim, layers.collect())
}

impl<T: Real> CompressedParts<T> {
    /// Refuses tensors that do not have these sizes after so many tokens.
    fn check(&mut self, what: &str, sizes: Pooling, tokens: usize) -> Result<(), String> {
        let shape = [tokens - sizes.needed(tokens), sizes.width()];
        has_shape(&format!("{what} pending_values"), &self.pending_values, shape)?;
        has_shape(&format!("{what} pending_logits"), &self.pending_logits, shape)?;
        let shape = [tokens / sizes.rate, sizes.dim];
        self.entries.check(&format!("{what} entries'"), shape)
    }
}

impl<T: Real> CacheParts<T> {
    /// No rows, of `dim` channels.
    fn new(dim: usize) -> Self {
        Self {
            keys: Tensor::full([0, dim], T::ZERO),
            values: None,
        }
    }

    /// Refuses rows of another shape.
    fn check(&mut self, what: &str, shape: [usize; 2]) -> Result<(), String> {
        has_shape(&format!("{what} keys"), &self.keys, shape)?;
        if let Some(values) = &self.values {
            has_shape(&format!("{what} values"), values, shape)?;
        }
        // A cache of no rows is as it was before the first: it is not settled whether its rows will be split.
        self.values.take_if(|_| shape[0] == 0);
        Ok(())
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

fn has_shape<T>(what: &str, tensor: &Tensor<T>, expected: [usize; 2]) -> Result<(), String> {
    // Fields are public: a shape may be right and its data not.
    match tensor.shape == expected && Some(tensor.data.len()) == expected[0].checked_mul(expected[1]) {
        true => Ok(()),
        false => Err(format!(
            "{what} have shape {:?} and {} elements, expected {expected:?}",
            tensor.shape,
            tensor.data.len()
        )),
    }
}
