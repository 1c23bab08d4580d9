//! The whole model: embedding, layers, head.

use super::context::Context;
use super::layer::Layer;
use super::sites::{HEAD_INPUT, LOGITS};
use super::{Config, State, token_ids};
use crate::ops::projection::Projection;
use crate::paths::rope::check_length;
use crate::paths::{self, Input};
use crate::{Numerics, Real, Site, Tensor};

/// A model with its weights.
pub struct Model<T> {
    pub(super) config: Config,
    pub(super) embedding: Projection<T>,
    pub(super) layers: Vec<Layer<T>>,
    pub(super) norm: Vec<T>,
    /// None if the embedding is the head.
    pub(super) head: Option<Projection<T>>,
}

impl<T: Real> Model<T> {
    fn check(&self, state: &State<T>, ids: &[u32]) -> Result<(), String> {
        let layers = &self.config.layers;
        let alike = state.layers.len() == layers.len() && state.layers.iter().all(|cache| cache.fits(&self.cache()));
        if !alike {
            return Err("the state is that of a model with other sizes".into());
        }
        check_length(&self.config.ropes, state.tokens + ids.len())
    }

    fn cache(&self) -> crate::ops::grouped_attention::KvCache<T> {
        crate::ops::grouped_attention::KvCache::new(self.config.num_key_value_heads, [self.config.head_dim; 2])
    }
}

impl<T: paths::Scalar> paths::Model<T> for Model<T> {
    fn config(&self) -> &dyn paths::Config {
        &self.config
    }

    fn state(&self, start: Vec<Tensor<T>>) -> Result<Box<dyn paths::State<T>>, String> {
        match start.len() {
            0 => Ok(Box::new(State::empty(&self.config))),
            found => Err(format!("{found} tensors to begin with, expected none")),
        }
    }

    /// All tokens at once, in chunks or one by one is the same to rounding: sums over channels and keys are taken in another order for
    /// one or two rows than for many.
    fn run(
        &self,
        state: &mut dyn paths::State<T>,
        input: Input<'_, T>,
        numerics: &mut dyn Numerics<T>,
    ) -> Result<Tensor<T>, String> {
        let (state, ids) = (state.of_mut::<State<T>>()?, token_ids(input, self.config.vocab_size)?);
        self.check(state, ids)?;
        let config = &self.config;
        let start = state.tokens;
        state.tokens += ids.len();
        for rope in &mut state.ropes {
            rope.extend(state.tokens);
        }
        let embedded = ids.iter().flat_map(|&id| self.embedding.row(id as usize));
        let mut x = Tensor::new([ids.len(), config.hidden_size], embedded.collect());
        scale(&mut x, config.embedding_multiplier);
        for (number, (layer, cache)) in self.layers.iter().zip(&mut state.layers).enumerate() {
            let rope = config.layers[number].rope.map(|rope| &state.ropes[rope]);
            layer.forward(
                &mut x,
                cache,
                &mut Context {
                    numerics,
                    layer: number,
                    start,
                    rope,
                },
            );
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

fn scale<T: Real>(x: &mut Tensor<T>, factor: f64) {
    if factor != 1.0 {
        let factor = T::from_f64(factor);
        x.data.iter_mut().for_each(|x| *x *= factor);
    }
}
