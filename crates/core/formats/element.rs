//! Element formats: the types in which single numbers are stored.

use super::cast::{Cast, Limits};
use super::codebook::{Codebook, NF4_VALUES};
use super::minifloat::{FloatCast, MiniFloat, NanCode, Policy};
use super::power::PowerCast;

/// How a number is rounded to an integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whole {
    /// To nearest, ties to even.
    Even,
    /// `⌊fl32(|x| + 1/2)⌋` with the sign of `x`: to nearest, ties away from zero. The sum rounds: the f32 just below 1/2
    /// becomes 1.
    HalfAdded,
    /// Toward zero.
    TowardZero,
}

/// An integer: code `i` is the value `i / 2^fraction_bits`, in two's complement if it has a sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Integer {
    /// Bits of a code, at most 8.
    pub bits: u32,
    /// Values are clamped to `min … max`. Signed types are symmetric, so the most negative code is never written; unsigned
    /// types start at 0.
    pub min: i32,
    /// The largest code value, before division by `2^fraction_bits`.
    pub max: i32,
    /// Bits of a code after the binary point: 6 for MXINT8, else 0.
    pub fraction_bits: u32,
    /// How a scaled value is rounded to an integer.
    pub whole: Whole,
}

impl Integer {
    /// Whether codes have a sign.
    pub const fn is_signed(&self) -> bool {
        self.min < 0
    }
}

impl Cast for Integer {
    const WIDTHS: &'static [u32] = &[2, 3, 4, 8];

    /// A NaN becomes 0.
    #[inline(always)]
    fn encode(&self, x: f32) -> u32 {
        let scaled = x * (1u32 << self.fraction_bits) as f32;
        let clamped = scaled.clamp(self.min as f32, self.max as f32);
        let whole = match self.whole {
            Whole::Even => clamped.round_ties_even(),
            Whole::HalfAdded => (clamped.abs() + 0.5).trunc().copysign(clamped),
            Whole::TowardZero => clamped.trunc(),
        };
        whole as i32 as u32 & ((1 << self.bits) - 1)
    }

    #[inline(always)]
    fn decode(&self, code: u32) -> f32 {
        let unused = 32 - self.bits;
        let whole = if self.is_signed() {
            (code << unused) as i32 >> unused
        } else {
            (code << unused >> unused) as i32
        };
        whole as f32 / (1u32 << self.fraction_bits) as f32
    }
}

/// How codes represent numbers, and how numbers are encoded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Repr {
    /// A floating-point code.
    Float(FloatCast),
    /// An integer or fixed-point code.
    Integer(Integer),
    /// An index into a table of values.
    Codebook(Codebook),
    /// A bare exponent: code `b` is `2^(b-127)`, 255 is NaN; no sign, no zero. Holds scales only.
    Power(PowerCast),
}

impl Repr {
    /// The value of a code.
    pub fn decode(&self, code: u16) -> f32 {
        match self {
            Self::Float(float) => float.decode(u32::from(code)),
            Self::Integer(integer) => integer.decode(u32::from(code)),
            Self::Codebook(book) => book.decode(u32::from(code)),
            Self::Power(power) => power.decode(u32::from(code)),
        }
    }

    /// The code of a number.
    pub fn encode(&self, x: f32) -> u16 {
        (match self {
            Self::Float(float) => float.encode(x),
            Self::Integer(integer) => integer.encode(x),
            Self::Codebook(book) => book.encode(x),
            Self::Power(power) => power.encode(x),
        }) as u16
    }
}

/// A scalar format.
#[derive(Debug, PartialEq)]
pub struct Element {
    /// Name in format strings, e.g. `e4m3`.
    pub name: &'static str,
    /// One line with the standard, the range and the treatment of NaN and infinities.
    pub doc: &'static str,
    /// Bits of a code: 2, 3, 4, 6, 8 or 16.
    pub bits: u32,
    /// The representation, with the element's own cast.
    pub repr: Repr,
}

/// Bits in memory of a code of `bits` bits.
pub(super) const fn stored_bits(bits: u32) -> u32 {
    if bits == 6 { 8 } else { bits }
}

impl Element {
    /// Bits of a code in memory: one byte for 6-bit codes, as in PTX registers and torchao.
    pub const fn stored_bits(&self) -> usize {
        stored_bits(self.bits) as usize
    }

