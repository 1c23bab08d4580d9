//! The interface of every format and record: rounding a tensor through its stored bytes.

use safetensors::Dtype;

use super::block::Format;

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
        self.parts
            .iter()
            .find(|part| part.name == name)
            .map_or(&[], |part| &part.bytes)
    }
}

/// A way to store rows of channels.
pub trait Codec: Send + Sync {
    /// A string that parses back to the same codec.
    fn name(&self) -> String;

    /// A one-line description.
    fn doc(&self) -> &str;

    /// The block format that the name stands for; `None` for records.
    fn format(&self) -> Option<&Format> {
        None
    }

    /// Bytes per row in storage, scales and padding included, scales per tensor excluded.
    fn bytes_per_row(&self, cols: usize) -> f64;

    /// Checks that rows of this many channels can be encoded; the error says why not.
    fn check(&self, cols: usize) -> Result<(), String>;

    /// Encodes `[rows, cols]`; `x` may be empty.
    ///
    /// # Panics
    /// If [`Codec::check`] refuses `cols`, or `x` is not a whole number of rows.
    fn encode(&self, x: &[f32], cols: usize) -> Encoded;

    /// Like [`Codec::encode`], with a given largest magnitude instead of the tensor's own, as calibration provides. An
    /// error if the format has no scale per tensor.
    fn encode_under(&self, _amax: f32, _x: &[f32], _cols: usize) -> Result<Encoded, String> {
        Err(format!("record '{}' has no scale that a tensor shares", self.name()))
    }

    /// Decodes stored bytes to values.
    ///
    /// # Panics
    /// If `out` does not have `rows · cols` elements, or `encoded` is not of this codec.
    fn decode(&self, encoded: &Encoded, out: &mut [f32]);

    /// Replaces `[rows, cols]` by the values that are read back after storing it.
    fn round(&self, x: &mut [f32], cols: usize) {
        let encoded = self.encode(x, cols);
        self.decode(&encoded, x);
    }
}

/// Checks `cols`, and returns the number of rows.
pub(super) fn rows(codec: &dyn Codec, len: usize, cols: usize) -> usize {
    if let Err(why) = codec.check(cols) {
        panic!("{why}");
    }
    assert_eq!(len % cols, 0, "{len} elements are not whole rows of {cols}");
    len / cols
}
