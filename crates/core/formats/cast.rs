//! Basic types for elements and scales: casts, limits of an element type, and the scaling of a block.

/// The properties of an element type that scale rules need.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// The largest finite value.
    pub max: f32,
    /// `fl32(1/max)`, the reciprocal of `max` rounded to f32.
    pub inverse: f32,
    /// `⌊log2 max⌋`, the `emax` of OCP MX.
    pub exponent: i32,
    /// Number of bits that the largest value has after its leading one bit.
    pub mantissa_bits: u32,
}

/// Conversion between f32 and the codes of an element format. It has no branches, so that loops of conversions vectorise.
pub(super) trait Cast: Copy {
    /// Numbers of bits that a code may take in memory, a subset of 2, 3, 4, 8 and 16. Loops are compiled only for these widths.
    const WIDTHS: &'static [u32];

    fn encode(&self, x: f32) -> u32;
    fn decode(&self, code: u32) -> f32;
}

/// Bits of the f32 infinity. As unsigned integers, the bits of magnitudes are ordered: finite < infinity < NaN. So an integer
/// maximum of such bits propagates NaN, which `f32::max` drops.
pub(super) const INFINITY_BITS: u32 = 0x7f80_0000;

/// Division or multiplication that scales the elements of a block by the factor of the block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operation {
    /// True for `x / factor`, false for `x · factor`.
    pub divide: bool,
    /// Zero that is added to the result: −0 changes nothing, +0 turns −0 into +0.
    pub zero: f32,
}

impl Operation {
    /// Returns the operation that divides or multiplies by the factor, and adds −0, which changes nothing.
    pub const fn by(divide: bool) -> Self {
        Self { divide, zero: -0.0 }
    }

    #[inline(always)]
    pub fn apply(self, factor: f32, x: f32) -> f32 {
        (if self.divide { x / factor } else { x * factor }) + self.zero
    }
}
