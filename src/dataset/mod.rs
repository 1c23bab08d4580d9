//! Data sets: what `datasets/manifest.toml` lists, and model checkpoints in safetensors.

mod checkpoint;
mod manifest;
mod shards;
mod strict;

pub use checkpoint::Checkpoint;
pub use manifest::{DataFile, Dataset, Kind, Manifest, find_root, find_root_from};
pub use shards::Tensors;
pub use strict::{explain, explain_beside, parse_toml};
