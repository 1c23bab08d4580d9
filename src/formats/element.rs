//! Element formats: what one number is stored as.

use super::minifloat::{MiniFloat, Overflow};
use super::scale::e8m0_value;

/// What a scale rule must know of the elements.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// The largest finite value.
    pub max: f32,
    /// `fl32(1/max)`.
    pub inverse: f32,
    /// `⌊log2 max⌋`, the `emax` of OCP MX.
    pub exponent: u32,
    /// Bits after the leading one of the largest value.
    pub mantissa_bits: u32,
}

/// Both directions between f32 and the codes of an element format, written without branches so that loops over them
/// vectorise.
pub(super) trait Cast: Copy {
    fn encode(&self, x: f32) -> u32;
    fn decode(&self, code: u32) -> f32;
}

/// A two's-complement integer: code `i` is the value `i / 2^fraction_bits`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Integer {
    pub bits: u32,
    /// Values are clamped to `±max`: symmetric, so the most negative code is never written.
    pub max: i32,
    pub fraction_bits: u32,
}

impl Cast for Integer {
    /// Rounds to nearest, ties to even; a NaN becomes 0.
    #[inline(always)]
    fn encode(&self, x: f32) -> u32 {
        let scaled = x * (1u32 << self.fraction_bits) as f32;
        let rounded = scaled.clamp(-self.max as f32, self.max as f32).round_ties_even() as i32;
        rounded as u32 & ((1 << self.bits) - 1)
    }

    #[inline(always)]
    fn decode(&self, code: u32) -> f32 {
        let unused = 32 - self.bits;
        ((code << unused) as i32 >> unused) as f32 / (1u32 << self.fraction_bits) as f32
    }
}

/// How the codes of an element mean numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repr {
    Float(MiniFloat),
    Integer(Integer),
    /// A bare exponent: code `b` is `2^(b-127)`, 255 is NaN; no sign, no zero. Holds scales only.
    Power,
}

/// A scalar format.
#[derive(Debug, PartialEq)]
pub struct Element {
    pub name: &'static str,
    pub doc: &'static str,
    /// Bits of a code as stored: 4, 8 or 16.
    pub bits: u32,
    pub repr: Repr,
}

impl Element {
    /// The value of a code. Bits above [`Element::bits`] are ignored.
    pub fn decode(&self, code: u16) -> f32 {
        match self.repr {
            Repr::Float(float) => float.decode(u32::from(code)),
            Repr::Integer(integer) => integer.decode(u32::from(code)),
            Repr::Power => e8m0_value(code as u8),
        }
    }

    /// The code nearest to `x`, ties to even, overflow and NaN as the format says.
    ///
    /// A power rounds up to the next one, as scales do (PTX `cvt.rp.satfinite.ue8m0x2`), and ignores the sign.
    pub fn encode(&self, x: f32) -> u16 {
        match self.repr {
            Repr::Float(float) => float.encode(x) as u16,
            Repr::Integer(integer) => integer.encode(x) as u16,
            Repr::Power => u16::from(super::scale::e8m0_ceil(x)),
        }
    }

    /// The largest finite value.
    pub fn max(&self) -> f32 {
        match self.repr {
            Repr::Float(float) => float.decode(float.max),
            Repr::Integer(integer) => integer.decode(integer.max as u32),
            Repr::Power => e8m0_value(254),
        }
    }

    pub(super) fn limits(&self) -> Limits {
        let max = self.max();
        let mantissa_bits = match self.repr {
            Repr::Float(float) => float.mantissa_bits,
            Repr::Integer(integer) => integer.bits - 2,
            Repr::Power => 0,
        };
        Limits {
            max,
            inverse: 1.0 / max,
            exponent: (max.to_bits() >> 23) - 127,
            mantissa_bits,
        }
    }

    /// Whether some code is a NaN, so that a NaN survives the cast.
    pub fn has_nan(&self) -> bool {
        match self.repr {
            Repr::Float(float) => float.has_nan(),
            Repr::Integer(_) => false,
            Repr::Power => true,
        }
    }
}

pub static BF16: Element = Element {
    name: "bf16",
    doc: "bfloat16: the upper half of an f32; overflow gives infinity",
    bits: 16,
    repr: Repr::Float(MiniFloat {
        exponent_bits: 8,
        mantissa_bits: 7,
        bias: 127,
        max: 0x7f7f,
        infinity: true,
        overflow: Overflow::Special,
        nan: 0x7fff,
    }),
};

pub static F16: Element = Element {
    name: "f16",
    doc: "IEEE 754 binary16; overflow gives infinity",
    bits: 16,
    repr: Repr::Float(MiniFloat {
        exponent_bits: 5,
        mantissa_bits: 10,
        bias: 15,
        max: 0x7bff,
        infinity: true,
        overflow: Overflow::Special,
        nan: 0x7fff,
    }),
};

pub static E4M3: Element = Element {
    name: "e4m3",
    doc: "OCP OFP8 E4M3 (\"fn\"): no infinities; overflow and infinities saturate to 448, NaN stays NaN",
    bits: 8,
    repr: Repr::Float(E4M3_FLOAT),
};

pub(super) const E4M3_FLOAT: MiniFloat = MiniFloat {
    exponent_bits: 4,
    mantissa_bits: 3,
    bias: 7,
    max: 0x7e,
    infinity: false,
    overflow: Overflow::Saturate,
    nan: 0x7f,
};

pub static E5M2: Element = Element {
    name: "e5m2",
    doc: "OCP OFP8 E5M2; overflow and infinities saturate to 57344, NaN stays NaN",
    bits: 8,
    repr: Repr::Float(MiniFloat {
        exponent_bits: 5,
        mantissa_bits: 2,
        bias: 15,
        max: 0x7b,
        infinity: true,
        overflow: Overflow::Saturate,
        nan: 0x7f,
    }),
};

pub static E2M1: Element = Element {
    name: "e2m1",
    doc: "OCP MX FP4: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives; no NaN, so it needs a scale that has one",
    bits: 4,
    repr: Repr::Float(MiniFloat {
        exponent_bits: 2,
        mantissa_bits: 1,
        bias: 1,
        max: 0x7,
        infinity: false,
        overflow: Overflow::Saturate,
        nan: 0x7,
    }),
};

pub static INT8: Element = Element {
    name: "int8",
    doc: "symmetric integer -127 … 127; no NaN, so it needs a scale that has one",
    bits: 8,
    repr: Repr::Integer(Integer {
        bits: 8,
        max: 127,
        fraction_bits: 0,
    }),
};

pub static E8M0: Element = Element {
    name: "e8m0",
    doc: "OCP MX scale: powers of two 2^-127 … 2^127 and NaN (255); for scales only",
    bits: 8,
    repr: Repr::Power,
};

/// All element formats.
pub const ELEMENTS: &[&Element] = &[&BF16, &F16, &E4M3, &E5M2, &E2M1, &INT8, &E8M0];

/// The element format of that name.
pub fn element(name: &str) -> Option<&'static Element> {
    ELEMENTS.iter().copied().find(|element| element.name == name)
}
