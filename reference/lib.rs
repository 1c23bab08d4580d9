//! The oracle (reference implementation): LLM models in plain Rust, generic over the scalar type [`Real`] (f32, or f64 to check
//! the f32 results). The implementation of one kind of model is called a *path*.
//!
//! A path computes a model exactly as the model is defined, without GPU kernels, quantized formats or approximations. It passes
//! named tensors ([`Site`]) to an implementation of [`Numerics`], which may observe, round or replace each tensor. Results are
//! bit-identical for any number of threads.
//!
//! # Models
//!
//! A model consists of a configuration and [`Weights`](paths::Weights), which return tensors by name. This example loads a
//! model from a folder, feeds it five tokens, and records the queries of its first layer:
//!
#![cfg_attr(feature = "safetensors", doc = "```")]
#![cfg_attr(not(feature = "safetensors"), doc = "```ignore")]
//! use reference::paths::deepseek_v4::{Config, Model, sites};
//! use reference::weights::Safetensors;
//! use reference::{Numerics, Plain, Real, Site, Tensor};
//!
//! /// Keeps the tensors of one site.
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
//!     // The state is kept between runs: run one more token, without a recorder.
//!     let next = model.run(&mut state, &[9], &mut Plain)?;
//!     assert_eq!(next.shape, [1, config.vocab_size]);
//!     assert!(next.data.iter().all(|logit| logit.is_finite()));
//!     Ok(())
//! }
//! # // A model of the crate's tests, in a folder with the layout of a checkpoint.
//! # let fixture = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/dsv4-small");
//! # let folder = tempfile::tempdir()?;
//! # std::fs::copy(fixture.join("config.json"), folder.path().join("config.json"))?;
//! # std::fs::copy(fixture.join("weights.safetensors"), folder.path().join("model.safetensors"))?;
//! # queries(folder.path())?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Enable the feature `float_roundtrip` of `serde_json`: without this feature, a number of the configuration may be off by one
//! ulp.
//!
//! # Paths
//!
//! A *path* is the implementation of one kind of model. [`PATHS`](paths::PATHS) lists the paths with named tensors (sites); all
//! of them have the same interface ([`paths::Model`]). The first three paths compute their models as `transformers` defines them.
//!
//! | Path | Model | Input and output | State |
//! |---|---|---|---|
//! | [`paths::deepseek_v4`] | DeepSeek-V4 | token ids → logits | KV caches and compressors (1) |
//! | [`paths::gqa`] | Llama, Mistral, Qwen2, Qwen3, Mixtral, gpt-oss, similar models | token ids → logits | caches of keys and values |
//! | [`paths::hybrid`] | Qwen3-Next, Qwen3.5, Kimi-Linear | token ids → logits | matrices, convolution inputs, KV caches (2) |
//! | [`paths::swap_ffn`] | Swap-FFN: swaps vectors with memory | vector → vector to add, per sequence | vectors in memory (3) |
//!
//! 1. The type is [`State`](paths::deepseek_v4::State), stored and restored as [`StateParts`](paths::deepseek_v4::StateParts).
//! 2. Most layers have a gated delta rule, whose state has matrices; the other layers have gated attention, or latent attention
//!    (MLA) in Kimi-Linear.
//! 3. The type is [`State`](paths::swap_ffn::State), whose fields are all public: the vectors, the order of their use, and the
//!    number of tokens.
//!
//! This example runs the model of a folder without knowing its path:
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
//! Two modules of [`ops`] are not paths: each implements several forms of one recurrence. [`ops::linear_attention`] has the
//! gated delta rule, Kimi delta attention and lightning attention; its [`State`](ops::linear_attention::State) is a pool of
//! matrices. [`ops::diagonal_ssm`] is a diagonal state-space model. The other [operations](ops) are the parts of the models.
//!
//! # Add a path
//!
//! A path consists of a folder in `reference/paths` and an entry of [`PATHS`](paths::PATHS):
//!
//! 1. `sites.rs` has the table of the path's sites, written with the macro [`sites!`]. A row gives the layers of the site
//!    ([`layered`](SiteInfo::layered)), its kind (a decision, [`choice`](SiteInfo::choice), or a tensor that is computed only on
//!    request, [`watched`](SiteInfo::watched)), the cache that stores its tensors ([`cached`](SiteInfo::cached)), and whether
//!    comparisons include it ([`compared`](SiteInfo::compared)). It also marks the residual stream ([`enters`](SiteInfo::enters)
//!    a layer, [`leaves`](SiteInfo::leaves) a layer) and the [`output`](SiteInfo::output) of the model.
//! 2. `config.rs` has a type that `serde` reads from `config.json`, with a validation. The type implements [`paths::Config`]
//!    (the macro [`sizes!`] writes one of its methods) and [`paths::Loads`].
//! 3. `model.rs` has two types. The type of the weights is generic over [`Real`], is loaded by a [`paths::Loader`] from
//!    [`Weights`](paths::Weights), and implements [`paths::Model`]. The type of the state implements [`paths::State`]. A run
//!    calls [`Numerics`] at every site of the table. [`paths::asked`] returns the list of tensors that the loader requests.
//! 4. `path.rs` has a static [`paths::Path`].
//! 5. `tests/paths/fixtures.rs` has a small model of the path. Tests then check every call of [`Numerics`] against the layers,
//!    the columns and the kind in the table, and that the table lists every site. `tests/paths/tiny.rs` is a complete path of
//!    about a hundred lines, with a key cache, a value cache, and a recurrent state of fixed size.
//!
//! The table in [`paths`] names the methods to implement for a path with other caches, inputs or checkpoint families.
//!
//! # Further reading
//!
//! 1. [`Tensor`] and [`Real`]: the tensors and the scalar types of a computation. [`Bounded`] numbers carry the bound of the
//!    error of an f32 computation.
//! 2. [`paths`]: finding, loading and running models; the module `weights` (feature `safetensors`) reads files.
//! 3. [`Site`] and [`SiteInfo`]: the named tensors and decisions. The module `sites` of a path has the names and a list, `SITES`.
//! 4. [`Numerics`]: the hooks that are called at sites; the hook of a discrete decision has the argument [`Choice`].
//! 5. [`Operations`]: a trait by which other code replaces whole operations.

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
