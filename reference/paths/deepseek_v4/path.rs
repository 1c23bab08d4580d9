//! Registers DeepSeek-V4 as a path (an implementation of one kind of model): the static [`Path`], and the traits of all paths.

use super::{Config, Model, RouterType, SITES, State, read};
use crate::paths::{self, Input, LoadError, Path, Source, Takes, TensorSpec};
use crate::{Numerics, Tensor};

/// The path of DeepSeek-V4 models.
pub static PATH: Path = Path {
    name: "deepseek_v4",
    model_types: || vec!["deepseek_v4"],
    sites: SITES,
    read: |json, inert| Ok(Box::new(read::config(json, inert)?)),
    nearest: |_| None,
};

impl paths::Config for Config {
    fn path(&self) -> &'static Path {
        &PATH
    }

    fn layers(&self) -> usize {
        self.num_hidden_layers
    }

    fn takes(&self) -> Takes {
        Takes::Ids {
            vocabulary: self.vocab_size,
        }
    }

    fn most_tokens(&self) -> Option<usize> {
        self.max_position_embeddings
    }

    sizes! {
        hc_mult, head_dim, hidden_size, index_head_dim, index_n_heads, index_topk, moe_intermediate_size,
        n_routed_experts, num_attention_heads, num_experts_per_tok, qk_rope_head_dim, vocab_size
    }

    fn layer_types(&self, layer: usize) -> Vec<&'static str> {
        let router = match self.mlp_layer_types[layer] {
            RouterType::Hash => "hash_moe",
            RouterType::Learned => "moe",
        };
        vec![self.layer_types[layer].name(), router]
    }

    fn tokens_per_entry(&self, layer: usize) -> Option<usize> {
        self.compress_rate(layer)
    }

    fn tensors(&self) -> Vec<TensorSpec> {
        Config::tensors(self)
    }
}

impl<T: paths::Scalar> paths::Loads<T> for Config {
    fn load(&self, weights: &mut Source<'_>, _: &mut dyn Numerics<T>) -> Result<Box<dyn paths::Model<T>>, LoadError> {
        Ok(Box::new(Model::load(self.clone(), weights)?))
    }
}

impl<T: paths::Scalar> paths::Model<T> for Model<T> {
    fn config(&self) -> &dyn paths::Config {
        Model::config(self)
    }

    fn state(&self, start: Vec<Tensor<T>>) -> Result<Box<dyn paths::State<T>>, String> {
        paths::model::begins_empty(&start)?;
        Ok(Box::new(Model::state(self)))
    }

    fn run(
        &self,
        state: &mut dyn paths::State<T>,
        input: Input<'_, T>,
        numerics: &mut dyn Numerics<T>,
    ) -> Result<Tensor<T>, String> {
        Model::run(self, state.of_mut()?, input.ids()?, numerics)
    }

    fn resume(
        &self,
        layer: usize,
        stream: Tensor<T>,
        ids: &[u32],
        numerics: &mut dyn Numerics<T>,
    ) -> Option<Result<Tensor<T>, String>> {
        let Config {
            hc_mult,
            hidden_size,
            num_hidden_layers: layers,
            ..
        } = *Model::config(self);
        let shape = [ids.len(), hc_mult, hidden_size];
        if layer > layers || stream.shape != shape {
            let found = &stream.shape;
            return Some(Err(format!(
                "layer {layer} of {layers} is fed {found:?}, expected {shape:?}"
            )));
        }
        Some(Ok(self.through(layer, stream, &mut Model::state(self), ids, numerics)))
    }
}

impl<T: paths::Scalar> paths::State<T> for State<T> {
    fn tokens(&self) -> usize {
        State::tokens(self)
    }
}
