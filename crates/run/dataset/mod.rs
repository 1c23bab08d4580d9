//! Data sets listed in `datasets/manifest.toml`, and model checkpoints in safetensors with their tokenizers.

mod checkpoint;
mod manifest;
mod quantized;
mod shards;
mod strict;
mod tokenizer;
mod unread;

pub use checkpoint::Checkpoint;
pub use manifest::{DataFile, Dataset, Kind, Manifest, find_root_from};
pub use shards::Tensors;
pub use strict::{at_byte, explain_beside, parse_toml, suggestion};
pub use tokenizer::{Tokenizer, Tokens};
