//! Tensors written to files, for tests of what reads them.

use std::path::Path;

use reference::paths::TensorSpec;
use safetensors::Dtype;
use safetensors::tensor::TensorView;

/// A tensor to write.
#[derive(Clone, Debug)]
pub struct Written {
    pub name: String,
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

pub fn tensor(name: &str, dtype: Dtype, shape: &[usize], bytes: impl Into<Vec<u8>>) -> Written {
    Written {
        name: name.into(),
        dtype,
        shape: shape.to_vec(),
        bytes: bytes.into(),
    }
}

pub fn f32s(name: &str, shape: &[usize], values: &[f32]) -> Written {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    tensor(name, Dtype::F32, shape, bytes)
}

pub fn serialize(tensors: &[Written]) -> Vec<u8> {
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

pub fn write(path: &Path, tensors: &[Written]) {
    std::fs::write(path, serialize(tensors)).unwrap();
}

/// A folder with one `model.safetensors`.
pub fn folder(tensors: &[Written]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    write(&folder.path().join("model.safetensors"), tensors);
    folder
}

pub fn spec(name: &str, shape: &[usize], integer: bool) -> TensorSpec {
    TensorSpec {
        name: name.into(),
        shape: shape.to_vec(),
        integer,
    }
}
