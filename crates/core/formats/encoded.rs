//! Tensors in the form in which formats and records store them.

use safetensors::Dtype;

/// A tensor in its stored form.
#[derive(Clone, Debug, PartialEq)]
pub struct Encoded {
    /// Number of rows: the product of all dimensions except the last.
    pub rows: usize,
    /// Number of columns, the last dimension.
    pub cols: usize,
    /// Parts in the order of the format string: `data`, `scale`, `zero`, `global`; a record has only `pages`.
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
