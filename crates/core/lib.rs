//! Foundation of the other crates: number formats, layouts of scales, tensors in files, metrics, errors.
//!
//! No module here runs an experiment, prints, or uses a GPU. The crate `reference` contains the models.
//!
//! | module | contents |
//! |---|---|
//! | [`formats`] | elements, scales, block formats, KV records as bytes |
//! | [`layouts`] | memory layouts of the scales of a GEMM |
//! | [`metrics`] | metrics, computed from sums that one pass in f64 gathers |
//! | [`vacuous`](mod@vacuous) | detection of bounds that every measurement satisfies |
//! | [`tensorfile`] | safetensors and npy, read and written |
//! | [`close`] | comparison of two tensors, element by element |
//! | [`accumulator`] | bit-exact sums of tensor cores |

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
