//! How Hopper's tensor cores sum, bit for bit.
//!
//! One step of `wgmma` adds the products of 32 bytes of a row of A and of B, and the number that was there before, in fixed
//! point. The largest exponent among them is found first; each term is cut, towards zero, to a number of fraction bits below
//! that exponent; the cut terms are added exactly; and the sum is cut, towards zero, to the bits that are kept of an f32.
//! The exponent of a product is the sum of the exponents of its factors, so a product of significands of 2 or more has one
//! more bit. Zeros have no exponent. The order of the terms of a step does not matter; the order of steps does.
//!
//! Nobody documents this. It was measured: every `wgmma` shape of `kernels/wgmma.cu` gives these bits on 10⁶ vectors and
//! more (`docs/findings/tensor-core-sums.md`). Models of this kind are in arXiv 2511.10909 and 2512.07004.

/// A number format of operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// One byte: 4 bits of exponent, 3 of fraction, no infinities.
    E4m3,
    /// Two bytes: 8 bits of exponent, 7 of fraction.
    Bf16,
}

/// The sums of one kind of matrix instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accumulator {
    /// Format of both factors.
    pub operand: Operand,
    /// Products that are added in one step.
    pub terms: usize,
    /// Fraction bits that a term keeps below the largest exponent of its step.
    pub aligned_bits: u32,
    /// Fraction bits that the f32 sum keeps.
    pub kept_bits: u32,
}

/// `wgmma` of E4M3 operands with f32 accumulators.
pub const WGMMA_E4M3: Accumulator = Accumulator {
    operand: Operand::E4m3,
    terms: 32,
    aligned_bits: 13,
    kept_bits: 13,
};

/// `wgmma` of bfloat16 operands with f32 accumulators.
pub const WGMMA_BF16: Accumulator = Accumulator {
    operand: Operand::Bf16,
    terms: 16,
    aligned_bits: 25,
    kept_bits: 23,
};

/// A NaN as tensor cores write it.
pub const NAN_BITS: u32 = 0x7fff_ffff;

/// A factor in parts: `significand · 2^(exponent − fraction bits)`. Subnormal numbers have the least exponent and no leading
/// one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Factor {
    exponent: i16,
    /// With the sign.
    significand: i16,
    class: Class,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Class {
    Finite,
    Infinite,
    Nan,
}

impl Operand {
    /// Bytes of a number.
    pub const fn bytes(self) -> usize {
        match self {
            Self::E4m3 => 1,
            Self::Bf16 => 2,
        }
    }

    const fn fraction_bits(self) -> u32 {
        match self {
            Self::E4m3 => 3,
            Self::Bf16 => 7,
        }
    }

    /// The parts of a code.
    pub fn factor(self, code: u16) -> Factor {
        let fraction_bits = self.fraction_bits();
        let (sign, exponent_mask, bias) = match self {
            Self::E4m3 => (code >> 7 & 1, 0xf, 7),
            Self::Bf16 => (code >> 15, 0xff, 127),
        };
        let biased = (code >> fraction_bits & exponent_mask) as i16;
        let fraction = (code & ((1 << fraction_bits) - 1)) as i16;
        let class = match self {
            Self::E4m3 if code & 0x7f == 0x7f => Class::Nan,
            Self::Bf16 if biased == 0xff && fraction == 0 => Class::Infinite,
            Self::Bf16 if biased == 0xff => Class::Nan,
            _ => Class::Finite,
        };
        let magnitude = fraction | i16::from(biased > 0) << fraction_bits;
        Factor {
            exponent: biased.max(1) - bias,
            significand: if sign == 1 { -magnitude } else { magnitude },
            class,
        }
    }
}

impl Accumulator {
    /// The sum of products of two rows, added to `c` step by step. The last step may have fewer terms: the rest are zeros.
    ///
    /// # Panics
    /// If the rows differ in length.
    pub fn dot(&self, a: &[Factor], b: &[Factor], c: f32) -> f32 {
        assert_eq!(a.len(), b.len(), "rows of one length");
        let steps = a.chunks(self.terms).zip(b.chunks(self.terms));
        steps.fold(c, |c, (a, b)| self.step(a, b, c))
    }

    /// One step.
    fn step(&self, a: &[Factor], b: &[Factor], c: f32) -> f32 {
        let finite = |row: &[Factor]| row.iter().all(|x| x.class == Class::Finite);
        if !(c.is_finite() && finite(a) && finite(b)) {
            return special(a, b, c);
        }
        let c_exponent = ((c.to_bits() >> 23 & 0xff) as i32).max(1) - 127;
        let c_significand = i64::from(c.to_bits() & 0x7f_ffff | u32::from(c.is_normal()) << 23);
        let exponents = a
            .iter()
            .zip(b)
            .filter(|(a, b)| a.significand != 0 && b.significand != 0);
        let exponents = exponents.map(|(a, b)| i32::from(a.exponent) + i32::from(b.exponent));
        let Some(top) = exponents.chain((c != 0.0).then_some(c_exponent)).max() else {
            return 0.0;
        };
        let aligned = self.aligned_bits as i32;
        // In units of 2^(top − aligned): at most 17 terms below 2^27, or 33 below 2^15, and c.
        let product_bits = 2 * self.operand.fraction_bits() as i32;
        let products = a.iter().zip(b).map(|(a, b)| {
            let exponent = i32::from(a.exponent) + i32::from(b.exponent);
            let product = i64::from(a.significand) * i64::from(b.significand);
            shifted(product, exponent - top + aligned - product_bits)
        });
        let sign = if c.is_sign_negative() { -1 } else { 1 };
        let sum = products.sum::<i64>() + shifted(sign * c_significand, c_exponent - top + aligned - 23);
        self.cut(sum, top - aligned)
    }

    /// `sum · 2^unit` as f32, with the bits that are kept; what vanishes is +0.
    fn cut(&self, sum: i64, unit: i32) -> f32 {
        if sum == 0 {
            return 0.0;
        }
        let exponent = sum.unsigned_abs().ilog2() as i32 + unit;
        if exponent > 127 {
            return f32::INFINITY.copysign(sum as f32);
        }
        let last = (exponent - self.kept_bits as i32).max(-149);
        let kept = shifted(sum, unit - last);
        // Both factors and the product are numbers of f64, and the product is one of f32.
        let value = kept as f64 * 2f64.powi(last);
        if kept == 0 { 0.0 } else { value as f32 }
    }
}

/// `x · 2^by`, cut towards zero.
fn shifted(x: i64, by: i32) -> i64 {
    match by {
        0.. => x << by,
        -62.. => x / (1i64 << -by),
        _ => 0,
    }
}

/// The sum where a term is not finite.
fn special(a: &[Factor], b: &[Factor], c: f32) -> f32 {
    let (mut above, mut below, mut nan) = (c == f32::INFINITY, c == f32::NEG_INFINITY, c.is_nan());
    for (a, b) in a.iter().zip(b) {
        let infinite = a.class == Class::Infinite || b.class == Class::Infinite;
        let zero = |x: &Factor| x.class == Class::Finite && x.significand == 0;
        nan |= a.class == Class::Nan || b.class == Class::Nan || infinite && (zero(a) || zero(b));
        let negative = (a.significand < 0) != (b.significand < 0);
        above |= infinite && !negative;
        below |= infinite && negative;
    }
    match (nan || above && below, above) {
        (true, _) => f32::from_bits(NAN_BITS),
        (false, true) => f32::INFINITY,
        (false, false) => f32::NEG_INFINITY,
    }
}
