//! Reading checkpoints.

#[path = "weights/decoding.rs"]
mod decoding;
#[path = "weights/folders.rs"]
mod folders;

use std::path::Path;

use reference::paths::TensorSpec;
use safetensors::Dtype;
use safetensors::tensor::TensorView;

/// A tensor to write.
#[derive(Clone, Debug)]
struct Written {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

fn tensor(name: &str, dtype: Dtype, shape: &[usize], bytes: impl Into<Vec<u8>>) -> Written {
    Written {
        name: name.into(),
        dtype,
        shape: shape.to_vec(),
        bytes: bytes.into(),
    }
}

fn f32s(name: &str, shape: &[usize], values: &[f32]) -> Written {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    tensor(name, Dtype::F32, shape, bytes)
}

fn serialize(tensors: &[Written]) -> Vec<u8> {
    let views: Vec<_> = tensors
        .iter()
        .map(|t| {
            (
                t.name.clone(),
                TensorView::new(t.dtype, t.shape.clone(), &t.bytes).unwrap(),
            )
        })
        .collect();
    safetensors::serialize(views, None).unwrap()
}

fn write(path: &Path, tensors: &[Written]) {
    std::fs::write(path, serialize(tensors)).unwrap();
}

/// A folder with one `model.safetensors`.
fn folder(tensors: &[Written]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    write(&folder.path().join("model.safetensors"), tensors);
    folder
}

fn spec(name: &str, shape: &[usize], integer: bool) -> TensorSpec {
    TensorSpec {
        name: name.into(),
        shape: shape.to_vec(),
        integer,
    }
}

/// The message of the error, after checking that it holds every part.
#[track_caller]
fn fails<T>(result: Result<T, reference::weights::Error>, parts: &[&str]) -> String {
    let message = result.err().expect("an error").to_string();
    for part in parts {
        assert!(message.contains(part), "no '{part}' in: {message}");
    }
    message
}
