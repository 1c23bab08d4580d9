//! The ground that the other crates stand on: number formats, layouts of scales, tensors in files, metrics, errors.
//!
//! Nothing here runs an experiment, prints, or knows of a GPU. The models are in `reference`.
//!
//! | module | what is in it |
//! |---|---|
//! | [`formats`] | elements, scales, block formats, KV records as bytes |
//! | [`layouts`] | where a GEMM wants its scales |
//! | [`metrics`] | one file a metric; moments gathered in one f64 pass |
//! | [`vacuous`](mod@vacuous) | which bounds nothing can break |
//! | [`tensorfile`] | safetensors and npy, read and written |
//! | [`close`] | whether two tensors are close, element by element |
//! | [`accumulator`] | how tensor cores sum, bit for bit |

#![deny(missing_docs)]

pub mod accumulator;
pub mod atomic;
pub mod close;
pub mod error;
pub mod formats;
pub mod input;
pub mod layouts;
pub mod list;
pub mod metrics;
pub mod pattern;
pub mod random;
pub mod record;
pub mod tensorfile;
pub mod text;
pub mod vacuous;

pub use error::{Error, Exit, Result};
