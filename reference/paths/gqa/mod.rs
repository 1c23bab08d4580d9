//! Decoder-only transformers with grouped-query attention, dense or with a mixture of experts: Llama, Mistral, Qwen2, Qwen3,
//! gpt-oss and similar models.
//!
//! The maths, the tensor names and the configuration files are those of `transformers`. [`FAMILIES`] lists the differences
//! between the families. A configuration is read strictly: a key that the family's reader does not read is an error, unless the
//! key is known to leave the result unchanged.

pub(crate) mod attention;
mod config;
pub(crate) mod decoder;
mod families;
pub(crate) mod layer;
pub(crate) mod mlp;
pub(crate) mod model;
pub(crate) mod parts;
pub(crate) mod projections;
mod read;
pub mod sites;

pub use config::{Config, GroupedQuery};
pub use decoder::{Decoder, LayerConfig};
pub(in crate::paths) use families::SCALINGS;
pub use families::{Biases, Experts, FAMILIES, Family, QueryKeyNorm, Windows};
pub use mlp::Routing;
pub use sites::SITES;

use super::Path;

/// Context of a call of a layer (layer index, position, hooks, RoPE); its RoPE is `None` if the layer has no RoPE.
pub(in crate::paths) type Context<'a, T> = super::context::Context<'a, T, Option<&'a crate::ops::rope::Rope<T>>>;

/// Transformers with grouped-query attention.
pub static PATH: Path = Path {
    name: "gqa",
    model_types: || FAMILIES.iter().map(|family| family.model_type).collect(),
    sites: SITES,
    read: |json, inert| Ok(Box::new(read::config(json, inert)?)),
    nearest: read::nearest,
};
