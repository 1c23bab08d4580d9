//! Causes of differing bytes, as a list of names.

use std::fmt;

/// A cause of differing bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Cause {
    /// The largest magnitude is that of other elements than the block's.
    Amax,
    /// The scale is rounded or clamped differently.
    ScaleRounding,
    /// A value half-way between two codes became the other one.
    TieRule,
    /// Numbers that are too large wrap around, become NaN, or saturate elsewhere.
    Saturation,
    /// 4-bit codes are in another order within their bytes or words.
    NibbleOrder,
    /// Scales are in the order of a blocked layout, or should be.
    Swizzle,
    /// Rows and columns are exchanged, rows have another stride, or bytes of words are swapped.
    Layout,
    /// The f32 global scale has another meaning.
    GlobalScale,
    /// The quotient before the cast is computed or rounded differently.
    Division,
    /// Values are rounded to another format first.
    DoubleRounding,
    /// Values are rounded stochastically.
    Stochastic,
    /// The values before the cast are off by a constant factor, or not scaled.
    Scaling,
    /// Codes or scales are written in another number format.
    Encoding,
    /// Signs are lost or inverted.
    Sign,
    /// Zeros have another sign.
    ZeroSign,
    /// Subnormal numbers became zero.
    Subnormals,
    /// The quantized values are not those of the source.
    Input,
    /// The stored bytes belong to another block or row.
    Stale,
    /// The bytes were never written.
    Missing,
    /// There are too few differences to tell causes apart.
    Isolated,
    /// The differences have no place in common, and similar elements between them are right.
    Scattered,
    /// None of these causes.
    Unknown,
}

impl Cause {
    /// The name in reports and JSON.
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
