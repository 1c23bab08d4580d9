//! Kimi-Linear: what differs from Qwen's hybrids.
//!
//! Norms are not zero-centred. Every token goes to experts that a sigmoid and a bias select, and through shared ones. Names of tensors
//! are those of published checkpoints; what `transformers` stores is the same except the names of dense layers, which
//! [`Safetensors`](crate::weights::Safetensors) knows.
//!
//! # Layers with a delta rule (KDA)
//!
//! ```text
//! q, k, v = silu(conv(W x))           three projections and three convolutions, which pass as one
//! g = −exp(A_log) · softplus(W_fb W_fa x + dt_bias)    a log decay for each key channel, which is a row of the state
//! y = W_o (rmsnorm(o) · w · σ(W_gb W_ga x))
//! ```
//!
//! There are as many key heads as value heads, and keys are as long as values.
//!
//! # Layers with attention (MLA)
//!
//! ```text
//! [c, s] = W_a x                      c is a latent, s a part of the keys that all heads share; rmsnorm(c) and s are cached
//! [k_h, v_h] = W_b rmsnorm(c)         for each head
//! o_h = attention of q_h on [k_h, s] and v_h, scale (channels of a whole key)^−½
//! ```
//!
//! Nothing has a position: the channels of s are named after RoPE, and none turns them. The norm of latents has its own ε, 1e-6
//! ([`LATENT_EPS`]), independent of the configuration.

mod parts;
mod read;

pub(super) use read::config;

/// ε of the norm of latents.
pub const LATENT_EPS: f64 = 1e-6;
