//! Tensors to be written to files.

use std::borrow::Cow;

use safetensors::Dtype;
use safetensors::tensor::View;

/// A tensor to be written.
#[derive(Clone)]
pub struct Array {
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

impl View for &Array {
    fn dtype(&self) -> Dtype {
        self.dtype
    }
    fn shape(&self) -> &[usize] {
        &self.shape
    }
    fn data(&self) -> Cow<'_, [u8]> {
        self.bytes.as_slice().into()
    }
    fn data_len(&self) -> usize {
        self.bytes.len()
    }
}

pub fn raw(dtype: Dtype, shape: &[usize], bytes: &[u8]) -> Array {
    Array {
        dtype,
        shape: shape.into(),
        bytes: bytes.into(),
    }
}

pub fn f32s(shape: &[usize], values: &[f32]) -> Array {
    let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    raw(Dtype::F32, shape, &bytes)
}
