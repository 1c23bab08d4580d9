mod decode;
mod manifest;
mod shards;
mod strict;

pub use manifest::{DataFile, Dataset, Kind, Manifest, find_root, find_root_from};
pub use shards::Tensors;
pub use strict::parse_toml;
