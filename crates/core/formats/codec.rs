//! Interface of all formats and KV-cache records: encodes a tensor to bytes, and decodes the bytes.

use super::block::{Format, Group};
use super::encoded::Encoded;
use super::quantize::GlobalScale;

/// Encoding of the rows of a tensor: a number format, or a KV-cache record (the byte layout of a cached token).
pub trait Codec: Send + Sync {
    /// Returns a string that parses to the same codec.
    fn name(&self) -> String;

    /// Returns a one-line description.
    fn doc(&self) -> &str;

    /// Returns the block format of the codec; `None` for KV-cache records.
    fn format(&self) -> Option<&Format> {
        None
    }

    /// Returns the number of stored bytes per row. They include padding and scales, except a scale that the whole tensor shares.
    fn bytes_per_row(&self, cols: usize) -> f64;

    /// Checks that rows of `cols` channels can be encoded; the error gives the reason.
    fn check(&self, cols: usize) -> Result<(), String>;

    /// Encodes a `[rows, cols]` tensor; `x` may be empty.
    ///
    /// # Panics
    /// If [`Codec::check`] refuses `cols`, or `x` is not a whole number of rows.
    fn encode(&self, x: &[f32], cols: usize) -> Encoded;

    /// Like [`Codec::encode`], but computes the scale of the whole tensor from `amax`, the largest magnitude in a calibration.
    /// Returns an error if the format has no scale per tensor.
    fn encode_under(&self, _amax: f32, _x: &[f32], _cols: usize) -> Result<Encoded, String> {
        Err(format!("record '{}' has no scale that a tensor shares", self.name()))
    }

    /// Decodes stored bytes to values.
    ///
    /// # Panics
    /// If `out` does not have `rows · cols` elements, or another codec made `encoded`.
    fn decode(&self, encoded: &Encoded, out: &mut [f32]);

    /// Rounds a `[rows, cols]` tensor in place: encodes it and decodes the stored bytes.
    fn round(&self, x: &mut [f32], cols: usize) {
        let encoded = self.encode(x, cols);
        self.decode(&encoded, x);
    }
}

/// A [`Format`] with the name by which it was requested.
pub(super) struct FormatCodec {
    pub name: String,
    pub doc: String,
    pub format: Format,
}

impl Codec for FormatCodec {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn doc(&self) -> &str {
        &self.doc
    }

    fn format(&self) -> Option<&Format> {
        Some(&self.format)
    }

    fn bytes_per_row(&self, cols: usize) -> f64 {
        self.format.bytes_per_row(cols)
    }

    fn check(&self, cols: usize) -> Result<(), String> {
        let found = self.format.check(cols);
        found.map_err(|why| format!("format '{}': {why}", self.name))
    }

    fn encode(&self, x: &[f32], cols: usize) -> Encoded {
        self.format.encode(x, cols, GlobalScale::Own)
    }

    fn encode_under(&self, amax: f32, x: &[f32], cols: usize) -> Result<Encoded, String> {
        match self.format.global {
            Some(Group::Tensor) => Ok(self.format.encode(x, cols, GlobalScale::Amax(amax))),
            _ => Err(format!("format '{}' has no scale that a tensor shares", self.name)),
        }
    }

    fn decode(&self, encoded: &Encoded, out: &mut [f32]) {
        self.format.decode(encoded, out);
    }
}
