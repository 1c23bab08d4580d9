//! Configuration of a model with delta rules and attention: one type for all families of models.

use super::{Family, Form, PATH};
use crate::Real;
use crate::ops::linear_attention::Sizes;
use crate::paths::gqa::decoder::Decodes;
use crate::paths::gqa::layer::Layer;
use crate::paths::gqa::parts::Parts;
use crate::paths::gqa::{Decoder, LayerConfig};
use crate::paths::{LoadError, Path};

/// Sizes of a model and the kinds of its layers, read from a `config.json` by [`PATH`].
pub type Config = Decoder<Hybrid>;

/// Properties of a model in which most layers have a delta rule and the other layers have attention.
#[derive(Clone, Debug)]
pub struct Hybrid {
    /// Model family: properties that the `config.json` of a model does not state.
    pub family: &'static Family,
    /// Channels of a value of one attention head.
    pub v_head_dim: usize,
    /// Channels of a latent, from which keys and values are projected; 0 without latents.
    pub kv_lora_rank: usize,
    /// Channels of a key that are projected from the latent (the first channels); 0 without latents.
    pub qk_nope_head_dim: usize,
    /// Channels of a key that all heads share (the last channels); 0 without latents.
    pub qk_rope_head_dim: usize,
    /// True if the attention projections have a bias. In attention over latents, only the projection to latents and the output
    /// projection may have a bias.
    pub attention_bias: bool,
    /// Numbers of heads of the delta rule, and channels per head.
    pub delta: Sizes,
    /// Kernel size of the convolution in tokens.
    pub linear_conv_kernel_dim: usize,
    /// Channels of the convolution: all query, key and value channels of the delta rule.
    pub linear_conv_channels: usize,
    /// Rank of the low-rank projections to decays and to output gates; 0 if these projections are not low-rank.
    pub linear_low_rank: usize,
    /// Channels within the shared expert; several shared experts are merged into one layer with the sum of their channels.
    pub shared_expert_intermediate_size: usize,
}

impl Decodes for Hybrid {
    const PATH: &'static Path = &PATH;

    fn sizes(&self) -> Vec<(&'static str, usize)> {
        let delta = [
            ("linear_key_head_dim", self.delta.key_dim),
            ("linear_num_key_heads", self.delta.heads),
            ("linear_num_value_heads", self.delta.value_heads),
            ("linear_value_head_dim", self.delta.value_dim),
        ];
        let others = fields! {
            self: kv_lora_rank linear_conv_channels linear_conv_kernel_dim linear_low_rank qk_nope_head_dim
                qk_rope_head_dim shared_expert_intermediate_size v_head_dim
        };
        [&delta[..], &others].concat()
    }

    fn layer_types(&self, layer: LayerConfig) -> Vec<&'static str> {
        let kimi = self.family.form == Form::Kimi;
        let mixer: &[&str] = match (layer.full, kimi) {
            (true, false) => &["full_attention"],
            (true, true) => &["latent_attention"],
            (false, false) => &["linear_attention", "head_decay"],
            (false, true) => &["linear_attention", "channel_decay"],
        };
        let mlp: &[&str] = match (layer.experts, kimi) {
            (false, _) => &["dense"],
            (true, false) => &["experts", "weighed_shared_expert"],
            (true, true) => &["experts"],
        };
        [mixer, mlp].concat()
    }

    fn prefix(&self) -> &'static str {
        match self.family.nested {
            Some(_) => "model.language_model.",
            None => "model.",
        }
    }

    fn centred(&self) -> bool {
        self.family.form != Form::Kimi
    }

    fn layer<T: Real>(parts: &mut Parts<'_, '_, '_, T, Self>, layer: LayerConfig) -> Result<Layer<T>, LoadError> {
        parts.layer(layer)
    }
}
