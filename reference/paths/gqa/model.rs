//! The whole model (embedding, layers, head) and the state of a sequence between calls.

use super::Context;
use super::decoder::{Decoder, Decodes};
use super::layer::{Layer, Memory};
use super::parts::Parts;
use super::sites::{EMBEDDING_WEIGHT, HEAD_INPUT, HEAD_WEIGHT, LOGITS};
use crate::ops::projection::Projection;
use crate::ops::rope::Rope;
use crate::paths::rope::check_length;
use crate::paths::{self, Input, LoadError, Loader};
use crate::{Numerics, Real, Site, Tensor};

/// A model with its weights.
pub(in crate::paths) struct Model<T: Real, O> {
    config: Decoder<O>,
    embedding: Projection<T>,
    layers: Vec<Layer<T>>,
    norm: Vec<T>,
    /// Output head; `None` if it is tied to the embedding.
    head: Option<Projection<T>>,
}

/// State of one sequence between calls: the caches or recurrent states of all layers.
#[derive(Clone, Debug)]
pub(in crate::paths) struct State<T> {
    /// Name of the [`paths::Path`] whose model made this state.
    path: &'static str,
    layers: Vec<Memory<T>>,
    tokens: usize,
    ropes: Vec<Rope<T>>,
}

impl<T: Real> paths::State<T> for State<T> {
    fn tokens(&self) -> usize {
        self.tokens
    }
}

impl<T: Real, O: Decodes> Model<T, O> {
    /// Loads every tensor through `load`, and calls the hook [`Numerics::site`] for each weight that is a site.
    ///
    /// # Errors
    /// Returns the errors of the weights, and an error for a tensor of an unexpected length.
    pub fn new(
        config: &Decoder<O>,
        load: &mut Loader<'_, T>,
        numerics: &mut dyn Numerics<T>,
    ) -> Result<Self, LoadError> {
        let (prefix, shape) = (config.own.prefix(), [config.vocab_size, config.hidden_size]);
        let mut parts = Parts {
            config,
            load,
            numerics,
            layer: None,
        };
        parts.load.prefix = prefix.into();
        let embedding = parts.linear(EMBEDDING_WEIGHT, "embed_tokens", shape, false)?;
        let mut layers = Vec::new();
        for (number, &layer) in config.layers.iter().enumerate() {
            parts.load.prefix = format!("{prefix}layers.{number}.");
            parts.layer = Some(number);
            layers.push(O::layer(&mut parts, layer)?);
        }
        parts.load.prefix = prefix.into();
        parts.layer = None;
        let norm = parts.norm("norm.weight", config.hidden_size)?;
        parts.load.prefix = String::new();
        let head = match config.tie_word_embeddings {
            true => None,
            false => Some(parts.linear(HEAD_WEIGHT, "lm_head", shape, false)?),
        };
        Ok(Self {
            config: config.clone(),
            embedding,
            layers,
            norm,
            head,
        })
    }
}

impl<T: paths::Scalar, O: Decodes> paths::Model<T> for Model<T, O> {
    fn config(&self) -> &dyn paths::Config {
        &self.config
    }

    fn state(&self, start: Vec<Tensor<T>>) -> Result<Box<dyn paths::State<T>>, String> {
        paths::model::begins_empty(&start)?;
        let ropes = self.config.ropes.iter();
        Ok(Box::new(State {
            path: O::PATH.name,
            layers: self.layers.iter().map(|layer| layer.mixer.memory()).collect(),
            tokens: 0,
            ropes: ropes
                .map(|rope| Rope::new(rope.frequencies.clone()).times(rope.factor))
                .collect(),
        }))
    }

    /// A caller may pass all tokens in one call, in chunks or one by one: the results differ by rounding only. They differ
    /// because the delta rule, and sums over channels and keys, are computed in another order for one or two rows than for many
    /// rows.
    fn run(
        &self,
        state: &mut dyn paths::State<T>,
        input: Input<'_, T>,
        numerics: &mut dyn Numerics<T>,
    ) -> Result<Tensor<T>, String> {
        let config = &self.config;
        let state = state.of_mut::<State<T>>()?;
        if state.path != O::PATH.name {
            return Err(paths::model::other());
        }
        let ids = input.ids()?;
        paths::model::check_ids(ids, config.vocab_size)?;
        let mut pairs = state.layers.iter().zip(&self.layers);
        if state.layers.len() != self.layers.len() || pairs.any(|(memory, layer)| !memory.fits(&layer.mixer.memory())) {
            return Err("the state is that of a model with other sizes".into());
        }
        check_length(&config.ropes, state.tokens + ids.len())?;
        let start = state.tokens;
        state.tokens += ids.len();
        for rope in &mut state.ropes {
            rope.extend(state.tokens);
        }
        let embedded = ids.iter().flat_map(|&id| self.embedding.row(id as usize));
        let mut x = Tensor::new([ids.len(), config.hidden_size], embedded.collect());
        if config.embedding_multiplier != 1.0 {
            let factor = T::from_f64(config.embedding_multiplier);
            x.data.iter_mut().for_each(|x| *x *= factor);
        }
        for (number, (layer, memory)) in self.layers.iter().zip(&mut state.layers).enumerate() {
            let rope = layer.rope.map(|rope| &state.ropes[rope]);
            layer.forward(&mut x, memory, &mut Context::new(numerics, Some(number), start, rope))?;
        }
        let eps = T::from_f64(config.rms_norm_eps);
        numerics.operations().rmsnorm(&mut x, Some(&self.norm), eps);
        numerics.site(&Site::new(None, HEAD_INPUT).from_row(start), &mut x);
        let mut logits = self.head.as_ref().unwrap_or(&self.embedding).apply(&x);
        if config.logits_scaling != 1.0 {
            let divisor = T::from_f64(config.logits_scaling);
            logits.data.iter_mut().for_each(|x| *x = *x / divisor);
        }
        numerics.site(&Site::new(None, LOGITS).from_row(start), &mut logits);
        Ok(logits)
    }
}
