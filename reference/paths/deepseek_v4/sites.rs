//! The named places of the path.

use super::config::{Config, LayerType, RouterType};
use crate::{SiteInfo, SiteKind};

/// Residual streams that enter the layer, `[T, hc_mult, hidden_size]`.
pub const INPUT: &str = "input";
/// Attention's input, mixed from the streams and normed, `[T, hidden_size]`.
pub const ATTENTION_INPUT: &str = "attention.input";
/// Queries after norm and RoPE, `[T, num_attention_heads, head_dim]`.
pub const QUERY: &str = "attention.query";
/// KV vectors of the window cache, after norm and RoPE, `[T, head_dim]`.
pub const WINDOW: &str = "attention.kv.window";
/// New entries of the compressed KV cache, after norm and RoPE, `[n, head_dim]`.
pub const COMPRESSED: &str = "attention.kv.compressed";
/// Indexer queries after RoPE, `[T, index_n_heads, index_head_dim]`.
pub const INDEX_QUERY: &str = "attention.indexer.query";
/// New indexer keys, after norm and RoPE, `[n, index_head_dim]`.
pub const INDEX_KEY: &str = "attention.indexer.key";
/// Entries the indexer selects, a choice `[T, index_topk]`.
pub const TOPK: &str = "attention.indexer.topk";
/// Attention probability of each selected entry, mean over heads, `[T, index_topk]`; watched only.
pub const MASS: &str = "attention.indexer.mass";
/// Attention's result by head, RoPE undone, `[T, num_attention_heads, head_dim]`.
pub const HEADS: &str = "attention.heads";
/// Attention's output after its projections, `[T, hidden_size]`.
pub const ATTENTION_OUTPUT: &str = "attention.output";
/// The experts' input, mixed from the streams and normed, `[T, hidden_size]`.
pub const MOE_INPUT: &str = "moe.input";
/// Experts a learned router selects, a choice `[T, num_experts_per_tok]`.
pub const ROUTER: &str = "moe.router";
/// The shared expert's two projections, before the activation, `[T, 2 · moe_intermediate_size]`; watched only.
pub const GATE_UP: &str = "moe.gate_up";
/// Sum of the experts, `[T, hidden_size]`.
pub const MOE_OUTPUT: &str = "moe.output";
/// Residual streams that leave the layer, `[T, hc_mult, hidden_size]`.
pub const OUTPUT: &str = "output";
/// Logits, `[T, vocab_size]`.
pub const LOGITS: &str = "logits";

const fn layered(name: &'static str, kind: SiteKind, shape: &'static str, doc: &'static str) -> SiteInfo {
    SiteInfo {
        name,
        in_layers: true,
        kind,
        shape,
        doc,
    }
}

/// Every site of the path, in the order it is passed.
pub const SITES: &[SiteInfo] = &[
    layered(
        INPUT,
        SiteKind::Tensor,
        "[T, hc_mult, hidden_size]",
        "residual streams that enter the layer",
    ),
    layered(
        ATTENTION_INPUT,
        SiteKind::Tensor,
        "[T, hidden_size]",
        "attention's input, mixed from the streams and normed",
    ),
    layered(
        QUERY,
        SiteKind::Tensor,
        "[T, num_attention_heads, head_dim]",
        "queries after norm and RoPE",
    ),
    layered(
        WINDOW,
        SiteKind::Tensor,
        "[T, head_dim]",
        "KV vectors of the window cache, after norm and RoPE",
    ),
    layered(
        COMPRESSED,
        SiteKind::Tensor,
        "[n, head_dim]",
        "new entries of the compressed KV cache, after norm and RoPE",
    ),
    layered(
        INDEX_QUERY,
        SiteKind::Tensor,
        "[T, index_n_heads, index_head_dim]",
        "indexer queries after RoPE",
    ),
    layered(
        INDEX_KEY,
        SiteKind::Tensor,
        "[n, index_head_dim]",
        "new indexer keys, after norm and RoPE",
    ),
    layered(TOPK, SiteKind::Choice, "[T, index_topk]", "entries the indexer selects"),
    layered(
        MASS,
        SiteKind::Watch,
        "[T, index_topk]",
        "attention probability of each selected entry, mean over heads",
    ),
    layered(
        HEADS,
        SiteKind::Tensor,
        "[T, num_attention_heads, head_dim]",
        "attention's result by head, RoPE undone",
    ),
    layered(
        ATTENTION_OUTPUT,
        SiteKind::Tensor,
        "[T, hidden_size]",
        "attention's output after its projections",
    ),
    layered(
        MOE_INPUT,
        SiteKind::Tensor,
        "[T, hidden_size]",
        "the experts' input, mixed from the streams and normed",
    ),
    layered(
        ROUTER,
        SiteKind::Choice,
        "[T, num_experts_per_tok]",
        "experts a learned router selects",
    ),
    layered(
        GATE_UP,
        SiteKind::Watch,
        "[T, 2 · moe_intermediate_size]",
        "the shared expert's two projections, before the activation",
    ),
    layered(MOE_OUTPUT, SiteKind::Tensor, "[T, hidden_size]", "sum of the experts"),
    layered(
        OUTPUT,
        SiteKind::Tensor,
        "[T, hc_mult, hidden_size]",
        "residual streams that leave the layer",
    ),
    SiteInfo {
        name: LOGITS,
        in_layers: false,
        kind: SiteKind::Tensor,
        shape: "[T, vocab_size]",
        doc: "logits",
    },
];

impl Config {
    /// Whether a site is passed in a layer (`None`: outside the layers).
    pub fn has_site(&self, layer: Option<usize>, name: &str) -> bool {
        let Some(layer) = layer else { return name == LOGITS };
        match name {
            LOGITS => false,
            COMPRESSED => self.layer_types[layer] != LayerType::Sliding,
            INDEX_QUERY | INDEX_KEY | TOPK | MASS => self.layer_types[layer] == LayerType::Sparse,
            ROUTER => self.mlp_layer_types[layer] == RouterType::Learned,
            _ => true,
        }
    }

    /// Channels of a row (the last dimension) at a site that passes a tensor.
    pub fn site_cols(&self, name: &str) -> usize {
        match name {
            QUERY | WINDOW | COMPRESSED | HEADS => self.head_dim,
            INDEX_QUERY | INDEX_KEY => self.index_head_dim,
            MASS => self.index_topk,
            GATE_UP => 2 * self.moe_intermediate_size,
            LOGITS => self.vocab_size,
            _ => self.hidden_size,
        }
    }

    /// Channels of all that belongs to one token at such a site: its rows of all streams or heads together.
    pub fn token_cols(&self, name: &str) -> usize {
        let rows = match name {
            INPUT | OUTPUT => self.hc_mult,
            QUERY | HEADS => self.num_attention_heads,
            INDEX_QUERY => self.index_n_heads,
            _ => 1,
        };
        rows * self.site_cols(name)
    }
}
