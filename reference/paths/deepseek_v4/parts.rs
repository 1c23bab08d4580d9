//! A sequence's state as plain tensors, to be stored and restored.

use super::config::{Config, LayerType};
use super::state::{CacheParts, Compressed, LayerState, State};
use crate::ops::compressor::Pool;
use crate::ops::rope::Rope;
use crate::{Real, Tensor};

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
        let layers = config.layer_types.iter().map(|kind| {
            let sparse = *kind == LayerType::Sparse;
            let compressed = |dim| config.rate(*kind).map(|rate| Compressed::new(rate, sparse, dim));
            LayerState {
                window: CacheParts::new(config.head_dim),
                window_first: 0,
                compressed: compressed(config.head_dim),
                index: compressed(config.index_head_dim).filter(|_| sparse),
            }
        });
        let ropes = [LayerType::Sliding, LayerType::Heavy].map(|kind| Rope::new(config.rope_frequencies(kind)));
        Self {
            layers: layers.collect(),
            tokens: 0,
            ropes,
        }
    }

    /// Returns whether a model of this configuration can go on from here.
    pub(super) fn check(&self, config: &Config) -> Result<(), String> {
        let compressed = |compressed: &Compressed<T>| (compressed.pool.rate(), compressed.entries.keys.cols());
        let shape = |layer: &LayerState<T>| {
            let [main, index] = [&layer.compressed, &layer.index].map(|cache| cache.as_ref().map(compressed));
            (layer.window.keys.cols(), main, index)
        };
        let expected = |kind: &LayerType| {
            let rate = config.rate(*kind);
            let main = rate.map(|rate| (rate, config.head_dim));
            let index = rate.map(|rate| (rate, config.index_head_dim));
            (config.head_dim, main, index.filter(|_| *kind == LayerType::Sparse))
        };
        let shapes = self.layers.iter().map(shape);
        match shapes.eq(config.layer_types.iter().map(expected)) {
            true => Ok(()),
            false => Err("the state is that of a model with another configuration".into()),
        }
    }

    /// A copy of the state as tensors.
    pub fn to_parts(&self) -> StateParts<T> {
        let layers = self.layers.iter().map(|layer| LayerParts {
            window: layer.window.clone(),
            compressed: layer.compressed.as_ref().map(Compressed::to_parts),
            index: layer.index.as_ref().map(Compressed::to_parts),
        });
        StateParts {
            tokens: self.tokens,
            layers: layers.collect(),
        }
    }

    /// The state of these parts: what follows is bit for bit what would have followed [`State::to_parts`].
    ///
    /// # Errors
    /// What [`Config::check`] finds, and every tensor that is missing, not expected or not of the shape that the
    /// configuration and the number of tokens demand; the message names layer and tensor.
    pub fn from_parts(config: &Config, parts: StateParts<T>) -> Result<Self, String> {
        let mut state = Self::new(config)?;
        state.tokens = parts.tokens;
        if parts.layers.len() != state.layers.len() {
            let (found, expected) = (parts.layers.len(), state.layers.len());
            return Err(format!("the state has {found} layers, the configuration {expected}"));
        }
        let enough = parts.tokens.min(config.sliding_window - 1);
        for (number, (layer, parts)) in state.layers.iter_mut().zip(parts.layers).enumerate() {
            let wrong = |message: String| format!("layer {number}: {message}");
            let rows = parts.window.keys.shape.first().copied().unwrap_or(0);
            if !(enough..=state.tokens).contains(&rows) {
                let tokens = state.tokens;
                return Err(wrong(format!(
                    "window has {rows} rows, expected {enough} to {tokens} after {tokens} tokens"
                )));
            }
            layer.window = parts.window.checked("window", [rows, config.head_dim]).map_err(wrong)?;
            layer.window_first = state.tokens - rows;
            for (what, into, parts) in [
                ("compressed", &mut layer.compressed, parts.compressed),
                ("index", &mut layer.index, parts.index),
            ] {
                match (into, parts) {
                    (Some(into), Some(parts)) => into.restore(what, parts, state.tokens).map_err(wrong)?,
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
        Ok(state)
    }
}

impl<T: Real> CacheParts<T> {
    /// Refuses rows of another shape.
    fn checked(self, what: &str, shape: [usize; 2]) -> Result<Self, String> {
        has_shape(&format!("{what} keys"), &self.keys, shape)?;
        if let Some(values) = &self.values {
            has_shape(&format!("{what} values"), values, shape)?;
        }
        // A cache of no rows is as it was before the first: it is not settled whether its rows will be split.
        let values = self.values.filter(|_| shape[0] > 0);
        Ok(Self { values, ..self })
    }
}

impl<T: Real> Compressed<T> {
    fn to_parts(&self) -> CompressedParts<T> {
        let (values, logits) = self.pool.pending();
        let width = self.pool.width_of_rows();
        let rows = |data: &[T]| Tensor::new([data.len() / width, width], data.to_vec());
        CompressedParts {
            entries: self.entries.clone(),
            pending_values: rows(values),
            pending_logits: rows(logits),
        }
    }

    /// Takes parts into an empty one.
    fn restore(&mut self, what: &str, parts: CompressedParts<T>, tokens: usize) -> Result<(), String> {
        let pool = Pool::restored(&self.pool, tokens);
        let shape = [tokens - pool.first(), pool.width_of_rows()];
        has_shape(&format!("{what} pending_values"), &parts.pending_values, shape)?;
        has_shape(&format!("{what} pending_logits"), &parts.pending_logits, shape)?;
        let shape = [pool.entries(), self.entries.keys.cols()];
        self.entries = parts.entries.checked(&format!("{what} entries'"), shape)?;
        self.pool = pool.with_pending(parts.pending_values.data, parts.pending_logits.data);
        Ok(())
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
