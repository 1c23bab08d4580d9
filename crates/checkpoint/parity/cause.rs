//! The causes of differing bytes, and their names.

use std::fmt;

use serde::Serialize;

/// A cause of differences between the stored bytes and the bytes of the reference rule (the rule that fits best).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Cause {
    /// The scale is computed from the largest magnitude of elements outside of the block, or of only a part of the block.
    Amax,
    /// The scale is rounded or clamped otherwise than by the reference rule.
    #[serde(rename = "scale rounding")]
    ScaleRounding,
    /// A value half-way between two codes is rounded to the other code than by the reference rule.
    #[serde(rename = "tie rule")]
    TieRule,
    /// Values outside of the range wrap around, become NaN, or saturate at another value than by the reference rule.
    Saturation,
    /// 4-bit codes have another order within their bytes or words.
    #[serde(rename = "nibble order")]
    NibbleOrder,
    /// Scales are stored in a blocked layout although none was declared, or are not in the declared layout.
    Swizzle,
    /// Rows and columns are exchanged, rows have another stride, or the bytes of words are swapped.
    Layout,
    /// The f32 global scale is e.g. the reciprocal of the expected one, is off by a factor, or was not used.
    #[serde(rename = "global-scale convention")]
    GlobalScale,
    /// The quotient of value and scale is computed or rounded otherwise than by the reference rule before the cast.
    Division,
    /// Values are first rounded to another format, then to the format of the codes.
    #[serde(rename = "double rounding")]
    DoubleRounding,
    /// Values are rounded stochastically.
    #[serde(rename = "stochastic rounding")]
    Stochastic,
    /// Values are off by a constant factor before the cast, or not scaled at all.
    Scaling,
    /// Codes or scales are written in another number format.
    Encoding,
    /// Signs are lost or inverted.
    Sign,
    /// Zeros have the opposite sign.
    #[serde(rename = "sign of zero")]
    ZeroSign,
    /// Subnormal numbers are flushed to zero.
    #[serde(rename = "subnormal numbers")]
    Subnormals,
    /// Values other than the source values were quantized.
    Input,
    /// The stored bytes belong to another block or row.
    #[serde(rename = "another block's data")]
    Stale,
    /// The bytes were never written.
    #[serde(rename = "missing data")]
    Missing,
    /// Too few bytes differ to tell one cause from another.
    Isolated,
    /// The differences are rare and show no pattern, and similar elements match.
    Scattered,
    /// No other cause of this list applies.
    Unknown,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}
