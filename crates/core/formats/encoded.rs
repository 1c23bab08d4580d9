//! Encoded tensors, as formats and KV-cache records store them: arrays of bytes, each with a name, a type and a shape.

use safetensors::Dtype;

/// A quantized tensor as it is stored: its codes, scales and zero points in separate arrays.
#[derive(Clone, Debug, PartialEq)]
pub struct Encoded {
    /// Number of rows: the product of all dimensions except the last.
    pub rows: usize,
    /// Number of columns, the last dimension.
    pub cols: usize,
    /// Arrays in the order of the format string: `data`, `scale`, `zero`, `global`. A KV-cache record has only the array `pages`.
    pub parts: Vec<Part>,
}

/// A named array of bytes, ready to be written to safetensors.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// Name within the encoded tensor, e.g. `data` or `scale`.
    pub name: &'static str,
    /// Type of the array's elements; packed 4-bit codes are `U8`, two per byte.
    pub dtype: Dtype,
    /// Shape in units of `dtype`, so packed 4-bit codes have half as many columns as the tensor.
    pub shape: Vec<usize>,
    /// The contents, row-major and little-endian.
    pub bytes: Vec<u8>,
}

impl Encoded {
    /// Returns the bytes of the part with this name; empty if the tensor has no such part.
    pub fn part(&self, name: &str) -> &[u8] {
        let part = self.parts.iter().find(|part| part.name == name);
        part.map_or(&[], |part| &part.bytes)
    }
}
