//! Reading checkpoints.

mod codes;
mod decoding;
mod folders;
mod written;

use reference::weights::{Error, Safetensors as Tensors};

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
