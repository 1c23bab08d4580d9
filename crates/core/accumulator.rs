//! Sums of Hopper's tensor cores, bit for bit.
//!
//! One step of `wgmma` adds the products of 32 bytes of a row of A and of B, and the number that was there before, in fixed
//! point. The largest exponent among them is found first; each term is cut, towards zero, to a number of fraction bits below
//! that exponent; the cut terms are added exactly; and the sum is cut, towards zero, to the bits that are kept of an f32.
//! The exponent of a product is the sum of the exponents of its factors, so a product of significands of 2 or more has one
//! more bit. Zeros have no exponent. The order of the terms of a step does not matter; the order of steps does.
//!
//! Nobody documents this. It was measured: every `wgmma` shape of `kernels/wgmma.cu` gives these bits on 10⁶ vectors and
//! more (`docs/findings/tensor-core-sums.md`). Models of this kind are in arXiv 2511.10909 and 2512.07004.

use reference::vectorized;
use serde::Serialize;

/// A number format of operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// One byte: 4 bits of exponent, 3 of fraction, no infinities.
    E4m3,
    /// Two bytes: 8 bits of exponent, 7 of fraction.
    Bf16,
}

/// The sums of one kind of matrix instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Accumulator {
    /// Format of both factors.
    #[serde(skip)]
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
    /// [`NO_EXPONENT`] of a zero, and [`INFINITE`] or [`NOT_A_NUMBER`] of what is not finite.
    exponent: i16,
    /// With the sign.
    significand: i16,
}

/// In the place of the exponent of a zero: so far below all others that it is the largest only if all terms are zeros.
const NO_EXPONENT: i16 = -0x2000;
/// In the place of the exponent of an infinity.
const INFINITE: i16 = 0x2000;
/// In the place of the exponent of a NaN.
const NOT_A_NUMBER: i16 = 0x2001;

/// The most terms of a rule.
pub const MOST_TERMS: usize = 32;

impl Factor {
    const ZERO: Self = Self {
        exponent: NO_EXPONENT,
        significand: 0,
    };
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
        let magnitude = fraction | i16::from(biased > 0) << fraction_bits;
        let exponent = match self {
            _ if magnitude == 0 => NO_EXPONENT,
            Self::E4m3 if code & 0x7f == 0x7f => NOT_A_NUMBER,
            Self::Bf16 if biased == 0xff && fraction == 0 => INFINITE,
            Self::Bf16 if biased == 0xff => NOT_A_NUMBER,
            _ => biased.max(1) - bias,
        };
        Factor {
            exponent,
            significand: if sign == 1 { -magnitude } else { magnitude },
        }
    }

    /// The number that a factor is.
    pub fn value(self, factor: Factor) -> f64 {
        let sign = if factor.significand < 0 { -1.0 } else { 1.0 };
        match factor.exponent {
            NO_EXPONENT => 0.0,
            INFINITE => f64::INFINITY * sign,
            NOT_A_NUMBER => f64::NAN,
            exponent => f64::from(factor.significand) * 2f64.powi(i32::from(exponent) - self.fraction_bits() as i32),
        }
    }
}

impl Accumulator {
    /// The sum of products of two rows, added to `c` step by step. The last step may have fewer terms: the rest are zeros.
    ///
    /// # Panics
    /// If the rows differ in length, or the rule has more than 32 terms.
    pub fn dot(&self, a: &[Factor], b: &[Factor], c: f32) -> f32 {
        assert_eq!(a.len(), b.len(), "rows of one length");
        assert!(self.terms <= MOST_TERMS, "at most {MOST_TERMS} terms");
        // A number of terms that the compiler knows; zeros add nothing.
        vectorized!(match self.terms {
            16 if self.narrow() => sum_of_steps::<16, false>(*self, a, b, c),
            MOST_TERMS if self.narrow() => sum_of_steps::<MOST_TERMS, false>(*self, a, b, c),
            _ => sum_of_steps::<MOST_TERMS, true>(*self, a, b, c),
        })
    }

    /// True if the products of a step and their sum are numbers of 32 bits, in units of 2^(top − aligned bits).
    pub fn narrow(&self) -> bool {
        let fraction = self.operand.fraction_bits();
        let largest = (self.terms as u64) * ((2 << fraction) - 1u64).pow(2);
        (2 * fraction..32).contains(&self.aligned_bits) && largest << (self.aligned_bits - 2 * fraction) < 1 << 31
    }

