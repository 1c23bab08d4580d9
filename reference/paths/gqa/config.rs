//! A configuration of any family.

use super::sites::HEAD_WEIGHT;
use super::{Family, PATH};
use crate::ops::softmax_router::Softmax;
use crate::paths::{self, LoadError, Path, RopeConfig, Source, Takes, TensorSpec, asked};
use crate::{Numerics, SiteInfo};

/// The sizes of a model and what its layers compute, read from a `config.json` by [`PATH`].
#[derive(Clone, Debug)]
pub struct Config {
    /// Properties that the family implies and the file does not state.
    pub family: &'static Family,
    /// Token ids are below this.
    pub vocab_size: usize,
    /// Channels of the residual stream.
    pub hidden_size: usize,
    /// Channels within a feed-forward layer.
    pub intermediate_size: usize,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Heads of keys and values.
    pub num_key_value_heads: usize,
    /// Channels of a head.
    pub head_dim: usize,
    /// Experts of a layer that has them; 0 if none has.
    pub num_experts: usize,
    /// Experts of a token.
    pub num_experts_per_tok: usize,
    /// Channels within an expert.
    pub moe_intermediate_size: usize,
    /// Over what the router's softmax goes.
    pub softmax: Softmax,
    /// α and c of [`Activation::Clamped`](crate::ops::gated_mlp::Activation::Clamped), where experts clamp.
    pub clamp: Option<[f64; 2]>,
    /// ε of every norm.
    pub rms_norm_eps: f64,
    /// True if the embedding is the head.
    pub tie_word_embeddings: bool,
    /// True if query, key and value projections have a bias.
    pub query_key_value_bias: bool,
    /// True if attention's output projection has a bias.
    pub output_bias: bool,
    /// True if feed-forward layers have biases.
    pub mlp_bias: bool,
    /// Embeddings are multiplied by it.
    pub embedding_multiplier: f64,
    /// q·k is multiplied by it.
    pub attention_multiplier: f64,
    /// Factor of the outputs of attention and feed-forward layers, before they are added to the stream.
    pub residual_multiplier: f64,
    /// Logits are divided by it.
    pub logits_scaling: f64,
    /// Tokens that the model was made for, if the file says.
    pub max_position_embeddings: Option<usize>,
    /// The RoPEs that layers have.
    pub ropes: Vec<RopeConfig>,
    /// Kind of each layer.
    pub layers: Vec<LayerConfig>,
}

/// Kind of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerConfig {
    /// Number of tokens that it reads, its own among them, if it has a window.
    pub window: Option<usize>,
    /// Index of its RoPE, if it has one.
    pub rope: Option<usize>,
    /// True if it has experts in place of one feed-forward layer.
    pub experts: bool,
}

impl paths::Config for Config {
    fn path(&self) -> &'static Path {
        &PATH
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

    sizes! {
        head_dim, hidden_size, intermediate_size, moe_intermediate_size, num_attention_heads, num_experts,
        num_experts_per_tok, num_key_value_heads, vocab_size
    }

    fn layer_types(&self, layer: usize) -> Vec<&'static str> {
        let layer = self.layers[layer];
        let mut types = vec![
            if layer.window.is_some() {
                "sliding_attention"
            } else {
                "full_attention"
            },
            if layer.experts { "experts" } else { "dense" },
        ];
        if self.family.norm_before_weight {
            types.push("norm_before_weight");
        }
        types
    }

    fn lacks(&self, site: &SiteInfo) -> bool {
        is_tied_head(site, self.tie_word_embeddings)
    }

    /// Caches of layers with a window forget, and do not grow.
    fn tokens_per_row(&self, site: &SiteInfo, layer: usize) -> Option<usize> {
        site.cache?;
        self.layers[layer].window.is_none().then_some(1)
    }

    fn tensors(&self) -> Vec<TensorSpec> {
        asked::<f32, _>(|load| self.model(load, &mut crate::Plain))
    }
}

impl<T: paths::Scalar> paths::Loads<T> for Config {
    fn load(
        &self,
        weights: &mut Source<'_>,
        numerics: &mut dyn Numerics<T>,
    ) -> Result<Box<dyn paths::Model<T>>, LoadError> {
        Ok(Box::new(self.model(&mut paths::Loader::new(weights), numerics)?))
    }
}

/// Says whether a site is the weights of a head that has none of its own.
pub(in crate::paths) fn is_tied_head(site: &SiteInfo, tied: bool) -> bool {
    tied && site.name == HEAD_WEIGHT
}
