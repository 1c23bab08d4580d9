//! The named places of the path. The "layer" of a site is the event.

use super::config::Config;
use crate::{SiteInfo, SiteKind};

/// Embeddings of the cores, `[core_count, d_embed]`.
pub const EMBED: &str = "weights.core_embed";
/// FiLM's scale of an embedding, `[d_model, d_embed]`.
pub const SCALE_WEIGHT: &str = "weights.film_scale";
/// Bias of FiLM's scale, `[d_model]`.
pub const SCALE_BIAS: &str = "weights.film_scale_bias";
/// FiLM's shift of an embedding, `[d_model, d_embed]`.
pub const SHIFT_WEIGHT: &str = "weights.film_shift";
/// Bias of FiLM's shift, `[d_model]`.
pub const SHIFT_BIAS: &str = "weights.film_shift_bias";
/// Pooling logits of an embedding, `[collapse_k, d_embed]`.
pub const ALPHA_WEIGHT: &str = "weights.film_alpha";
/// Bias of the pooling logits, `[collapse_k]`.
pub const ALPHA_BIAS: &str = "weights.film_alpha_bias";
/// Weight of the router's norm, `[d_model]`.
pub const ROUTER_NORM: &str = "weights.router_norm";
/// The router's projection, `[d_router, d_model]`.
pub const ROUTER_W: &str = "weights.router_w";
/// Weight of the gate's logit, `[d_router]`.
pub const SWAP_W: &str = "weights.router_swap_w";
/// Bias of the gate's logit, `[1]`.
pub const SWAP_B: &str = "weights.router_swap_b";
/// Weights of the banks' logits, `[d_router, 4]`.
pub const BANK_W: &str = "weights.bank_w";
/// Biases of the banks' logits, `[4]`.
pub const BANK_B: &str = "weights.bank_b";
/// Weight of the FFN's norm, `[d_model]`.
pub const FFN_NORM: &str = "weights.norm";
/// The FFN's gate projection, `[d_ff, d_model]`.
pub const W1: &str = "weights.w1";
/// The FFN's up projection, `[d_ff, d_model]`.
pub const W3: &str = "weights.w3";
/// The FFN's down projection, `[d_model, d_ff]`.
pub const W2: &str = "weights.w2";
/// What pooled cores are multiplied by, `[collapse_k, collapse_r, d_model]`.
pub const BASIS: &str = "weights.collapse_basis";
/// The decoder, `[d_model, collapse_r]`.
pub const DECODER: &str = "weights.collapse_decoder";
/// S of FiLM, one added, `[core_count, d_model]`.
pub const SCALE: &str = "film.scale";
/// T of FiLM, `[core_count, d_model]`.
pub const SHIFT: &str = "film.shift";
/// A, a softmax over the cores, `[core_count, collapse_k]`.
pub const ALPHA: &str = "film.alpha";
/// The token, `[B, d_model]`.
pub const INPUT: &str = "input";
/// X before the first event, `[B · core_count, d_model]`.
pub const SPREAD: &str = "film.x";
/// The router's copy of x, `[B · core_count, d_model]`.
pub const ROUTER_INPUT: &str = "router.input";
/// That copy normed, where the router is unfolded, `[B · core_count, d_model]`.
pub const ROUTER_NORMED: &str = "router.n";
/// Its projection z, where the router is unfolded, `[B · core_count, d_router]`.
pub const ROUTER_Z: &str = "router.z";
/// Logits of the gate and of the four banks, `[B · core_count, 5]`.
pub const LOGITS: &str = "router.logits";
/// Sigmoid and softmax of the logits, where these decide, `[B · core_count, 5]`.
pub const PROBABILITIES: &str = "router.probabilities";
/// Whether x is exchanged (1) or stays (0): a choice `[B · core_count, 1]`.
pub const GATE: &str = "router.gate";
/// The lane of the bank it is exchanged with: a choice `[B · core_count, 1]`.
pub const BANK: &str = "router.bank";
/// What is stored in banks, `[rows that are exchanged, d_model]`.
pub const RAM: &str = "ram";
/// X normed, `[B · core_count, d_model]`.
pub const FFN_INPUT: &str = "ffn.n";
/// W1 n, `[B · core_count, d_ff]`.
pub const FFN_GATE: &str = "ffn.gate";
/// W3 n, `[B · core_count, d_ff]`.
pub const FFN_UP: &str = "ffn.up";
/// Silu of the gate, `[B · core_count, d_ff]`.
pub const FFN_SILU: &str = "ffn.silu";
/// Silu times up, `[B · core_count, d_ff]`.
pub const FFN_HIDDEN: &str = "ffn.h";
/// W2 h, `[B · core_count, d_model]`.
pub const FFN_DOWN: &str = "ffn.down";
/// X after an FFN step, `[B · core_count, d_model]`.
pub const X: &str = "x";
/// Sums of the cores, weighted by A, `[B, collapse_k · d_model]`.
pub const POOLED: &str = "collapse.pooled";
/// What the decoder reads, `[B, collapse_r]`.
pub const COLLAPSED: &str = "collapse.z";
/// What is to be added to the token, `[B, d_model]`.
pub const DELTA: &str = "delta";

