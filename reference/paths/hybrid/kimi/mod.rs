//! Kimi-Linear: differences from the hybrid models of Qwen.
//!
//! Norms are not zero-centred. Each token goes through experts selected by sigmoid scores plus a bias, and through shared
//! experts. Tensor names are those of published checkpoints. Files that `transformers` stores have the same names, except for
//! dense layers: [`Safetensors`](crate::weights::Safetensors) maps these names.
//!
//! # Layers with a delta rule (KDA)
//!
//! ```text
//! q, k, v = silu(conv(W x))           three projections and three convolutions; at the sites, they are joined
//! g = −exp(A_log) · softplus(W_fb W_fa x + dt_bias)    a log decay for each key channel, which is a row of the state
//! y = W_o (rmsnorm(o) · w · σ(W_gb W_ga x))
//! ```
//!
//! x is the layer's input, o the output of the delta rule, w the weight of the norm, and W are the weights of linear layers. The
//! number of key heads equals the number of value heads, and keys have as many channels as values.
//!
//! # Layers with attention (MLA)
//!
//! ```text
//! [c, s] = W_a x                      c is a latent, s a part of the keys that all heads share; rmsnorm(c) and s are cached
//! [k_h, v_h] = W_b rmsnorm(c)         for each head
//! o_h = attention of q_h on [k_h, s] and v_h, scale (channels of a whole key)^−½
//! ```
//!
//! Positions are not embedded: the key `qk_rope_head_dim` gives the number of channels of s, but RoPE does not rotate s.
//! The norm of latents has its own ε, 1e-6 ([`LATENT_EPS`]), independent of the configuration.

mod parts;
mod read;

pub(super) use read::config;

/// ε of the RMSNorm of latents.
pub const LATENT_EPS: f64 = 1e-6;