    /// The value of a code. Bits above [`Element::bits`] are ignored.
    pub fn decode(&self, code: u16) -> f32 {
        self.repr.decode((u32::from(code) & ((1 << self.bits) - 1)) as u16)
    }

    /// The code of `x` by the element's own cast: to nearest, ties to even.
    ///
    /// E8M0 rounds up to the next power of two, as scales do (PTX `cvt.rp.satfinite.ue8m0x2`), and ignores the sign.
    pub fn encode(&self, x: f32) -> u16 {
        self.repr.encode(x)
    }

    /// The largest finite magnitude.
    pub fn max(&self) -> f32 {
        match self.repr {
            Repr::Float(FloatCast { float, .. }) => self.repr.decode(float.max as u16),
            Repr::Integer(integer) => self.repr.decode(integer.max as u16),
            Repr::Codebook(book) => book.max(),
            Repr::Power(_) => self.repr.decode(254),
        }
    }

    /// Whether it is an unsigned integer, which needs a zero point beside its scale.
    pub fn needs_zero_point(&self) -> bool {
        matches!(self.repr, Repr::Integer(integer) if !integer.is_signed())
    }

    /// Whether it can only hold scales.
    pub(crate) fn is_scale(&self) -> bool {
        match self.repr {
            Repr::Float(FloatCast { float, .. }) => !float.signed,
            Repr::Integer(_) | Repr::Codebook(_) => false,
            Repr::Power(_) => true,
        }
    }

    pub(super) fn limits(&self) -> Limits {
        let max = self.max();
        let mantissa_bits = match self.repr {
            Repr::Float(FloatCast { float, .. }) => float.mantissa_bits,
            Repr::Integer(integer) => integer.bits - 2,
            Repr::Codebook(_) | Repr::Power(_) => 0,
        };
        Limits {
            max,
            inverse: 1.0 / max,
            exponent: (max.to_bits() >> 23) as i32 - 127,
            mantissa_bits,
        }
    }

    /// Whether some code is a NaN, so that a NaN survives the cast.
    pub fn has_nan(&self) -> bool {
        match self.repr {
            Repr::Float(FloatCast { float, .. }) => float.has_nan(),
            Repr::Integer(_) | Repr::Codebook(_) => false,
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

// Constants, so that loops can be specialised for them.
pub(super) const F16_CAST: FloatCast = float(5, 10, 0x7bff, true, Policy::special(NanCode::Code(0x7fff)));
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
        min: -max,
        max,
        fraction_bits,
        whole: Whole::Even,
    })
}

/// The codes `0 … 2^bits − 1`, decoded with a zero point.
const fn unsigned(name: &'static str, doc: &'static str, bits: u32) -> Element {
    let repr = Repr::Integer(Integer {
        bits,
        min: 0,
        max: (1 << bits) - 1,
        fraction_bits: 0,
        whole: Whole::Even,
    });
    Element { name, doc, bits, repr }
}

/// bfloat16, the upper half of an f32.
pub static BF16: Element = Element {
    name: "bf16",
    doc: "bfloat16: the upper half of an f32; overflow gives infinity",
    bits: 16,
    repr: Repr::Float(BF16_CAST),
};

/// IEEE 754 binary16.
pub static F16: Element = Element {
    name: "f16",
    doc: "IEEE 754 binary16; overflow gives infinity",
    bits: 16,
    repr: Repr::Float(F16_CAST),
};

/// FP8 with 4 exponent and 3 mantissa bits, without infinities (OCP OFP8 v1.0, "e4m3fn").
pub static E4M3: Element = Element {
    name: "e4m3",
    doc: "OCP OFP8 E4M3 (\"fn\"): no infinities; overflow and infinities saturate to 448, NaN stays NaN",
    bits: 8,
    repr: Repr::Float(E4M3_CAST),
};

/// FP8 with 5 exponent and 2 mantissa bits (OCP OFP8 v1.0).
pub static E5M2: Element = Element {
    name: "e5m2",
    doc: "OCP OFP8 E5M2; overflow and infinities saturate to 57344, NaN stays NaN",
    bits: 8,
    repr: Repr::Float(E5M2_CAST),
};

/// FP6 with 3 exponent and 2 mantissa bits (OCP MX v1.0).
pub static E3M2: Element = Element {
    name: "e3m2",
    doc: "OCP MX FP6 E3M2, one code per byte; no NaN, so NaN is stored in the scale, whose type must have one",
    bits: 6,
    repr: Repr::Float(float(3, 2, 0x1f, false, Policy::satfinite(0x1f))),
};

