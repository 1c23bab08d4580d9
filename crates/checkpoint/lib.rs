//! Quantized tensors in files: finds the parts of each tensor, names the rule that made their bytes (how scales are computed and
//! values are rounded), and checks that a checkpoint is complete and plausible.
//!
//! This example quantizes a row to NVFP4, decodes and measures it, then finds the rule that made its bytes:
//!
//! ```
//! use ulplab_core::formats::{Format, GlobalScale};
//! use ulplab_core::metrics::{COSINE, Pair, SQNR};
//! use ulplab_checkpoint::parity::{StoredBytes, diagnose};
//!
//! let x: Vec<f32> = (0..64).map(|i| (i as f32 * 0.7).sin()).collect();
//! // E2M1 elements, one E4M3 scale for each block of 16 elements, and one f32 global scale for the tensor.
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

#![deny(missing_docs)]

pub mod checkpoint;
pub mod packed;
pub mod parity;
