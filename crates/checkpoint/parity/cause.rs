//! The causes of differing bytes, and their names.

use std::fmt;

/// A cause of differences between the stored bytes and the bytes of the reference rule (the rule that fits best).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Cause {
    /// The scale is computed from the largest magnitude of elements outside of the block, or of only a part of the block.
    Amax,
    /// The scale is rounded or clamped otherwise than by the reference rule.
    ScaleRounding,
    /// A value half-way between two codes is rounded to the other code than by the reference rule.
    TieRule,
    /// Values outside of the range wrap around, become NaN, or saturate at another value than by the reference rule.
    Saturation,
    /// 4-bit codes have another order within their bytes or words.
    NibbleOrder,
    /// Scales are stored in a blocked layout although none was declared, or are not in the declared layout.
    Swizzle,
    /// Rows and columns are exchanged, rows have another stride, or the bytes of words are swapped.
    Layout,
    /// The f32 global scale is e.g. the reciprocal of the expected one, is off by a factor, or was not used.
    GlobalScale,
    /// The quotient of value and scale is computed or rounded otherwise than by the reference rule before the cast.
    Division,
    /// Values are first rounded to another format, then to the format of the codes.
    DoubleRounding,
    /// Values are rounded stochastically.
    Stochastic,
    /// Values are off by a constant factor before the cast, or not scaled at all.
    Scaling,
    /// Codes or scales are written in another number format.
    Encoding,
    /// Signs are lost or inverted.
    Sign,
    /// Zeros have the opposite sign.
    ZeroSign,
    /// Subnormal numbers are flushed to zero.
    Subnormals,
    /// Values other than the source values were quantized.
    Input,
    /// The stored bytes belong to another block or row.
    Stale,
    /// The bytes were never written.
    Missing,
    /// Too few bytes differ to tell one cause from another.
    Isolated,
    /// The differences are rare and show no pattern, and similar elements match.
    Scattered,
    /// No other cause of this list applies.
    Unknown,
}

impl Cause {
    /// Name of the cause in reports and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Amax => "amax",
            Self::ScaleRounding => "scale rounding",
            Self::TieRule => "tie rule",
            Self::Saturation => "saturation",
            Self::NibbleOrder => "nibble order",
            Self::Swizzle => "swizzle",
            Self::Layout => "layout",
            Self::GlobalScale => "global-scale convention",
            Self::Division => "division",
            Self::DoubleRounding => "double rounding",
            Self::Stochastic => "stochastic rounding",
            Self::Scaling => "scaling",
            Self::Encoding => "encoding",
            Self::Sign => "sign",
            Self::ZeroSign => "sign of zero",
            Self::Subnormals => "subnormal numbers",
            Self::Input => "input",
            Self::Stale => "another block's data",
            Self::Missing => "missing data",
            Self::Isolated => "isolated",
            Self::Scattered => "scattered",
            Self::Unknown => "unknown",
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
