//! Casts, limits of an element type, and the scaling of a block, for elements and scales.

/// The properties of an element type that scale rules need.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// The largest finite value.
    pub max: f32,
    /// `fl32(1/max)`.
    pub inverse: f32,
    /// `⌊log2 max⌋`, the `emax` of OCP MX.
    pub exponent: i32,
    /// Bits after the leading one of the largest value.
    pub mantissa_bits: u32,
}

/// Both directions between f32 and the codes of an element format, written without branches so that loops over them
/// vectorise.
pub(super) trait Cast: Copy {
    /// Bits that a code may have in memory, of 2, 3, 4, 8 and 16: only the loops for these are compiled.
    const WIDTHS: &'static [u32];

    fn encode(&self, x: f32) -> u32;
    fn decode(&self, code: u32) -> f32;
}

/// Bits of the largest magnitude, as an unsigned integer: there NaN > infinity > finite, so that a maximum over it
/// propagates NaN, which `f32::max` drops.
pub(super) const INFINITY_BITS: u32 = 0x7f80_0000;

/// The operation on the elements of a block, with a factor per block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operation {
    /// `x / factor` instead of `x · factor`.
    pub divide: bool,
    /// A zero that is added last: −0 changes nothing, +0 clears the sign of a negative zero.
    pub zero: f32,
}

impl Operation {
    /// The operation without a last step.
    pub const fn by(divide: bool) -> Self {
        Self { divide, zero: -0.0 }
    }

    #[inline(always)]
    pub fn apply(self, factor: f32, x: f32) -> f32 {
        (if self.divide { x / factor } else { x * factor }) + self.zero
    }
}
