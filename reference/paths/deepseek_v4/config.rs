//! Configuration of a DeepSeek-V4 model.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::Model;
use crate::ops::compressor::Pooling;
use crate::ops::rope::{Yarn, frequencies};
use crate::paths::keys::{MOST_LAYERS, MOST_SIZE};
use crate::paths::{TensorSpec, asked};

/// Maximum number of iterations of the Sinkhorn normalisation; published models use 20.
const MOST_ITERATIONS: usize = 1000;

/// Type of a layer, by the keys that the layer attends to in addition to the keys of its window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub enum LayerType {
    /// Sliding window only.
    #[serde(rename = "sliding_attention")]
    Sliding,
    /// Sparse (CSA): the layer attends to the compressed entries that its indexer selects.
    #[serde(rename = "compressed_sparse_attention")]
    Sparse,
    /// Heavy (HCA): the layer attends to all compressed entries.
    #[serde(rename = "heavily_compressed_attention")]
    Heavy,
}

/// Router of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum RouterType {
    /// Looks up the experts by token id in a table.
    #[serde(rename = "hash_moe")]
    Hash,
    /// Selects the experts by logits computed from the token's vector.
    #[serde(rename = "moe")]
    Learned,
}

impl LayerType {
    /// Returns the name in `config.json`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sliding => "sliding_attention",
            Self::Sparse => "compressed_sparse_attention",
            Self::Heavy => "heavily_compressed_attention",
        }
    }
}

/// Parameters of the frequencies of a RoPE, see [`frequencies`](crate::ops::rope::frequencies). Cosines and sines are not
/// scaled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeParameters {
    /// Base of the frequencies, θ.
    pub rope_theta: f64,
    /// YaRN, which extends the context length used in training; `None` without YaRN.
    pub yarn: Option<Yarn>,
}

impl RopeParameters {
    /// Creates a RoPE with this base and without YaRN.
    pub fn plain(rope_theta: f64) -> Self {
        let yarn = None;
        Self { rope_theta, yarn }
    }
}

/// The two RoPEs of a model: one for sliding layers, one for layers with a compressor.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeByLayer {
    /// RoPE of sliding layers.
    pub main: RopeParameters,
    /// RoPE of layers with a compressor, and of their indexers.
    pub compress: RopeParameters,
}

/// Configuration of a model, with the names of `config.json`. Unknown keys that may change the result are errors.
/// Read a configuration with `serde_json`, or write it as a literal:
///
/// ```
/// use reference::paths::deepseek_v4::{Config, LayerType, RopeByLayer, RopeParameters, RouterType};
///
/// let rope = RopeParameters::plain(10_000.0);
/// let config = Config {
///     vocab_size: 256,
///     hidden_size: 64,
///     moe_intermediate_size: 48,
///     num_hidden_layers: 2,
///     num_attention_heads: 4,
///     head_dim: 32,
///     qk_rope_head_dim: 8,
///     q_lora_rank: 16,
///     num_experts_per_tok: 2,
///     n_routed_experts: 4,
///     routed_scaling_factor: 1.5,
///     swiglu_limit: 10.0,
///     sliding_window: 128,
///     o_groups: 2,
///     o_lora_rank: 16,
///     index_n_heads: 2,
///     index_head_dim: 16,
///     index_topk: 8,
///     hc_mult: 4,
///     hc_sinkhorn_iters: 20,
///     hc_eps: 1e-6,
///     rms_norm_eps: 1e-6,
///     compress_rates: [("compressed_sparse_attention".into(), 4)].into(),
///     rope_parameters: RopeByLayer {
///         main: rope,
///         compress: rope,
///     },
///     layer_types: vec![LayerType::Sliding, LayerType::Sparse],
///     mlp_layer_types: vec![RouterType::Hash, RouterType::Learned],
///     max_position_embeddings: None,
/// };
/// assert_eq!(config.check(), Ok(()));
/// assert_eq!(config.tensors()[0].name, "model.embed_tokens.weight");
/// ```
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(try_from = "Map<String, Value>")]
pub struct Config {
    /// Number of token ids.
    pub vocab_size: usize,
    /// Number of channels of a residual stream.
    pub hidden_size: usize,
    /// Number of channels within an expert.
    pub moe_intermediate_size: usize,
    /// Number of layers.
    pub num_hidden_layers: usize,
    /// Number of query heads; there is one head of keys and values.
    pub num_attention_heads: usize,
    /// Number of channels of a head.
    pub head_dim: usize,
    /// Number of channels that RoPE rotates (the last channels of each head); even.
    pub qk_rope_head_dim: usize,
    /// Rank of the query projection, which is a product of two matrices.
    pub q_lora_rank: usize,
    /// Number of routed experts per token.
    pub num_experts_per_tok: usize,
    /// Number of routed experts; there is one shared expert in addition.
    pub n_routed_experts: usize,
    /// Factor γ of the weights of routed experts, see [`router::weights`](crate::ops::router::weights).
    pub routed_scaling_factor: f64,
    /// Clamp limit c of [`experts`](crate::ops::experts).
    pub swiglu_limit: f64,
    /// Number of tokens in the window, including the token itself.
    pub sliding_window: usize,
    /// Number of groups of heads that the output projection projects separately.
    pub o_groups: usize,
    /// Rank of the output projection of each group of heads.
    pub o_lora_rank: usize,
    /// Number of heads of the indexer.
    pub index_n_heads: usize,
    /// Number of channels of a head of the indexer.
    pub index_head_dim: usize,
    /// Number of compressed entries that the indexer selects.
    pub index_topk: usize,
    /// Number of residual streams.
    pub hc_mult: usize,
    /// Number of iterations of the Sinkhorn normalisation.
    pub hc_sinkhorn_iters: usize,
    /// Term ε of [`hyper_connection`](crate::ops::hyper_connection).
    pub hc_eps: f64,
    /// Term ε of every norm.
    pub rms_norm_eps: f64,
    /// Number of tokens per compressed cache entry, for each layer type with a compressor: `compressed_sparse_attention` and
    /// `heavily_compressed_attention`.
    pub compress_rates: BTreeMap<String, usize>,
    /// RoPE of sliding layers, and RoPE of layers with a compressor.
    pub rope_parameters: RopeByLayer,
    /// Type of each layer, which gives the keys that the layer attends to.
    pub layer_types: Vec<LayerType>,
    /// Router of each layer.
    pub mlp_layer_types: Vec<RouterType>,
    /// Maximum context length in tokens; `None` if `config.json` does not state it.
    pub max_position_embeddings: Option<usize>,
}

