//! The oracle: LLM model paths in plain Rust, generic over [`Real`] (f32, and f64 as the check on f32).
//!
//! A path computes what a model's definition says, without kernels, formats or approximations. Whoever wants to watch, round
//! or replace a tensor on its way implements [`Numerics`] and is called at every named [`Site`]. Bits do not depend on the
//! number of threads.
//!
//! # Models
//!
//! A model is made of a configuration and of [`Weights`](paths::Weights), which give tensors by name. This loads one from a
//! folder, feeds it five tokens, and records the queries of its first layer:
//!
#![cfg_attr(feature = "safetensors", doc = "```")]
#![cfg_attr(not(feature = "safetensors"), doc = "```ignore")]
//! use reference::paths::deepseek_v4::{Config, Model, sites};
//! use reference::weights::Safetensors;
//! use reference::{Numerics, Plain, Real, Site, Tensor};
//!
//! /// Keeps what passes at one site.
//! struct Recorder<T>(Vec<Tensor<T>>);
//!
//! impl<T: Real> Numerics<T> for Recorder<T> {
//!     fn site(&mut self, site: &Site, tensor: &mut Tensor<T>) {
//!         if site.layer == Some(0) && site.name == sites::QUERY {
//!             self.0.push(tensor.clone());
//!         }
//!     }
//! }
//!
//! fn queries(folder: &std::path::Path) -> Result<(), Box<dyn std::error::Error>> {
//!     let config: Config = serde_json::from_str(&std::fs::read_to_string(folder.join("config.json"))?)?;
//!     let mut weights = Safetensors::open(folder)?;
//!     let model: Model<f32> = Model::load(config, &mut weights)?;
//!
//!     let mut state = model.state();
//!     let mut recorder = Recorder(Vec::new());
//!     let logits = model.run(&mut state, &[3, 1, 4, 1, 5], &mut recorder)?;
//!     let (config, query) = (model.config(), &recorder.0[0]);
//!     assert_eq!(logits.shape, [5, config.vocab_size]);
//!     assert_eq!(query.shape, [5, config.num_attention_heads, config.head_dim]);
//!
//!     // The state goes on: one more token, and nobody watches.
//!     let next = model.run(&mut state, &[9], &mut Plain)?;
//!     assert_eq!(next.shape, [1, config.vocab_size]);
//!     assert!(next.data.iter().all(|logit| logit.is_finite()));
//!     Ok(())
//! }
//! # // A model of the crate's tests, in a folder as checkpoints come.
//! # let fixture = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/dsv4-small");
//! # let folder = tempfile::tempdir()?;
//! # std::fs::copy(fixture.join("config.json"), folder.path().join("config.json"))?;
//! # std::fs::copy(fixture.join("weights.safetensors"), folder.path().join("model.safetensors"))?;
//! # queries(folder.path())?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! `serde_json` should have its feature `float_roundtrip`: without it a number of the configuration may be one ulp off.
//!
//! # Paths
//!
//! | Path | Model | Input and output | State |
//! |---|---|---|---|
//! | [`paths::deepseek_v4`] | DeepSeek-V4, as `transformers` defines it | token ids → logits | [`State`](paths::deepseek_v4::State): KV caches, compressors; stored and restored as [`StateParts`](paths::deepseek_v4::StateParts) |
//! | [`paths::swap_ffn`] | Swap-FFN: vectors exchanged with banks of memory | a vector of each sequence → its delta | [`State`](paths::swap_ffn::State): banks and maps, all public |
//! | [`ops::linear_attention`] | gated delta rule, Kimi delta attention, lightning attention | q, k, v, decays, β → o | [`State`](ops::linear_attention::State): a pool of matrices |
//! | [`ops::diagonal_ssm`] | a diagonal state-space model | u → y | a tensor |
//!
//! The first two are whole models with sites. The last two are operations with several forms of one recurrence each; other
//! [operations](ops) are the parts that models are made of.
//!
//! # Where to read on
//!
//! 1. [`Tensor`] and [`Real`]: what is computed, and in what.
//! 2. [`paths`]: [`Weights`](paths::Weights), and what models ask of it; the module `weights` (feature `safetensors`) reads files.
//! 3. [`Site`] and [`SiteInfo`]: the named places; each path lists its own in `SITES` and has their names in its module `sites`.
//! 4. [`Numerics`]: what may happen there; [`Choice`] is what passes where a model decides.
//! 5. [`Operations`]: how other code stands in for whole operations.

#![deny(missing_docs)]

pub mod numerics;
pub mod operations;
pub mod ops;
pub mod paths;
pub mod real;
pub mod sites;
pub mod tensor;
#[cfg(feature = "safetensors")]
pub mod weights;

pub use numerics::{Choice, Numerics, Plain};
pub use operations::Operations;
pub use real::Real;
pub use sites::{Role, Site, SiteInfo, SiteKind};
pub use tensor::Tensor;
