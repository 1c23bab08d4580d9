//! A configuration of any family.

use super::{Family, Form, PATH};
use crate::ops::linear_attention::Sizes;
use crate::paths::gqa::{Routing, is_tied_head};
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
    /// Channels within a feed-forward layer; 0 if no layer has a single one.
    pub intermediate_size: usize,
    /// Query heads of full attention.
    pub num_attention_heads: usize,
    /// Heads of keys and values of full attention.
    pub num_key_value_heads: usize,
    /// Channels of a query and of a key of full attention.
    pub head_dim: usize,
    /// Channels of a value of full attention.
    pub v_head_dim: usize,
    /// Channels of a latent that keys and values are projections of; 0 if there are none.
    pub kv_lora_rank: usize,
    /// Channels of a key that are such a projection, the first ones; 0 if there are none.
    pub qk_nope_head_dim: usize,
    /// Channels of a key that all heads share, the others; 0 if there are none.
    pub qk_rope_head_dim: usize,
    /// True if the projections of full attention have a bias; with latents only the one to these and the one from the heads.
    pub attention_bias: bool,
    /// Key heads of the delta rule.
    pub linear_num_key_heads: usize,
    /// Value heads of the delta rule, a multiple of its key heads.
    pub linear_num_value_heads: usize,
    /// Channels of a key of the delta rule.
    pub linear_key_head_dim: usize,
    /// Channels of a value of the delta rule.
    pub linear_value_head_dim: usize,
    /// Tokens that the convolution reads.
    pub linear_conv_kernel_dim: usize,
    /// Channels of the convolution: those of all queries, keys and values of the delta rule.
    pub linear_conv_channels: usize,
    /// Channels between the two projections that decays, and output gates, are made by; 0 if they are made by one.
    pub linear_low_rank: usize,
    /// Experts of a layer that has them; 0 if none has.
    pub num_experts: usize,
    /// Experts of a token.
    pub num_experts_per_tok: usize,
    /// Channels within an expert.
    pub moe_intermediate_size: usize,
    /// Channels within the shared expert, or within all shared experts, which are one layer.
    pub shared_expert_intermediate_size: usize,
    /// Selection and weights of a token's experts.
    pub routing: Routing,
    /// ε of every norm but that of the delta rule's queries and keys.
    pub rms_norm_eps: f64,
    /// True if the embedding is the head.
    pub tie_word_embeddings: bool,
    /// Tokens that the model was made for, if the file says.
    pub max_position_embeddings: Option<usize>,
    /// The RoPE of full attention, if it has positions.
    pub rope: Option<RopeConfig>,
    /// Kind of each layer.
    pub layers: Vec<LayerConfig>,
}

/// Kind of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerConfig {
    /// True if it has full attention in place of the delta rule.
    pub full: bool,
    /// True if it has experts in place of one feed-forward layer.
    pub experts: bool,
}

impl Config {
    /// The sizes of the delta rule.
    pub fn delta_sizes(&self) -> Sizes {
        Sizes {
            heads: self.linear_num_key_heads,
            value_heads: self.linear_num_value_heads,
            key_dim: self.linear_key_head_dim,
            value_dim: self.linear_value_head_dim,
        }
    }
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
        self.rope.as_ref().and_then(|rope| rope.most_tokens)
    }

    sizes! {
        head_dim, hidden_size, intermediate_size, kv_lora_rank, linear_conv_channels, linear_conv_kernel_dim,
        linear_key_head_dim, linear_low_rank, linear_num_key_heads, linear_num_value_heads,
        linear_value_head_dim, moe_intermediate_size, num_attention_heads, num_experts, num_experts_per_tok,
        num_key_value_heads, qk_nope_head_dim, qk_rope_head_dim, shared_expert_intermediate_size, v_head_dim,
        vocab_size
    }

    fn layer_types(&self, layer: usize) -> Vec<&'static str> {
        let LayerConfig { full, experts } = self.layers[layer];
        let kimi = self.family.form == Form::Kimi;
        let mixer: &[&str] = match (full, kimi) {
            (true, false) => &["full_attention"],
            (true, true) => &["latent_attention"],
            (false, false) => &["linear_attention", "head_decay"],
            (false, true) => &["linear_attention", "channel_decay"],
        };
        let mlp: &[&str] = match (experts, kimi) {
            (false, _) => &["dense"],
            (true, false) => &["experts", "weighed_shared_expert"],
            (true, true) => &["experts"],
        };
        [mixer, mlp].concat()
    }

    fn lacks(&self, site: &SiteInfo) -> bool {
        is_tied_head(site, self.tie_word_embeddings)
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
