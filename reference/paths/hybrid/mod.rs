//! Decoder-only transformers in which most layers have a gated delta rule in the place of attention: Qwen3-Next, Qwen3.5 and
//! Kimi-Linear.
//!
//! The maths is that of `transformers`, whose tensor names and configuration files are used; [`FAMILIES`] lists what the families
//! differ in. Layers of full attention and feed-forward layers are those of [`gqa`](super::gqa), under the same names of sites;
//! attention has a gate at its output, and experts have a shared one next to them. What follows is of Qwen's families; [`kimi`] says
//! what differs in the other.
//!
//! Norms are zero-centred, x̂ · (1 + w); the sum is made when a model is loaded. Weights that a checkpoint has in one tensor, queries
//! with gates and, in Qwen3-Next, `in_proj_qkvz` and `in_proj_ba`, are taken apart as they are loaded, and each passes at a site of
//! its own: a format whose scales reach across outputs sees these parts.
//!
//! # The layers with a delta rule
//!
//! ```text
//! q, k, v = silu(conv(W_qkv x))       convolution over the last tokens, whose inputs are the first part of the state
//! q, k = q/‖q‖, k/‖k‖                 by head
//! β = σ(W_b x)                        g = −exp(A_log) · softplus(W_a x + dt_bias)
//! o = gated delta rule (q, k, v, g, β), scale K^−½; its matrices, one for each value head, are the second part of the state
//! y = W_o (rmsnorm(o) · w · silu(W_z x))
//! ```
//!
//! One token is computed by the recurrence, more in chunks of 64, as implementations do: [`CHUNK`].

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
    model_types: families::model_types,
    sites: SITES,
    read: |json, inert| Ok(Box::new(read::config(json, inert)?)),
    nearest: |_| None,
};
