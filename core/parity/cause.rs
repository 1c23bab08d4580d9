//! Why bytes differ, as a list of names.

use std::fmt;

/// Why bytes differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Cause {
    /// The largest magnitude is one of other elements than the block's.
    Amax,
    /// The scale is rounded or bounded otherwise.
    ScaleRounding,
    /// A value just between two codes became the other one.
    TieRule,
    /// What is too large wraps around, becomes NaN, or stops elsewhere.
    Saturation,
    /// 4-bit codes in another order within their bytes or words.
    NibbleOrder,
    /// Scales in the order of a blocked layout, or not in it.
    Swizzle,
    /// Rows and columns exchanged, or rows another number of elements apart, or bytes of words swapped.
    Layout,
    /// The f32 above the block scales means something else.
    GlobalScale,
    /// The quotient before the cast is computed or rounded otherwise.
    Division,
    /// Rounded to another format first.
    DoubleRounding,
    /// Rounded at random.
    Stochastic,
    /// Codes are those of values that are a constant factor off, or not scaled.
    Scaling,
    /// Codes or scales are written in another number format.
    Encoding,
    /// Signs are lost or inverted.
    Sign,
    /// Zeros have another sign.
    ZeroSign,
    /// Subnormal numbers became zero.
    Subnormals,
    /// Other values were quantized than the source.
    Input,
    /// What is stored belongs to another block or row.
    Stale,
    /// What is stored was never written.
    Missing,
    /// So few that any cause would explain them.
    Isolated,
    /// Differences without a place in common, between others like them that are right.
    Scattered,
    /// None of these.
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
