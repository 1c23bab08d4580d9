//! Bit-exact model of the sums of Hopper's tensor cores.
//!
//! One step of `wgmma` adds the previous sum and the products of 32 bytes of a row of A with 32 bytes of a row of B, in fixed
//! point. The hardware finds the largest exponent of these terms and truncates each term towards zero, to a fixed number of
//! fraction bits below that exponent. It adds the truncated terms exactly, and truncates the sum towards zero to the number of
//! bits that it keeps of an f32. The exponent of a product is the sum of the exponents of its factors. The product of two
//! significands may be 2 or more; it is not normalized, so it then has one more bit. Terms that are zero do not count for the
//! largest exponent. The order of the terms of a step does not matter; the order of steps does.
//!
//! NVIDIA does not document this rule. Measurements confirm it: every `wgmma` shape of `kernels/wgmma.cu` gives the bits of this
//! model on 10⁶ vectors and more (`docs/findings/tensor-core-sums.md`). arXiv 2511.10909 and 2512.07004 describe similar models.

use reference::vectorized;
use serde::Serialize;

/// Number format of the operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// One byte: 4 bits of exponent, 3 of fraction, no infinities.
    E4m3,
    /// Two bytes: 8 bits of exponent, 7 of fraction.
    Bf16,
}

/// Rule by which one kind of matrix instruction adds products: the products per step, and the fraction bits that each term and
/// each sum keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Accumulator {
    /// Format of both factors of a product.
    #[serde(skip)]
    pub operand: Operand,
    /// Number of products that one summation step adds.
    pub terms: usize,
    /// Number of fraction bits that each term keeps, counted from the largest exponent among the terms of its step. Lower bits
    /// are truncated.
    pub aligned_bits: u32,
    /// Number of fraction bits that the f32 sum keeps after each step.
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

/// The bits of the NaN that tensor cores write.
pub const NAN_BITS: u32 = 0x7fff_ffff;

/// A decoded operand: `significand · 2^(exponent − fraction bits)`. Subnormal numbers have the smallest exponent and no leading
/// one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Factor {
    /// Exponent of a finite number; [`NO_EXPONENT`] for a zero, [`INFINITE`] for an infinity, [`NOT_A_NUMBER`] for a NaN.
    exponent: i16,
    /// Signed significand, including the leading one.
    significand: i16,
}

/// Exponent that marks a zero. It is far below all real exponents, so it is the largest exponent of a step only if all terms are
/// zeros.
const NO_EXPONENT: i16 = -0x2000;
/// Exponent that marks an infinity.
const INFINITE: i16 = 0x2000;
/// Exponent that marks a NaN.
const NOT_A_NUMBER: i16 = 0x2001;

/// Largest supported number of products per summation step.
pub const MOST_TERMS: usize = 32;

impl Factor {
    const ZERO: Self = Self {
        exponent: NO_EXPONENT,
        significand: 0,
    };
}

impl Operand {
    /// Size of an operand in bytes.
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

    /// Decodes the bits of an operand.
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

    /// Converts a decoded operand to its value.
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
    /// Adds the products of two rows to `c` step by step, and returns the sum. The last step may have fewer terms: zeros fill it.
    ///
    /// # Panics
    /// If the rows differ in length, or `terms` exceeds [`MOST_TERMS`].
    pub fn dot(&self, a: &[Factor], b: &[Factor], c: f32) -> f32 {
        assert_eq!(a.len(), b.len(), "rows of one length");
        assert!(self.terms <= MOST_TERMS, "at most {MOST_TERMS} terms");
        // Each arm compiles a loop with a constant number of products per step. A step with fewer products is padded with zeros,
        // which do not change the sum.
        vectorized!(match self.terms {
            16 if self.narrow() => sum_of_steps::<16, false>(*self, a, b, c),
            MOST_TERMS if self.narrow() => sum_of_steps::<MOST_TERMS, false>(*self, a, b, c),
            _ => sum_of_steps::<MOST_TERMS, true>(*self, a, b, c),
        })
    }

    /// True if 32-bit integers can hold the products of a step and their sum. The unit of the integers is 2^(largest exponent −
    /// aligned bits).
    pub fn narrow(&self) -> bool {
        let fraction = self.operand.fraction_bits();
        let largest = (self.terms as u64) * ((2 << fraction) - 1u64).pow(2);
        (2 * fraction..32).contains(&self.aligned_bits) && largest << (self.aligned_bits - 2 * fraction) < 1 << 31
    }

    /// Adds the products of one step, at most `TERMS`, to the sum `c`. The loops avoid closures: the compiler might not compile a
    /// closure for the instruction set that [`vectorized`] selects. `WIDE` selects 64-bit sums; 32 bits suffice for a rule that
    /// is [`narrow`](Self::narrow).
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

    /// Returns `sum · 2^unit` as f32, truncated to `kept_bits` fraction bits; a sum that underflows becomes +0.
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
        // `kept` and the power of two are exact in f64, and their product is exact in f32.
        let value = kept as f64 * f64::from_bits(((1023 + last) as u64) << 52);
        if kept == 0 { 0.0 } else { value as f32 }
    }
}

/// Computes [`Accumulator::dot`] in steps of up to `TERMS` terms. `WIDE` selects 64-bit sums; 32 bits suffice for a rule that is
/// [`narrow`](Accumulator::narrow).
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

/// Returns `x · 2^by`, truncated towards zero.
#[inline(always)]
fn shifted(x: i64, by: i32) -> i64 {
    match by {
        0.. => x << by,
        -62.. => (x.abs() >> -by) * x.signum(),
        _ => 0,
    }
}

/// Returns the sum of a step in which `c` or an operand is infinite or NaN.
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
