//! Quantized tensors in files: where a file has them, which rule made their bytes, and whether a checkpoint is whole and plausible.
//!
//! A row is quantized to NVFP4, decoded and measured; then the rule that made its bytes is looked for:
//!
//! ```
//! use ulplab_core::formats::{Format, GlobalScale};
//! use ulplab_core::metrics::{COSINE, Pair, SQNR};
//! use ulplab_checkpoint::parity::{StoredBytes, diagnose};
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

#![deny(missing_docs)]

pub mod checkpoint;
pub mod packed;
pub mod parity;
