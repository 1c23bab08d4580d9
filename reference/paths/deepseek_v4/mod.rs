//! DeepSeek-V4: prefill and decode with its compressed KV caches, lightning indexer, mHC and MoE.
//!
//! The mathematics is that of DeepSeek's inference code and of `DeepseekV4ForCausalLM` in `transformers`. The tensor names and
//! the configuration file are those of `transformers`.

mod config;
mod layer;
mod model;
mod path;
mod read;
pub mod sites;
mod state;

pub use crate::paths::Scalar;
pub use config::{Config, LayerType, RopeByLayer, RopeParameters, RouterType};
pub use model::Model;
pub use path::PATH;
pub use sites::SITES;
pub use state::{CacheParts, CompressedParts, LayerParts, State, StateParts};
