//! Decoder-only transformers in which most layers have a gated delta rule instead of attention: Qwen3-Next, Qwen3.5 and
//! Kimi-Linear.
//!
//! The maths, the tensor names and the configuration files are those of `transformers`. [`FAMILIES`] lists the differences
//! between the families. Full attention and feed-forward layers are those of [`gqa`](super::gqa), with the same names of sites
//! (the tensors that a hook can change). In addition, attention has an output gate, and there is a shared expert next to the
//! routed experts. The text below describes Qwen's families; [`kimi`] describes the differences of Kimi-Linear.
//!
//! Norms are zero-centred, x̂ · (1 + w); 1 + w is computed when a model is loaded. Some checkpoint tensors hold several weights:
//! queries with gates and, in Qwen3-Next, `in_proj_qkvz` and `in_proj_ba`. The loader splits such a tensor into its weights, each
//! with its own site. A format with one scale for several outputs therefore computes each scale from the outputs of one weight,
//! not of the whole checkpoint tensor.
//!
//! # Layers with a delta rule
//!
//! ```text
//! q, k, v = silu(conv(W_qkv x))       convolution over the last tokens; its last inputs are the first part of the state
//! q, k = q/‖q‖, k/‖k‖                 by head
//! β = σ(W_b x)                        g = −exp(A_log) · softplus(W_a x + dt_bias)
//! o = gated delta rule (q, k, v, g, β), scale K^−½; its matrices, one for each value head, are the second part of the state
//! y = W_o (rmsnorm(o) · w · silu(W_z x))
//! ```
//!
//! x is the layer's input, w the weight of the norm, K the number of channels of a key, and W are the weights of linear layers. A
//! call with one token uses the recurrence; a call with more tokens uses chunks of 64 ([`CHUNK`]), as implementations do.

mod config;
mod delta;
mod families;
pub mod kimi;
mod latent;
mod parts;
mod read;
pub mod sites;

pub use super::gqa::{LayerConfig, Routing};
pub use config::{Config, Hybrid};
pub use delta::CHUNK;
pub use families::{Experts, FAMILIES, Family, Form};
pub use sites::SITES;

use super::Path;

/// Transformers with a gated delta rule in most layers.
pub static PATH: Path = Path {
    name: "hybrid",
    model_types: || FAMILIES.iter().map(|family| family.model_type).collect(),
    sites: SITES,
    read: |json, inert| Ok(Box::new(read::config(json, inert)?)),
    nearest: |_| None,
};
