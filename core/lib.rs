//! What ulplab judges with, for other programs to build on: number formats, layouts of scales, tensors in files, metrics, which
//! rule made the bytes of a quantized tensor, and operations with their cases, expected outputs and bounds.
//!
//! Nothing here runs an experiment, prints, or knows of a GPU; the models are in `reference`.
//!
//! | module | what is in it |
//! |---|---|
//! | [`formats`] | elements, scales, block formats, KV records as bytes |
//! | [`layouts`] | where a GEMM wants its scales |
//! | [`metrics`] | one file a metric; moments gathered in one f64 pass |
//! | [`tensorfile`] | safetensors and npy, read and written |
//! | [`packed`] | quantized tensors in files |
//! | [`parity`] | which rule made the bytes of a quantized tensor, or what went wrong |
//! | [`ops`] | what kernels compute: cases, inputs, expected outputs, bounds |

#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod atomic;
pub mod error;
pub mod formats;
pub mod input;
pub mod layouts;
pub mod metrics;
pub mod ops;
pub mod packed;
pub mod parity;
pub mod pattern;
pub mod random;
pub mod record;
pub mod tensorfile;

pub use error::{Error, Exit, Result};
