//! A configuration of decoder-only models, by whatever their layers mix tokens.

use std::fmt::Debug;

use super::layer::Layer;
use super::mlp::Routing;
use super::model::Model;
use super::parts::Parts;
use super::sites::HEAD_WEIGHT;
use crate::paths::{self, LoadError, Loader, Path, RopeConfig, Source, Takes, TensorSpec, asked};
use crate::sites::Growth;
use crate::{Numerics, Real, SiteInfo};

/// The sizes of a model and what its layers compute, read from a `config.json`: what every decoder-only model has, and what those of
/// one path have besides.
#[derive(Clone, Debug)]
pub struct Decoder<Own> {
    /// Token ids are below this.
    pub vocab_size: usize,
    /// Channels of the residual stream.
    pub hidden_size: usize,
    /// Channels within a feed-forward layer; 0 if no layer has a single one.
    pub intermediate_size: usize,
    /// Query heads of attention.
    pub num_attention_heads: usize,
    /// Heads of keys and values of attention.
    pub num_key_value_heads: usize,
    /// Channels of a query and of a key of attention.
    pub head_dim: usize,
    /// Experts of a layer that has them; 0 if none has.
    pub num_experts: usize,
    /// Experts of a token.
    pub num_experts_per_tok: usize,
    /// Channels within an expert.
    pub moe_intermediate_size: usize,
    /// Selection and weights of a token's experts.
    pub routing: Routing,
    /// ε of every norm but those that say otherwise.
    pub rms_norm_eps: f64,
    /// True if the embedding is the head.
    pub tie_word_embeddings: bool,
    /// Embeddings are multiplied by it.
    pub embedding_multiplier: f64,
    /// q·k of attention is multiplied by it.
    pub attention_multiplier: f64,
    /// Factor of the outputs of mixers and feed-forward layers, before they are added to the stream, if there is one.
    pub residual_multiplier: Option<f64>,
    /// Logits are divided by it.
    pub logits_scaling: f64,
    /// Tokens that the model was made for, if the file says.
    pub max_position_embeddings: Option<usize>,
    /// The RoPEs that layers have.
    pub ropes: Vec<RopeConfig>,
    /// Kind of each layer.
    pub layers: Vec<LayerConfig>,
    /// Properties that only models of the path have.
    pub own: Own,
}

/// Kind of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerConfig {
    /// True if it has attention, in place of a delta rule.
    pub full: bool,
    /// Number of tokens that it reads, its own among them, if it has a window.
    pub window: Option<usize>,
    /// Index of its RoPE, if it has one.
    pub rope: Option<usize>,
    /// True if it has experts in place of one feed-forward layer.
    pub experts: bool,
}

/// Properties that only models of one path have, and the layers that are made by them.
pub(in crate::paths) trait Decodes: Clone + Debug + Send + Sync + 'static {
    /// Gives the path.
    fn path() -> &'static Path;

    /// Lists the sizes that are named here.
    fn sizes(&self) -> Vec<(&'static str, usize)> {
        Vec::new()
    }

    /// Gives the types of a layer, see [`paths::Config::layer_types`].
    fn layer_types(&self, layer: LayerConfig) -> Vec<&'static str>;

    /// Gives the prefix of the names of all tensors but the head's.
    fn prefix(&self) -> &'static str {
        "model."
    }

    /// Returns whether norms are zero-centred: 1 is added to their weights.
    fn centred(&self) -> bool {
        false
    }

    /// Makes a layer.
    fn layer<T: Real>(parts: &mut Parts<'_, '_, '_, T, Self>, layer: LayerConfig) -> Result<Layer<T>, LoadError>;
}

impl<O: Decodes> paths::Config for Decoder<O> {
    fn path(&self) -> &'static Path {
        O::path()
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

    /// Caches of layers with a window forget, and do not grow.
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
