//! Checks numbers that kernels and quantizers store. The crate has number formats, layouts of scales, tensors in files,
//! metrics, parity (which rule made the bytes of a quantized tensor), and operations with their cases, expected outputs and
//! bounds.
//!
//! Nothing here runs an experiment, prints, or knows of a GPU. The models are in `reference`.
//!
//! A row is quantized to NVFP4, decoded and measured; then the rule that made its bytes is looked for:
//!
//! ```
//! use ulplab_core::formats::{Format, GlobalScale};
//! use ulplab_core::metrics::{COSINE, Pair, SQNR};
//! use ulplab_core::parity::{StoredBytes, diagnose};
//!
//! let x: Vec<f32> = (0..64).map(|i| (i as f32 * 0.7).sin()).collect();
//! // Elements of E2M1, a scale of E4M3 for each 16 of them, and an f32 above the scales.
//! let format: Format = "e2m1/b16:e4m3/t:f32".parse()?;
//! let encoded = format.encode(&x, 64, GlobalScale::Own);
//!
//! let mut y = vec![0.0; x.len()];
//! format.decode(&encoded, &mut y);
//! let pair = Pair::new(&x, &y);
//! assert!(COSINE.measure(&pair).unwrap() > 0.99);
//! assert!(SQNR.measure(&pair).unwrap() > 15.0);
//!
//! let diagnosis = diagnose(&x, 64, &StoredBytes::from(&encoded), &format, true);
//! assert!(diagnosis.explained(), "{}", diagnosis.conclusion());
//! # Ok::<(), String>(())
//! ```
//!
//! | module | what is in it |
//! |---|---|
//! | [`formats`] | elements, scales, block formats, KV records as bytes |
//! | [`layouts`] | where a GEMM wants its scales |
//! | [`metrics`] | one file a metric; moments gathered in one f64 pass |
//! | [`vacuous`](mod@vacuous) | which bounds nothing can break |
//! | [`tensorfile`] | safetensors and npy, read and written |
//! | [`packed`] | quantized tensors in files |
//! | [`parity`] | which rule made the bytes of a quantized tensor, or what went wrong |
//! | [`checkpoint`] | whether a quantized checkpoint is whole and plausible |
//! | [`close`] | whether two tensors are close, element by element |
//! | [`expected`] | what operations give on tensors of a user, and how far a right kernel may be from it |
//! | [`accumulator`] | how tensor cores sum, bit for bit |
//! | [`ops`] | what kernels compute: cases, inputs, expected outputs, bounds |

#![deny(missing_docs)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod accumulator;
pub mod atomic;
pub mod checkpoint;
pub mod close;
pub mod error;
pub mod expected;
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
pub mod text;
pub mod vacuous;

pub use error::{Error, Exit, Result};
