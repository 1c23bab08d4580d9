//! Checkpoints in safetensors files as [`Weights`](crate::paths::Weights): the feature `safetensors`, on by default.
//!
//! [`Safetensors::open`] takes a file or a folder. Weights are stored as F64, F32, BF16 or F16, or as FP8 codes (E4M3 of the OCP
//! "FN" kind, or E5M2), which need a scale. The scale of `NAME` is the tensor `NAME_scale` or `NAME_scale_inv` (which multiplies,
//! in spite of its name), or `X.scale` if `NAME` is `X.weight`; two of these tensors are an error. Scales are F32, BF16, F16 or
//! E8M0; U8 is read as E8M0, for blocks of 32 columns only. The shape of the scales gives the elements that share a scale; for a
//! weight `[out, in]`:
//!
//! | shape of the scales | elements that share a scale |
//! |---|---|
//! | one element, any shape | the whole tensor |
//! | `[out]`, `[out, 1]` | a row |
//! | `[out, n]` | `in / n` columns of a row if that is a whole number; otherwise 128 columns if `n = ⌈in / 128⌉` |
//! | `[⌈out / 128⌉, ⌈in / 128⌉]` | a block of 128 × 128 |
//!
//! The first matching row applies. A block size from [`Safetensors::in_blocks`] is tried before `[out, n]`, and it replaces
//! the size 128 × 128. Dimensions before these two are experts: each expert has its own scales, or all experts share the same
//! scales; `[1, 1]` after the expert dimensions is one scale for the whole matrix. A weight is `fl32(code · scale)`: code and
//! scale are converted exactly, and the product is rounded once. F64 is rounded to nearest even. An element that is not finite
//! is an error.
//!
//! A matrix `[out, in]` may be stored as E2M1 codes `[out, in / 2]` of type U8 or I8, two per byte with the first in the lower
//! half, and E8M0 scales `[out, in / 32]`, as DeepSeek-V4 stores experts.
//!
//! If a stack of matrices `NAME` `[count, inputs, outputs]` does not exist itself, it may be stored as blocks of MXFP4, as
//! gpt-oss does: codes `NAME_blocks` `[count, outputs, inputs / 32, 16]`, two codes per byte with the first in the lower half,
//! and E8M0 scales `NAME_scales` `[count, outputs, inputs / 32]`, both U8.
//!
//! If a matrix `X.experts.N.gate_proj.weight` does not exist itself, it may be part of a stack (one tensor for all experts)
//! without scales, as Qwen3.5 stores experts. `gate_proj` is the first half of the rows of expert N in `X.experts.gate_up_proj`
//! `[count, 2 · inner, hidden]`, and `up_proj` is the second half. `down_proj` is expert N in `X.experts.down_proj` `[count,
//! hidden, inner]`. Conversely, a stack that a model requests may be stored as single matrices with these names.
//!
//! If a matrix of a dense layer, `X.mlp.gate_proj.weight`, `up_proj` or `down_proj`, does not exist itself, it may be stored as
//! `X.block_sparse_moe.gate_proj.weight`, without a scale, as `transformers` stores Kimi-Linear's matrices.
//!
//! Integers (tables of indices) may be stored in any integer type of 8 to 64 bits.
//!
//! ```no_run
//! use reference::weights::Safetensors;
//!
//! let weights = Safetensors::open("a/folder")?;
//! let norm = weights.floats("model.norm.weight", &[4096])?;
//! # Ok::<(), reference::weights::Error>(())
//! ```

mod decode;
mod error;
mod file;
mod stacks;

pub use error::{Error, Problem};
pub use file::Safetensors;
