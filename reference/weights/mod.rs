//! Checkpoints in safetensors files as [`Weights`](crate::paths::Weights): the feature `safetensors`, on by default.
//!
//! [`Safetensors::open`] takes a file or a folder. Weights are stored as F64, F32, BF16 or F16, or as FP8 codes (E4M3 of the
//! OCP "FN" kind, or E5M2) that mean nothing without a scale. The scale of `NAME` is the tensor `NAME_scale` or
//! `NAME_scale_inv` (which multiplies, in spite of its name), or `X.scale` where `NAME` is `X.weight`; having two is an
//! error. Scales are F32, BF16, F16 or E8M0. The shape of the scales tells what each covers; for a weight `[out, in]`:
//!
//! | scales | each covers |
//! |---|---|
//! | one in all, of any shape | the whole tensor |
//! | `[out]`, `[out, 1]` | a row |
//! | `[out, n]` | `in / n` columns of a row if that is a whole number, else 128 if `n = ⌈in / 128⌉` |
//! | `[⌈out / 128⌉, ⌈in / 128⌉]` | a block of 128 × 128 |
//!
//! The first that fits holds. Dimensions before these two (experts) have a scale each, or one for all; `[1, 1]` behind them is
//! one for the whole matrix. A weight is `fl32(code · scale)`, both widened exactly: rounded once. F64 is rounded to nearest
//! even. An element that is not finite is an error.
//!
//! A stack `NAME` `[count, inputs, outputs]` that is not there itself may be stored as blocks of MXFP4, as gpt-oss does: codes
//! `NAME_blocks` `[count, outputs, inputs / 32, 16]`, of two codes to a byte the lower half first, and E8M0 scales `NAME_scales`
//! `[count, outputs, inputs / 32]`, both U8.
//!
//! A matrix `X.experts.N.gate_proj.weight` that is not there itself may be a part of a stack without scales, as Qwen3.5 stores
//! them: of `X.experts.gate_up_proj` `[count, 2 · inner, hidden]` the first rows of its expert, `up_proj` of the same the others, and
//! `down_proj` of `X.experts.down_proj` `[count, hidden, inner]` all.
//!
//! A matrix of a dense layer, `X.mlp.gate_proj.weight`, `up_proj` or `down_proj`, that is not there itself may be
//! `X.block_sparse_moe.gate_proj.weight`, without a scale, as `transformers` stores Kimi-Linear's.
//!
//! Integers (tables of indices) are stored as any integer type of 8 to 64 bits.
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
