//! Data sets: the manifest, and reading checkpoints.

#[path = "dataset/checkpoint.rs"]
mod checkpoint;
#[path = "../reference/tests/weights/decoding.rs"]
mod decoding;
#[path = "dataset/folders.rs"]
mod folders;
#[path = "dataset/keys.rs"]
mod keys;
#[path = "dataset/manifest.rs"]
mod manifest;
#[path = "dataset/packed.rs"]
mod packed;
#[path = "dataset/saved.rs"]
mod saved;
#[path = "dataset/tokenizer.rs"]
mod tokenizer;
#[path = "../reference/tests/weights/written.rs"]
mod written;

use ulplab::Error;
use ulplab::dataset::Tensors;

use written::{Written, f32s, folder, serialize, spec, tensor, write};

/// The message of the error, after checking that it holds every part.
#[track_caller]
fn fails<T>(result: Result<T, Error>, parts: &[&str]) -> String {
    let message = result.err().expect("an error").to_string();
    for part in parts {
        assert!(message.contains(part), "no '{part}' in: {message}");
    }
    message
}
