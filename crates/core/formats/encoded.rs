//! Tensors as formats and records store them.

use safetensors::Dtype;

/// A tensor as it is stored.
#[derive(Clone, Debug, PartialEq)]
pub struct Encoded {
    /// Rows of the tensor; its last dimension is `cols`, and all others are counted as rows.
    pub rows: usize,
    /// Columns of the tensor.
    pub cols: usize,
    /// In the order of the format string: `data`, `scale`, `global`; a record has `pages` only.
    pub parts: Vec<Part>,
}

/// A named array of bytes, ready to be written to safetensors.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// Name within the encoded tensor, e.g. `data` or `scale`.
    pub name: &'static str,
    /// Packed 4-bit codes are `U8`, two per byte.
    pub dtype: Dtype,
    /// Shape in units of `dtype`, so packed 4-bit codes have half as many columns as the tensor.
    pub shape: Vec<usize>,
    /// The contents, row-major and little-endian.
    pub bytes: Vec<u8>,
}

impl Encoded {
    /// The bytes of the part with this name; empty if there is no such part.
    pub fn part(&self, name: &str) -> &[u8] {
        let part = self.parts.iter().find(|part| part.name == name);
        part.map_or(&[], |part| &part.bytes)
    }
}