/// FP6 with 2 exponent and 3 mantissa bits (OCP MX v1.0).
pub static E2M3: Element = Element {
    name: "e2m3",
    doc: "OCP MX FP6 E2M3, one code per byte; no NaN, so NaN is stored in the scale, whose type must have one",
    bits: 6,
    repr: Repr::Float(float(2, 3, 0x1f, false, Policy::satfinite(0x1f))),
};

/// FP4 with 2 exponent bits and 1 mantissa bit (OCP MX v1.0).
pub static E2M1: Element = Element {
    name: "e2m1",
    doc: "OCP MX FP4: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives; no NaN, so NaN is stored in the scale, \
          whose type must have one",
    bits: 4,
    repr: Repr::Float(E2M1_CAST),
};

/// Symmetric 8-bit integer −127 … 127.
pub static INT8: Element = Element {
    name: "int8",
    doc: "symmetric integer -127 … 127; no NaN, so NaN is stored in the scale, whose type must have one",
    bits: 8,
    repr: integer(8, 0),
};

/// Symmetric 4-bit integer −7 … 7.
pub static INT4: Element = Element {
    name: "int4",
    doc: "symmetric integer -7 … 7; no NaN, so NaN is stored in the scale, whose type must have one",
    bits: 4,
    repr: integer(4, 0),
};

/// Symmetric 3-bit integer −3 … 3.
pub static INT3: Element = Element {
    name: "int3",
    doc: "symmetric integer -3 … 3; no NaN, so NaN is stored in the scale, whose type must have one",
    bits: 3,
    repr: integer(3, 0),
};

/// Symmetric 2-bit integer −1 … 1.
pub static INT2: Element = Element {
    name: "int2",
    doc: "symmetric integer -1 … 1; no NaN, so NaN is stored in the scale, whose type must have one",
    bits: 2,
    repr: integer(2, 0),
};

static UINT8: Element = unsigned("uint8", "integer 0 … 255 with a scale and a zero point", 8);
static UINT4: Element = unsigned("uint4", "integer 0 … 15 with a scale and a zero point", 4);
static UINT3: Element = unsigned("uint3", "integer 0 … 7 with a scale and a zero point", 3);
static UINT2: Element = unsigned("uint2", "integer 0 … 3 with a scale and a zero point", 2);

/// NormalFloat4: 16 quantiles of a normal distribution (QLoRA, Dettmers et al. 2023).
pub static NF4: Element = Element {
    name: "nf4",
    doc: "NormalFloat4 of QLoRA: the 16 quantiles of a normal distribution in -1 … 1 that bitsandbytes uses; code 7 is 0; \
          no NaN, so NaN is stored in the scale, whose type must have one",
    bits: 4,
    repr: Repr::Codebook(NF4_VALUES),
};

/// 8-bit fixed point with 6 fraction bits (OCP MX v1.0, INT8).
pub static MXINT8: Element = Element {
    name: "mxint8",
    doc: "OCP MX INT8: i/64 for i = -127 … 127; no NaN, so NaN is stored in the scale, whose type must have one",
    bits: 8,
    repr: integer(8, 6),
};

/// E4M3 without a sign, the block scale of NVFP4.
pub static UE4M3: Element = Element {
    name: "ue4m3",
    doc: "E4M3 without a sign, the scale of NVFP4: negative numbers become 0, codes with the top bit are NaN; for scales \
          only",
    bits: 8,
    repr: Repr::Float(UE4M3_CAST),
};

/// A power of two 2^-127 … 2^127 or NaN, the scale of OCP MX formats.
pub static E8M0: Element = Element {
    name: "e8m0",
    doc: "OCP MX scale: powers of two 2^-127 … 2^127 and NaN (255); for scales only",
    bits: 8,
    repr: Repr::Power(PowerCast::UP),
};

/// All element formats.
pub const ELEMENTS: &[&Element] = &[
    &BF16, &F16, &E4M3, &E5M2, &E3M2, &E2M3, &E2M1, &INT8, &INT4, &INT3, &INT2, &UINT8, &UINT4, &UINT3, &UINT2, &NF4,
    &MXINT8, &UE4M3, &E8M0,
];

/// The element format of that name.
pub fn element(name: &str) -> Option<&'static Element> {
    ELEMENTS.iter().copied().find(|element| element.name == name)
}
