//! Configuration of decoder-only models, in which each layer has attention or a delta rule.

use std::fmt::Debug;

use super::layer::Layer;
use super::mlp::Routing;
use super::model::Model;
use super::parts::Parts;
use super::sites::HEAD_WEIGHT;
use crate::paths::{self, LoadError, Loader, Path, RopeConfig, Source, Takes, TensorSpec, asked};
use crate::sites::Growth;
use crate::{Numerics, Real, SiteInfo};

/// Sizes of a model and the kinds of its layers, read from a `config.json`. All decoder-only models have these fields; `own`
/// holds the other fields, which only one kind of model ([`Path`]) has.
#[derive(Clone, Debug)]
pub struct Decoder<Own> {
    /// Number of token ids; each id is below this number.
    pub vocab_size: usize,
    /// Channels of the residual stream.
    pub hidden_size: usize,
    /// Channels within a dense feed-forward layer; 0 if all layers have experts.
    pub intermediate_size: usize,
    /// Query heads of attention.
    pub num_attention_heads: usize,
    /// Heads of keys and values of attention.
    pub num_key_value_heads: usize,
    /// Channels of a query, and of a key, of one attention head.
    pub head_dim: usize,
    /// Number of experts of a layer with experts; 0 if no layer has experts.
    pub num_experts: usize,
    /// Number of experts that the router selects for a token.
    pub num_experts_per_tok: usize,
    /// Channels within an expert.
    pub moe_intermediate_size: usize,
    /// Rule by which the router selects and weights the experts of a token.
    pub routing: Routing,
    /// ε of all norms except Kimi-Linear's norm of latents, whose ε is constant.
    pub rms_norm_eps: f64,
    /// True if the embedding is also the output head.
    pub tie_word_embeddings: bool,
    /// Factor of the embeddings.
    pub embedding_multiplier: f64,
    /// Factor of the attention scores q·k.
    pub attention_multiplier: f64,
    /// Factor of the outputs of mixers and feed-forward layers before they are added to the residual stream; `None`: no factor.
    pub residual_multiplier: Option<f64>,
    /// Divisor of the logits.
    pub logits_scaling: f64,
    /// Context length in tokens for which the model was trained; `None` if `config.json` does not state it.
    pub max_position_embeddings: Option<usize>,
    /// The different RoPEs of the model; [`LayerConfig::rope`] is an index into this list.
    pub ropes: Vec<RopeConfig>,
    /// Kind of each layer.
    pub layers: Vec<LayerConfig>,
    /// Properties that only models of this path have.
    pub own: Own,
}

/// Properties of one layer: its token mixer (attention or delta rule), window, RoPE and feed-forward part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerConfig {
    /// True if the layer has attention, false if it has a delta rule.
    pub full: bool,
    /// Length of the attention window in tokens, including the current token; `None` without a window.
    pub window: Option<usize>,
    /// Index of the layer's RoPE in [`Decoder::ropes`]; `None` if the layer has no RoPE.
    pub rope: Option<usize>,
    /// True if the layer has experts, false if it has one dense feed-forward layer.
    pub experts: bool,
}

/// The part of a configuration that only one path (implementation of one kind of model) has, and the constructor of its layers.
pub(in crate::paths) trait Decodes: Clone + Debug + Send + Sync + 'static {
    /// [`Path`] that reads this kind of configuration and loads its models.
    const PATH: &'static Path;

    /// Lists the names and values of the sizes that only this path has.
    fn sizes(&self) -> Vec<(&'static str, usize)> {
        Vec::new()
    }

    /// Returns the types of a layer; see [`paths::Config::layer_types`].
    fn layer_types(&self, layer: LayerConfig) -> Vec<&'static str>;

    /// Returns the prefix of all tensor names except the name of the output head.
    fn prefix(&self) -> &'static str {
        "model."
    }

    /// Returns true if the norms are zero-centred: 1 is added to their weights.
    fn centred(&self) -> bool {
        false
    }

    /// Makes a layer from its tensors.
    fn layer<T: Real>(parts: &mut Parts<'_, '_, '_, T, Self>, layer: LayerConfig) -> Result<Layer<T>, LoadError>;
}

impl<O: Decodes> paths::Config for Decoder<O> {
    fn path(&self) -> &'static Path {
        O::PATH
    }

    fn layers(&self) -> usize {
        self.layers.len()
    }

    fn takes(&self) -> Takes {
        Takes::Ids {
            vocabulary: self.vocab_size,
        }
    }

    fn most_tokens(&self) -> Option<usize> {
        self.max_position_embeddings
    }

    fn longest(&self) -> Option<usize> {
        self.ropes.iter().filter_map(|rope| rope.most_tokens).min()
    }

    fn sizes(&self) -> Vec<(&'static str, usize)> {
        let mut sizes = self.own.sizes();
        sizes.extend(fields! {
            self: head_dim hidden_size intermediate_size moe_intermediate_size num_attention_heads num_experts
                num_experts_per_tok num_key_value_heads vocab_size
        });
        sizes.sort_unstable();
        sizes
    }

    fn layer_types(&self, layer: usize) -> Vec<&'static str> {
        self.own.layer_types(self.layers[layer])
    }

    fn lacks(&self, site: &SiteInfo) -> bool {
        self.tie_word_embeddings && site.name == HEAD_WEIGHT
    }

    /// Returns the number of tokens per row of a growing cache: 1, since the cache keeps a row for every token. `None` for a
    /// cache with a window, and for a recurrent state.
    fn tokens_per_row(&self, site: &SiteInfo, layer: usize) -> Option<usize> {
        let grows = site.cache?.growth == Growth::Token && self.layers[layer].window.is_none();
        grows.then_some(1)
    }

    fn tensors(&self) -> Vec<TensorSpec> {
        asked::<f32, _>(|load| Model::new(self, load, &mut crate::Plain))
    }
}

impl<T: paths::Scalar, O: Decodes> paths::Loads<T> for Decoder<O> {
    fn load(
        &self,
        weights: &mut Source<'_>,
        numerics: &mut dyn Numerics<T>,
    ) -> Result<Box<dyn paths::Model<T>>, LoadError> {
        Ok(Box::new(Model::new(self, &mut Loader::new(weights), numerics)?))
    }
}
