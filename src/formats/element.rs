//! Element formats: what one number is stored as.

use super::minifloat::{FloatCast, MiniFloat, NanCode, Policy};
use super::power::PowerCast;

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

/// How the codes of an element mean numbers, and numbers become codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repr {
    Float(FloatCast),
    Integer(Integer),
    /// A bare exponent: code `b` is `2^(b-127)`, 255 is NaN; no sign, no zero. Holds scales only.
    Power(PowerCast),
}

impl Repr {
    /// The value of a code.
    pub fn decode(&self, code: u16) -> f32 {
        match self {
            Self::Float(float) => float.decode(u32::from(code)),
            Self::Integer(integer) => integer.decode(u32::from(code)),
            Self::Power(power) => power.decode(u32::from(code)),
        }
    }

    /// The code of a number.
    pub fn encode(&self, x: f32) -> u16 {
        (match self {
            Self::Float(float) => float.encode(x),
            Self::Integer(integer) => integer.encode(x),
            Self::Power(power) => power.encode(x),
        }) as u16
    }
}

/// A scalar format.
#[derive(Debug, PartialEq)]
pub struct Element {
    pub name: &'static str,
    pub doc: &'static str,
    /// Bits of a code: 4, 6, 8 or 16.
    pub bits: u32,
    /// With the policy of casts that name no other.
    pub repr: Repr,
}

impl Element {
    /// Bits a code takes in memory: one byte for 6-bit codes, as in PTX registers and torchao.
    pub const fn stored_bits(&self) -> usize {
        if self.bits == 6 { 8 } else { self.bits as usize }
    }

    /// The value of a code. Bits above [`Element::bits`] are ignored.
    pub fn decode(&self, code: u16) -> f32 {
        self.repr.decode((u32::from(code) & ((1 << self.bits) - 1)) as u16)
    }

    /// The code of `x` by the element's own policy: nearest, ties to even.
    ///
    /// A power rounds up to the next one, as scales do (PTX `cvt.rp.satfinite.ue8m0x2`), and ignores the sign.
    pub fn encode(&self, x: f32) -> u16 {
        self.repr.encode(x)
    }

    /// The largest finite value.
    pub fn max(&self) -> f32 {
        self.repr.decode(match self.repr {
            Repr::Float(FloatCast { float, .. }) => float.max as u16,
            Repr::Integer(integer) => integer.max as u16,
            Repr::Power(_) => 254,
        })
    }

    /// Whether it holds scales only.
    pub fn is_scale(&self) -> bool {
        match self.repr {
            Repr::Float(FloatCast { float, .. }) => !float.signed,
            Repr::Integer(_) => false,
            Repr::Power(_) => true,
        }
    }

    pub(super) fn limits(&self) -> Limits {
        let max = self.max();
        let mantissa_bits = match self.repr {
            Repr::Float(FloatCast { float, .. }) => float.mantissa_bits,
            Repr::Integer(integer) => integer.bits - 2,
            Repr::Power(_) => 0,
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
            Repr::Float(FloatCast { float, .. }) => float.has_nan(),
            Repr::Integer(_) => false,
            Repr::Power(_) => true,
        }
    }
}

/// A signed float whose exponent has the usual bias `2^(E-1) − 1`.
const fn float(exponent_bits: u32, mantissa_bits: u32, max: u32, infinity: bool, policy: Policy) -> FloatCast {
    let bias = (1 << (exponent_bits - 1)) - 1;
    let signed = true;
    let float = MiniFloat {
        exponent_bits,
        mantissa_bits,
        bias,
        max,
        infinity,
        signed,
    };
    FloatCast { float, policy }
}

// As constants, for loops made for one of them.
pub(super) const BF16_CAST: FloatCast = float(8, 7, 0x7f7f, true, Policy::special(NanCode::Code(0x7fff)));
pub(super) const E4M3_CAST: FloatCast = float(4, 3, 0x7e, false, Policy::satfinite(0x7f));
pub(super) const E5M2_CAST: FloatCast = float(5, 2, 0x7b, true, Policy::satfinite(0x7f));
pub(super) const E2M1_CAST: FloatCast = float(2, 1, 0x7, false, Policy::satfinite(0x7));
pub(super) const UE4M3_CAST: FloatCast = FloatCast {
    float: MiniFloat {
        signed: false,
        ..E4M3_CAST.float
    },
    ..E4M3_CAST
};

