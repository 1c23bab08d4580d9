//! The whole model: embedding, layers, head; and the state of a sequence between calls.

use super::Context;
use super::layer::{Layer, Memory};
use super::projections::Projections;
use super::sites::{EMBEDDING_WEIGHT, HEAD_INPUT, HEAD_WEIGHT, LOGITS};
use crate::ops::projection::Projection;
use crate::ops::rope::Rope;
use crate::paths::rope::check_length;
use crate::paths::{self, Input, LoadError, Loader, RopeConfig};
use crate::{Numerics, Real, Site, Tensor};

/// A model with its weights.
pub(in crate::paths) struct Model<T: Real> {
    whole: Whole,
    embedding: Projection<T>,
    layers: Vec<Layer<T>>,
    norm: Vec<T>,
    /// None if the embedding is the head.
    head: Option<Projection<T>>,
}

/// Properties of a model outside of its layers.
pub(in crate::paths) struct Whole {
    pub config: Box<dyn paths::Config>,
    /// Prefix of the names of all tensors but the head's.
    pub prefix: &'static str,
    /// Token ids, and channels of the stream.
    pub shape: [usize; 2],
    /// True if the embedding is the head.
    pub tied: bool,
    /// True if norms are zero-centred: 1 is added to their weights.
    pub centred: bool,
    pub eps: f64,
    /// Embeddings are multiplied by it.
    pub embedding_multiplier: f64,
    /// Logits are divided by it.
    pub logits_scaling: f64,
    pub ropes: Vec<RopeConfig>,
}

/// The memories of one sequence.
#[derive(Clone, Debug)]
pub(in crate::paths) struct State<T> {
    /// Name of the path of the model that it is a state of.
    path: &'static str,
    layers: Vec<Memory<T>>,
    tokens: usize,
    ropes: Vec<Rope<T>>,
}

impl<T: Real> paths::State<T> for State<T> {
    fn tokens(&self) -> usize {
        self.tokens
    }

    fn boxed(&self) -> Box<dyn paths::State<T>> {
        Box::new(self.clone())
    }
}

impl<T: Real> Model<T> {
    /// Takes every tensor from `load`, those of each layer by `layer`, and passes those that are sites to `numerics`.
    ///
    /// # Errors
    /// Those of the weights, and tensors of another length.
    pub fn of_parts(
        whole: Whole,
        load: &mut Loader<'_, T>,
        numerics: &mut dyn Numerics<T>,
        layer: impl Fn(Projections<'_, '_, T>, usize) -> Result<Layer<T>, LoadError>,
    ) -> Result<Self, LoadError> {
        let (prefix, centred) = (whole.prefix, whole.centred);
        let mut make = Projections {
            load,
            numerics,
            layer: None,
            centred,
        };
        make.load.prefix = prefix.into();
        let embedding = make.linear(EMBEDDING_WEIGHT, "embed_tokens", whole.shape, false)?;
        let mut layers = Vec::new();
        for number in 0..whole.config.layers() {
            make.load.prefix = format!("{prefix}layers.{number}.");
            layers.push(layer(make.of_layer(number), number)?);
        }
        make.load.prefix = prefix.into();
        let norm = make.norm("norm.weight", whole.shape[1])?;
        make.load.prefix = String::new();
        let head = match whole.tied {
            true => None,
            false => Some(make.linear(HEAD_WEIGHT, "lm_head", whole.shape, false)?),
        };
        Ok(Self {
            whole,
            embedding,
            layers,
            norm,
            head,
        })
    }
}

impl<T: paths::Scalar> paths::Model<T> for Model<T> {
    fn config(&self) -> &dyn paths::Config {
        &*self.whole.config
    }

    fn state(&self, start: Vec<Tensor<T>>) -> Result<Box<dyn paths::State<T>>, String> {
        paths::model::begins_empty(&start)?;
        let ropes = self.whole.ropes.iter();
        Ok(Box::new(State {
            path: self.whole.config.path().name,
            layers: self.layers.iter().map(|layer| layer.mixer.memory()).collect(),
            tokens: 0,
            ropes: ropes
                .map(|rope| Rope::new(rope.frequencies.clone()).times(rope.factor))
                .collect(),
        }))
    }

    /// All tokens at once, in chunks or one by one is the same to rounding: delta rules and sums over channels and keys are computed in
    /// another order for one or two rows than for many.
    fn run(
        &self,
        state: &mut dyn paths::State<T>,
        input: Input<'_, T>,
        numerics: &mut dyn Numerics<T>,
    ) -> Result<Tensor<T>, String> {
        let whole = &self.whole;
        let state = state.of_mut::<State<T>>()?;
        if state.path != whole.config.path().name {
            return Err(paths::model::other());
        }
        let ids = input.ids()?;
        paths::model::check_ids(ids, whole.shape[0])?;
        let mut pairs = state.layers.iter().zip(&self.layers);
        if state.layers.len() != self.layers.len() || pairs.any(|(memory, layer)| !memory.fits(&layer.mixer.memory())) {
            return Err("the state is that of a model with other sizes".into());
        }
        check_length(&whole.ropes, state.tokens + ids.len())?;
        let start = state.tokens;
        state.tokens += ids.len();
        for rope in &mut state.ropes {
            rope.extend(state.tokens);
        }
        let embedded = ids.iter().flat_map(|&id| self.embedding.row(id as usize));
        let mut x = Tensor::new([ids.len(), whole.shape[1]], embedded.collect());
        if whole.embedding_multiplier != 1.0 {
            let factor = T::from_f64(whole.embedding_multiplier);
            x.data.iter_mut().for_each(|x| *x *= factor);
        }
        for (number, (layer, memory)) in self.layers.iter().zip(&mut state.layers).enumerate() {
            let rope = layer.rope.map(|rope| &state.ropes[rope]);
            layer.forward(&mut x, memory, &mut Context::new(numerics, Some(number), start, rope))?;
        }
        let eps = T::from_f64(whole.eps);
        numerics.operations().rmsnorm(&mut x, Some(&self.norm), eps);
        numerics.site(&Site::new(None, HEAD_INPUT).from_row(start), &mut x);
        let mut logits = self.head.as_ref().unwrap_or(&self.embedding).apply(&x);
        if whole.logits_scaling != 1.0 {
            let divisor = T::from_f64(whole.logits_scaling);
            logits.data.iter_mut().for_each(|x| *x = *x / divisor);
        }
        numerics.site(&Site::new(None, LOGITS).from_row(start), &mut logits);
        Ok(logits)
    }
}