impl Config {
    /// Checks the configuration for every inconsistency that could make loading or running fail.
    ///
    /// # Errors
    /// Returns the first inconsistency, with the names of the keys.
    pub fn check(&self) -> Result<(), String> {
        let positive = fields! {
            self: vocab_size hidden_size moe_intermediate_size num_hidden_layers num_attention_heads head_dim
                qk_rope_head_dim q_lora_rank num_experts_per_tok n_routed_experts sliding_window o_groups o_lora_rank
                index_n_heads index_head_dim index_topk hc_mult hc_sinkhorn_iters
        };
        for (name, value) in positive {
            let most = match name {
                "num_hidden_layers" => MOST_LAYERS,
                "hc_sinkhorn_iters" => MOST_ITERATIONS,
                _ => MOST_SIZE,
            };
            match value {
                0 => return Err(format!("{name} is 0")),
                value if value > most => return Err(format!("{name} is {value}, expected at most {most}")),
                _ => {}
            }
        }
        for (name, len) in [
            ("layer_types", self.layer_types.len()),
            ("mlp_layer_types", self.mlp_layer_types.len()),
        ] {
            if len != self.num_hidden_layers {
                return Err(format!(
                    "{name} has {len} entries, num_hidden_layers is {}",
                    self.num_hidden_layers
                ));
            }
        }
        let rope = self.qk_rope_head_dim;
        if !rope.is_multiple_of(2) || rope > self.head_dim || rope > self.index_head_dim {
            let (head, index) = (self.head_dim, self.index_head_dim);
            return Err(format!(
                "qk_rope_head_dim {rope} is not even, or more than head_dim {head} or index_head_dim {index}"
            ));
        }
        if !self.num_attention_heads.is_multiple_of(self.o_groups) {
            let (heads, groups) = (self.num_attention_heads, self.o_groups);
            return Err(format!(
                "num_attention_heads {heads} is not a multiple of o_groups {groups}"
            ));
        }
        if self.num_experts_per_tok > self.n_routed_experts {
            let (chosen, all) = (self.num_experts_per_tok, self.n_routed_experts);
            return Err(format!(
                "num_experts_per_tok {chosen} is more than n_routed_experts {all}"
            ));
        }
        for layer in &self.layer_types {
            if *layer != LayerType::Sliding && self.rate(*layer).is_none_or(|rate| rate == 0) {
                return Err(format!("compress_rates has no positive entry for {layer:?} layers"));
            }
        }
        Ok(())
    }

    /// Returns the number of tokens per entry of the compressed cache of this type of layers; `None` if the layers have no
    /// compressed cache.
    pub fn rate(&self, layer: LayerType) -> Option<usize> {
        match layer {
            LayerType::Sliding => None,
            compressed => self.compress_rates.get(compressed.name()).copied(),
        }
    }

    /// Returns the sizes of the two compressors of this type of layer: one for keys, one for the indexer's keys. `None` for a
    /// compressor that the layer does not have.
    pub(super) fn pools(&self, layer: LayerType) -> [Option<Pooling>; 2] {
        let overlap = layer == LayerType::Sparse;
        let pool = |dim| self.rate(layer).map(|rate| Pooling { rate, overlap, dim });
        [pool(self.head_dim), pool(self.index_head_dim).filter(|_| overlap)]
    }

    /// Returns the number of tokens per entry of a layer's compressed cache; `None` if the layer has no compressed cache.
    pub fn compress_rate(&self, layer: usize) -> Option<usize> {
        self.rate(self.layer_types[layer])
    }

    /// Returns the frequencies of a layer's RoPE.
    pub fn rope_frequencies(&self, layer: LayerType) -> Vec<f32> {
        let rope = match layer {
            LayerType::Sliding => &self.rope_parameters.main,
            LayerType::Sparse | LayerType::Heavy => &self.rope_parameters.compress,
        };
        frequencies(self.qk_rope_head_dim, rope.rope_theta, rope.yarn)
    }

    /// Returns the list of all tensors of the model that [`Model::load`] reads, with the names of `transformers`.
    pub fn tensors(&self) -> Vec<TensorSpec> {
        asked::<f32, _>(|load| Model::of_parts(self.clone(), load))
    }
}
