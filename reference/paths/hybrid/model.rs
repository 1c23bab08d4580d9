//! The whole model: embedding, layers, head.

use super::layer::Layer;
use super::sites::{HEAD_INPUT, LOGITS};
use super::{Config, State};
use crate::ops::projection::Projection;
use crate::ops::rope_half::HalfRope;
use crate::paths::gqa::context::Context;
use crate::paths::gqa::token_ids;
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
        let mut pairs = state.layers.iter().zip(&self.layers);
        let alike = state.layers.len() == self.layers.len();
        if !alike || pairs.any(|(memory, layer)| !layer.fits(memory)) {
            return Err("the state is that of a model with other sizes".into());
        }
        check_length(self.config.rope.as_slice(), state.tokens + ids.len())
    }
}

impl<T: paths::Scalar> paths::Model<T> for Model<T> {
    fn config(&self) -> &dyn paths::Config {
        &self.config
    }

    fn state(&self, start: Vec<Tensor<T>>) -> Result<Box<dyn paths::State<T>>, String> {
        if !start.is_empty() {
            return Err(format!("{} tensors to begin with, expected none", start.len()));
        }
        let rope = self.config.rope.as_ref();
        Ok(Box::new(State {
            layers: self.layers.iter().map(Layer::memory).collect(),
            tokens: 0,
            rope: rope.map(|rope| HalfRope::new(rope.frequencies.clone(), rope.factor)),
        }))
    }

    /// All tokens at once, in chunks or one by one is the same to rounding: the delta rule and sums over channels and keys are computed
    /// in another order.
    fn run(
        &self,
        state: &mut dyn paths::State<T>,
        input: Input<'_, T>,
        numerics: &mut dyn Numerics<T>,
    ) -> Result<Tensor<T>, String> {
        let config = &self.config;
        let (state, ids) = (state.of_mut::<State<T>>()?, token_ids(input, config.vocab_size)?);
        self.check(state, ids)?;
        let start = state.tokens;
        state.tokens += ids.len();
        if let Some(rope) = &mut state.rope {
            rope.extend(state.tokens);
        }
        let embedded = ids.iter().flat_map(|&id| self.embedding.row(id as usize));
        let mut x = Tensor::new([ids.len(), config.hidden_size], embedded.collect());
        for (number, (layer, memory)) in self.layers.iter().zip(&mut state.layers).enumerate() {
            let mut context = Context {
                numerics,
                layer: number,
                start,
                rope: state.rope.as_ref(),
            };
            layer.forward(&mut x, memory, &mut context)?;
        }
        let eps = T::from_f64(config.rms_norm_eps);
        numerics.operations().rmsnorm(&mut x, Some(&self.norm), eps);
        numerics.site(&Site::new(None, HEAD_INPUT).from_row(start), &mut x);
        let mut logits = self.head.as_ref().unwrap_or(&self.embedding).apply(&x);
        numerics.site(&Site::new(None, LOGITS).from_row(start), &mut logits);
        Ok(logits)
    }
}
