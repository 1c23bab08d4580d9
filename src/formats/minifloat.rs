//! Small floating-point numbers as data, with one rounding routine for all of them.

use super::element::Cast;

/// What a cast makes of a finite value that rounds beyond the largest one, and of an infinity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overflow {
    /// The largest finite value with its sign: PTX `.satfinite`, which saturates infinities too.
    Saturate,
    /// The code after the largest finite one: infinity, or NaN in a format without infinities.
    Special,
}

/// A binary floating-point format of at most 16 bits with subnormals and, above the codes of finite values, optionally
/// one infinity and then NaNs.
///
/// A code is sign, exponent `E`, mantissa `m` from the top, of value `2^(E-bias) · (1 + m/2^M)`, or `2^(1-bias) · m/2^M`
/// where `E` is 0 (OCP OFP8 v1.0, OCP MX v1.0 §5.3, IEEE 754).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MiniFloat {
    pub exponent_bits: u32,
    /// `M`; at most 10.
    pub mantissa_bits: u32,
    pub bias: u32,
    /// Code of the largest finite value.
    pub max: u32,
    /// Whether the code after `max` is infinity. All codes above are NaN.
    pub infinity: bool,
    pub overflow: Overflow,
    /// The code a NaN becomes, its sign dropped as in PTX `cvt`; `max` where no code is a NaN.
    pub nan: u32,
}

impl MiniFloat {
    const fn sign(&self) -> u32 {
        1 << (self.exponent_bits + self.mantissa_bits)
    }

    /// Whether the code is a NaN.
    pub const fn is_nan(&self, code: u32) -> bool {
        (code & (self.sign() - 1)) > self.max + self.infinity as u32
    }

    /// Whether some code is a NaN.
    pub const fn has_nan(&self) -> bool {
        self.is_nan(self.sign() - 1)
    }
}

impl Cast for MiniFloat {
    /// Rounds to nearest, ties to the even code, by integers alone: f32 subnormals come out right, and a carry of the
    /// rounding moves into the exponent by itself.
    #[inline(always)]
    fn encode(&self, x: f32) -> u32 {
        let magnitude = x.to_bits() & 0x7fff_ffff;
        let field = magnitude >> 23;
        let significand = (magnitude & 0x7f_ffff) | (field.min(1) << 23);
        let exponent = field.max(1);
        // Exponent, biased as in f32, of the result's smallest binade: below it the step stays the same.
        let lowest = 128 - self.bias;
        let quantum = exponent.max(lowest);
        // From 25 dropped bits on everything rounds to zero.
        let drop = (23 - self.mantissa_bits + (quantum - exponent)).min(25);
        let odd = (significand >> drop) & 1;
        let kept = (significand + (1 << (drop - 1)) - 1 + odd) >> drop;
        let top = self.max + (self.overflow == Overflow::Special) as u32;
        let rounded = (((quantum - lowest) << self.mantissa_bits) + kept).min(top);
        let sign = (x.to_bits() >> 31) << (self.exponent_bits + self.mantissa_bits);
        if magnitude > 0x7f80_0000 {
            self.nan
        } else {
            rounded | sign
        }
    }

    #[inline(always)]
    fn decode(&self, code: u32) -> f32 {
        let magnitude = code & (self.sign() - 1);
        let normal = (magnitude << (23 - self.mantissa_bits)) + ((127 - self.bias) << 23);
        // A float whose last bit is worth the smallest subnormal holds `magnitude` as its last bits.
        let lift = (151 - self.bias - self.mantissa_bits) << 23;
        let subnormal = (f32::from_bits(lift | (magnitude & 0x7f_ffff)) - f32::from_bits(lift)).to_bits();
        let finite = if magnitude >> self.mantissa_bits == 0 {
            subnormal
        } else {
            normal
        };
        let special = if self.is_nan(code) { 0x7fc0_0000 } else { 0x7f80_0000 };
        let bits = if magnitude > self.max { special } else { finite };
        f32::from_bits(bits | ((code & self.sign()) << (31 - self.exponent_bits - self.mantissa_bits)))
    }
}