const fn tensor(name: &'static str, shape: &'static str, doc: &'static str) -> SiteInfo {
    SiteInfo {
        name,
        in_layers: false,
        kind: SiteKind::Tensor,
        shape,
        doc,
    }
}

const fn event(name: &'static str, shape: &'static str, doc: &'static str) -> SiteInfo {
    SiteInfo {
        in_layers: true,
        ..tensor(name, shape, doc)
    }
}

const fn choice(name: &'static str, doc: &'static str) -> SiteInfo {
    SiteInfo {
        kind: SiteKind::Choice,
        ..event(name, "[B · core_count, 1]", doc)
    }
}

/// Every site of the path, in the order it is passed: parameters and what is made of them once when a model is loaded, the
/// others for every token. Sites of the FFN and `x` are passed in every FFN step.
pub const SITES: &[SiteInfo] = &[
    tensor(EMBED, "[core_count, d_embed]", "embeddings of the cores"),
    tensor(SCALE_WEIGHT, "[d_model, d_embed]", "FiLM's scale of an embedding"),
    tensor(SCALE_BIAS, "[d_model]", "its bias"),
    tensor(SHIFT_WEIGHT, "[d_model, d_embed]", "FiLM's shift of an embedding"),
    tensor(SHIFT_BIAS, "[d_model]", "its bias"),
    tensor(ALPHA_WEIGHT, "[collapse_k, d_embed]", "pooling logits of an embedding"),
    tensor(ALPHA_BIAS, "[collapse_k]", "their bias"),
    tensor(ROUTER_NORM, "[d_model]", "weight of the router's norm"),
    tensor(ROUTER_W, "[d_router, d_model]", "the router's projection"),
    tensor(SWAP_W, "[d_router]", "weight of the gate's logit"),
    tensor(SWAP_B, "[1]", "its bias"),
    tensor(BANK_W, "[d_router, 4]", "weights of the banks' logits"),
    tensor(BANK_B, "[4]", "their bias"),
    tensor(FFN_NORM, "[d_model]", "weight of the FFN's norm"),
    tensor(W1, "[d_ff, d_model]", "the FFN's gate projection"),
    tensor(W3, "[d_ff, d_model]", "the FFN's up projection"),
    tensor(W2, "[d_model, d_ff]", "the FFN's down projection"),
    tensor(
        BASIS,
        "[collapse_k, collapse_r, d_model]",
        "what pooled cores are multiplied by",
    ),
    tensor(DECODER, "[d_model, collapse_r]", "the decoder"),
    tensor(SCALE, "[core_count, d_model]", "S, one added"),
    tensor(SHIFT, "[core_count, d_model]", "T"),
    tensor(ALPHA, "[core_count, collapse_k]", "A, a softmax over the cores"),
    tensor(INPUT, "[B, d_model]", "the token"),
    tensor(SPREAD, "[B · core_count, d_model]", "x before the first event"),
    event(ROUTER_INPUT, "[B · core_count, d_model]", "the router's copy of x"),
    event(
        ROUTER_NORMED,
        "[B · core_count, d_model]",
        "that normed, where the router is unfolded",
    ),
    event(
        ROUTER_Z,
        "[B · core_count, d_router]",
        "its projection, where the router is unfolded",
    ),
    event(
        LOGITS,
        "[B · core_count, 5]",
        "logits of the gate and of the four banks",
    ),
    event(
        PROBABILITIES,
        "[B · core_count, 5]",
        "sigmoid and softmax of them, where these decide",
    ),
    choice(GATE, "whether x is exchanged (1) or stays (0)"),
    choice(BANK, "the lane of the bank it is exchanged with"),
    event(RAM, "[rows that are exchanged, d_model]", "what is stored in banks"),
    event(FFN_INPUT, "[B · core_count, d_model]", "x normed"),
    event(FFN_GATE, "[B · core_count, d_ff]", "W1 n"),
    event(FFN_UP, "[B · core_count, d_ff]", "W3 n"),
    event(FFN_SILU, "[B · core_count, d_ff]", "silu of the gate"),
    event(FFN_HIDDEN, "[B · core_count, d_ff]", "silu times up"),
    event(FFN_DOWN, "[B · core_count, d_model]", "W2 h"),
    event(X, "[B · core_count, d_model]", "x after an FFN step"),
    tensor(POOLED, "[B, collapse_k · d_model]", "sums of the cores, weighted by A"),
    tensor(COLLAPSED, "[B, collapse_r]", "what the decoder reads"),
    tensor(DELTA, "[B, d_model]", "what is to be added to the token"),
];

impl Config {
    /// Channels of a row at a site of the list.
    pub fn site_cols(&self, site: &SiteInfo) -> usize {
        let shape = site.shape.trim_matches(['[', ']']);
        match shape.rsplit(", ").next().unwrap_or_default() {
            "d_model" => self.d_model,
            "d_ff" => self.d_ff,
            "d_embed" => self.d_embed,
            "d_router" => self.d_router,
            "collapse_k" => self.collapse_k,
            "collapse_r" => self.collapse_r,
            "collapse_k · d_model" => self.collapse_k * self.d_model,
            number => number.parse().unwrap_or(1),
        }
    }
}
