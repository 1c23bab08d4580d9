//! The oracle: LLM model paths in plain Rust, generic over [`Real`] (f32, and f64 as the check on f32).
//!
//! A path computes what a model's definition says, without kernels, formats or approximations. Code that wants to watch, round
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
//! A *path* is a kind of model: [`PATHS`](paths::PATHS) lists those with sites, and all of them enter by the same door.
//!
//! | Path | Model | Input and output | State |
//! |---|---|---|---|
//! | [`paths::deepseek_v4`] | DeepSeek-V4, as `transformers` defines it | token ids → logits | [`State`](paths::deepseek_v4::State): KV caches, compressors; stored and restored as [`StateParts`](paths::deepseek_v4::StateParts) |
//! | [`paths::gqa`] | Llama, Mistral, Qwen2, Qwen3, Mixtral, gpt-oss and their like, as `transformers` defines them | token ids → logits | keys and values apart |
//! | [`paths::hybrid`] | Qwen3-Next and Qwen3.5, as `transformers` defines them: a gated delta rule in most layers, gated attention in the others | token ids → logits | matrices and convolution inputs of delta rules, keys and values of attention |
//! | [`paths::swap_ffn`] | Swap-FFN: vectors exchanged with banks of memory | a vector of each sequence → its delta | [`State`](paths::swap_ffn::State): banks and maps, all public |
//!
//! This runs a folder's model without knowing which it is:
//!
#![cfg_attr(feature = "safetensors", doc = "```")]
#![cfg_attr(not(feature = "safetensors"), doc = "```ignore")]
//! use reference::paths::{self, Input, Model};
//! use reference::weights::Safetensors;
//! use reference::{Plain, Tensor};
//!
//! fn last(folder: &std::path::Path, ids: &[u32]) -> Result<Tensor<f32>, Box<dyn std::error::Error>> {
//!     let config = paths::read(&std::fs::read_to_string(folder.join("config.json"))?)?;
//!     let mut weights = Safetensors::open(folder)?;
//!     let model: Box<dyn Model<f32>> = paths::load(&*config, &mut weights, &mut Plain)?;
//!     let mut state = model.state(Vec::new())?;
//!     let (prompt, next) = ids.split_at(ids.len() - 1);
//!     model.run(&mut *state, Input::Ids(prompt), &mut Plain)?;
//!     Ok(model.run(&mut *state, Input::Ids(next), &mut Plain)?)
//! }
//! # let fixture = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/dsv4-small");
//! # let folder = tempfile::tempdir()?;
//! # std::fs::copy(fixture.join("config.json"), folder.path().join("config.json"))?;
//! # std::fs::copy(fixture.join("weights.safetensors"), folder.path().join("model.safetensors"))?;
//! # assert_eq!(last(folder.path(), &[3, 1, 4])?.shape, [1, 96]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Two modules of [`ops`] are not paths, but operations with several forms of one recurrence each:
//! [`ops::linear_attention`] (gated delta rule, Kimi delta attention, lightning attention; its
//! [`State`](ops::linear_attention::State) is a pool of matrices) and [`ops::diagonal_ssm`] (a diagonal state-space model).
//! Other [operations](ops) are the parts that models are made of.
//!
//! # Add a path
//!
//! A path is one folder in `reference/paths` and one line in [`PATHS`](paths::PATHS):
//!
//! 1. `sites.rs` has the table of its sites, one in a row, written by [`sites!`]. A row says where the site stands
//!    ([`layered`](SiteInfo::layered)), what passes there ([`choice`](SiteInfo::choice), [`watched`](SiteInfo::watched)), which
//!    cache it goes to ([`cached`](SiteInfo::cached)), whether comparisons look at it ([`compared`](SiteInfo::compared)), and
//!    which are the residual stream ([`enters`](SiteInfo::enters), [`leaves`](SiteInfo::leaves)) and the
//!    [`output`](SiteInfo::output).
//! 2. `config.rs` has a type that `serde` reads from `config.json`, with a check. It implements [`paths::Config`], for
//!    which the macro [`sizes!`] writes a method, and [`paths::Loads`].
//! 3. `model.rs` has a type of its weights, generic over [`Real`], which a [`paths::Loader`] takes from
//!    [`Weights`](paths::Weights), and a type of its state. They implement [`paths::Model`] and [`paths::State`]; a run calls
//!    [`Numerics`] at every site of the table. [`paths::asked`] gives the list of tensors that the loader asks for.
//! 4. `path.rs` has a static [`paths::Path`].
//! 5. `tests/paths/fixtures.rs` has a small model of it. Tests then hold every call to the table: its layers, its columns, its
//!    kind, and that nothing is passed that is not listed. `tests/paths/tiny.rs` is a whole path of about a hundred lines, with
//!    keys and values that are cached apart and a cache that is a state.
//!
//! The table in [`paths`] says how a path with other caches, inputs or families of checkpoints says so.
//!
//! # Where to read on
//!
//! 1. [`Tensor`] and [`Real`]: what is computed, and in what.
//!    [`Bounded`] numbers say what error an f32 computation may have.
//! 2. [`paths`]: how models are found, loaded and run; the module `weights` (feature `safetensors`) reads files.
//! 3. [`Site`] and [`SiteInfo`]: the named places; each path lists its own in `SITES` and has their names in its module `sites`.
//! 4. [`Numerics`]: what may happen there; [`Choice`] is what passes where a model decides.
//! 5. [`Operations`]: how other code stands in for whole operations.

#![deny(missing_docs)]

pub mod bounded;
pub mod errors;
pub mod numerics;
pub mod operations;
pub mod ops;
pub mod paths;
pub mod real;
pub mod sites;
pub mod tensor;
#[cfg(feature = "safetensors")]
pub mod tensorfile;
#[cfg(feature = "safetensors")]
pub mod weights;

pub use bounded::Bounded;
pub use errors::LAMBDA;
pub use numerics::{Choice, Numerics, Plain};
pub use operations::Operations;
pub use real::Real;
pub use sites::{Role, Site, SiteInfo, SiteKind};
pub use tensor::Tensor;