    /// One step. Loops without closures, so that they are compiled for the processor that [`vectorized`] finds. `WIDE` is of 64 bits,
    /// for rules that are not [`narrow`](Self::narrow).
    #[inline(always)]
    fn step<const TERMS: usize, const WIDE: bool>(&self, a: &[Factor; TERMS], b: &[Factor; TERMS], c: f32) -> f32 {
        let (mut exponents, mut infinite) = ([0; TERMS], !c.is_finite());
        for i in 0..TERMS {
            exponents[i] = i32::from(a[i].exponent) + i32::from(b[i].exponent);
            infinite |= a[i].exponent.max(b[i].exponent) >= INFINITE;
        }
        if infinite {
            return special(a, b, c);
        }
        let c_exponent = ((c.to_bits() >> 23 & 0xff) as i32).max(1) - 127;
        let c_significand = i64::from(c.to_bits() & 0x7f_ffff | u32::from(c.is_normal()) << 23);
        let none = i32::from(NO_EXPONENT) / 2;
        let mut top = if c == 0.0 { none } else { c_exponent };
        for exponent in exponents {
            top = top.max(exponent);
        }
        if top == none {
            return 0.0;
        }
        let aligned = self.aligned_bits as i32;
        let bits = aligned - 2 * self.operand.fraction_bits() as i32;
        let (mut sum, mut wide) = (0i32, 0i64);
        for i in 0..TERMS {
            let product = i32::from(a[i].significand) * i32::from(b[i].significand);
            if WIDE {
                wide += shifted(product.into(), bits + exponents[i] - top);
            } else {
                let magnitude = product.abs() << bits >> (top - exponents[i]).min(31);
                sum += if product < 0 { -magnitude } else { magnitude };
            }
        }
        let sign = if c.is_sign_negative() { -1 } else { 1 };
        let sum = wide + i64::from(sum) + shifted(sign * c_significand, c_exponent - top + aligned - 23);
        self.cut(sum, top - aligned)
    }

    /// `sum · 2^unit` as f32, with the bits that are kept; what vanishes is +0.
    #[inline(always)]
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
        let value = kept as f64 * f64::from_bits(((1023 + last) as u64) << 52);
        if kept == 0 { 0.0 } else { value as f32 }
    }
}

/// The sum of [`Accumulator::dot`], in steps of up to `TERMS` terms; `WIDE` as in the rules that are not [`narrow`](Accumulator::narrow).
#[inline(always)]
pub fn sum_of_steps<const TERMS: usize, const WIDE: bool>(
    rule: Accumulator,
    a: &[Factor],
    b: &[Factor],
    c: f32,
) -> f32 {
    let mut sum = c;
    for (a, b) in a.chunks(rule.terms).zip(b.chunks(rule.terms)) {
        sum = match (a.as_array(), b.as_array()) {
            (Some(a), Some(b)) => rule.step::<TERMS, WIDE>(a, b, sum),
            _ => rule.step::<TERMS, WIDE>(&filled(a), &filled(b), sum),
        };
    }
    sum
}

fn filled<const TERMS: usize>(terms: &[Factor]) -> [Factor; TERMS] {
    let mut row = [Factor::ZERO; TERMS];
    row[..terms.len()].copy_from_slice(terms);
    row
}

/// `x · 2^by`, cut towards zero.
#[inline(always)]
fn shifted(x: i64, by: i32) -> i64 {
    match by {
        0.. => x << by,
        -62.. => (x.abs() >> -by) * x.signum(),
        _ => 0,
    }
}

/// The sum where a term is not finite.
#[cold]
fn special(a: &[Factor], b: &[Factor], c: f32) -> f32 {
    let (mut above, mut below, mut nan) = (c == f32::INFINITY, c == f32::NEG_INFINITY, c.is_nan());
    for (a, b) in a.iter().zip(b) {
        let any = |exponent: i16| a.exponent == exponent || b.exponent == exponent;
        let infinite = any(INFINITE);
        nan |= any(NOT_A_NUMBER) || infinite && any(NO_EXPONENT);
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