const fn integer(bits: u32, fraction_bits: u32) -> Repr {
    let max = (1 << (bits - 1)) - 1;
    Repr::Integer(Integer {
        bits,
        max,
        fraction_bits,
    })
}

pub static BF16: Element = Element {
    name: "bf16",
    doc: "bfloat16: the upper half of an f32; overflow gives infinity",
    bits: 16,
    repr: Repr::Float(BF16_CAST),
};

pub static F16: Element = Element {
    name: "f16",
    doc: "IEEE 754 binary16; overflow gives infinity",
    bits: 16,
    repr: Repr::Float(float(5, 10, 0x7bff, true, Policy::special(NanCode::Code(0x7fff)))),
};

pub static E4M3: Element = Element {
    name: "e4m3",
    doc: "OCP OFP8 E4M3 (\"fn\"): no infinities; overflow and infinities saturate to 448, NaN stays NaN",
    bits: 8,
    repr: Repr::Float(E4M3_CAST),
};

pub static E5M2: Element = Element {
    name: "e5m2",
    doc: "OCP OFP8 E5M2; overflow and infinities saturate to 57344, NaN stays NaN",
    bits: 8,
    repr: Repr::Float(E5M2_CAST),
};

pub static E3M2: Element = Element {
    name: "e3m2",
    doc: "OCP MX FP6 E3M2, one code per byte; no NaN, so it needs a scale that has one",
    bits: 6,
    repr: Repr::Float(float(3, 2, 0x1f, false, Policy::satfinite(0x1f))),
};

pub static E2M3: Element = Element {
    name: "e2m3",
    doc: "OCP MX FP6 E2M3, one code per byte; no NaN, so it needs a scale that has one",
    bits: 6,
    repr: Repr::Float(float(2, 3, 0x1f, false, Policy::satfinite(0x1f))),
};

pub static E2M1: Element = Element {
    name: "e2m1",
    doc: "OCP MX FP4: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives; no NaN, so it needs a scale that has one",
    bits: 4,
    repr: Repr::Float(E2M1_CAST),
};

pub static INT8: Element = Element {
    name: "int8",
    doc: "symmetric integer -127 … 127; no NaN, so it needs a scale that has one",
    bits: 8,
    repr: integer(8, 0),
};

pub static INT4: Element = Element {
    name: "int4",
    doc: "symmetric integer -7 … 7; no NaN, so it needs a scale that has one",
    bits: 4,
    repr: integer(4, 0),
};

pub static MXINT8: Element = Element {
    name: "mxint8",
    doc: "OCP MX INT8: i/64 for i = -127 … 127; no NaN, so it needs a scale that has one",
    bits: 8,
    repr: integer(8, 6),
};

pub static UE4M3: Element = Element {
    name: "ue4m3",
    doc: "E4M3 without a sign, the scale of NVFP4: negative numbers become 0, codes with the top bit are NaN; for scales \
          only",
    bits: 8,
    repr: Repr::Float(UE4M3_CAST),
};

pub static E8M0: Element = Element {
    name: "e8m0",
    doc: "OCP MX scale: powers of two 2^-127 … 2^127 and NaN (255); for scales only",
    bits: 8,
    repr: Repr::Power(PowerCast::UP),
};

/// All element formats.
pub const ELEMENTS: &[&Element] = &[
    &BF16, &F16, &E4M3, &E5M2, &E3M2, &E2M3, &E2M1, &INT8, &INT4, &MXINT8, &UE4M3, &E8M0,
];

/// The element format of that name.
pub fn element(name: &str) -> Option<&'static Element> {
    ELEMENTS.iter().copied().find(|element| element.name == name)
}
