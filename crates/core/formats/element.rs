//! Element formats: the types in which single numbers are stored.

use super::cast::{Cast, Limits};
use super::codebook::{Codebook, NF4_VALUES};
use super::minifloat::{FloatCast, MiniFloat, NanCode, Policy};
use super::power::PowerCast;

/// Rule that rounds a number to an integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whole {
    /// To nearest, ties to even.
    Even,
    /// `⌊fl32(|x| + 1/2)⌋` with the sign of `x`: to nearest, ties away from zero. The f32 sum is rounded, so the f32 just below
    /// 1/2 becomes 1.
    HalfAdded,
    /// Toward zero.
    TowardZero,
}

/// Integer or fixed-point format: code `i` has the value `i / 2^fraction_bits`. Codes of signed formats are in two's complement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Integer {
    /// Bits of a code, at most 8.
    pub bits: u32,
    /// Lower end of the range to which values are clamped. Signed types are symmetric, so the most negative code is never
    /// written; unsigned types start at 0.
    pub min: i32,
    /// Largest code, before the division by `2^fraction_bits`.
    pub max: i32,
    /// Bits of a code after the binary point: 6 for MXINT8, else 0.
    pub fraction_bits: u32,
    /// The rounding of a scaled value to an integer.
    pub whole: Whole,
}

impl Integer {
    /// True if the type has negative codes.
    pub const fn is_signed(&self) -> bool {
        self.min < 0
    }
}

impl Cast for Integer {
    const WIDTHS: &'static [u32] = &[2, 3, 4, 8];

    /// Returns the code of the rounded number; a NaN becomes 0.
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

/// Representation of an element: the values of its codes, and the cast from f32 to codes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Repr {
    /// A floating-point code.
    Float(FloatCast),
    /// An integer or fixed-point code.
    Integer(Integer),
    /// An index into a table of values.
    Codebook(Codebook),
    /// A bare exponent without sign and zero: code `b` is `2^(b-127)`, and 255 is NaN. For scales only.
    Power(PowerCast),
}

impl Repr {
    /// Returns the value of a code.
    pub fn decode(&self, code: u16) -> f32 {
        match self {
            Self::Float(float) => float.decode(u32::from(code)),
            Self::Integer(integer) => integer.decode(u32::from(code)),
            Self::Codebook(book) => book.decode(u32::from(code)),
            Self::Power(power) => power.decode(u32::from(code)),
        }
    }

    /// Returns the code of a number.
    pub fn encode(&self, x: f32) -> u16 {
        (match self {
            Self::Float(float) => float.encode(x),
            Self::Integer(integer) => integer.encode(x),
            Self::Codebook(book) => book.encode(x),
            Self::Power(power) => power.encode(x),
        }) as u16
    }
}

/// Number format of a single element.
#[derive(Debug, PartialEq)]
pub struct Element {
    /// Name in format strings, e.g. `e4m3`.
    pub name: &'static str,
    /// One line with the standard, the range and the treatment of NaN and infinities.
    pub doc: &'static str,
    /// Bits of a code: 2, 3, 4, 6, 8 or 16.
    pub bits: u32,
    /// The representation, with the element's default cast.
    pub repr: Repr,
}

/// Returns the number of bits that a code of `bits` bits takes in memory: 8 for 6-bit codes, else `bits`.
pub(super) const fn stored_bits(bits: u32) -> u32 {
    if bits == 6 { 8 } else { bits }
}

impl Element {
    /// Number of bits that a code takes in memory: 8 for 6-bit codes, as in PTX registers and torchao, otherwise
    /// [`Element::bits`].
    pub const fn stored_bits(&self) -> usize {
        stored_bits(self.bits) as usize
    }

    /// Returns the value of a code. Bits above [`Element::bits`] are ignored.
    pub fn decode(&self, code: u16) -> f32 {
        self.repr.decode((u32::from(code) & ((1 << self.bits) - 1)) as u16)
    }

    /// Returns the code of `x` by the element's default cast, to nearest with ties to even.
    ///
    /// E8M0, which holds scales, instead rounds up to the next power of two (PTX `cvt.rp.satfinite.ue8m0x2`), and ignores the
    /// sign.
    pub fn encode(&self, x: f32) -> u16 {
        self.repr.encode(x)
    }

    /// Returns the largest finite magnitude.
    pub fn max(&self) -> f32 {
        match self.repr {
            Repr::Float(FloatCast { float, .. }) => self.repr.decode(float.max as u16),
            Repr::Integer(integer) => self.repr.decode(integer.max as u16),
            Repr::Codebook(book) => book.max(),
            Repr::Power(_) => self.repr.decode(254),
        }
    }

    /// True for an unsigned integer, which needs a zero point next to its scale.
    pub fn needs_zero_point(&self) -> bool {
        matches!(self.repr, Repr::Integer(integer) if !integer.is_signed())
    }

    /// True if the element can hold only scales, not values.
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

    /// True if some code is NaN, so that a NaN survives the cast.
    pub fn has_nan(&self) -> bool {
        match self.repr {
            Repr::Float(FloatCast { float, .. }) => float.has_nan(),
            Repr::Integer(_) | Repr::Codebook(_) => false,
            Repr::Power(_) => true,
        }
    }
}

/// Returns the cast of a signed float format whose exponent has the usual bias `2^(E-1) − 1`.
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

// The casts are constants, so that loops can be specialised for them.
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

/// Number of sign bits of a symmetric integer, with as many codes below 0 as above.
const SIGNED: u32 = 1;
/// Number of sign bits of an unsigned integer, whose codes `0 … 2^bits − 1` are decoded with a zero point.
const UNSIGNED: u32 = 0;

const fn integer(sign_bits: u32, bits: u32, fraction_bits: u32) -> Repr {
    let max = (1 << (bits - sign_bits)) - 1;
    Repr::Integer(Integer {
        bits,
        min: -max * sign_bits as i32,
        max,
        fraction_bits,
        whole: Whole::Even,
    })
}

/// Declares each element as a static, and lists all in `ELEMENTS`. An entry consists of the name of the static, the name of the
/// format, its bits, its representation and, after `;`, its description.
macro_rules! elements {
    ($($element:ident $name:literal $bits:literal $repr:expr; $doc:literal)*) => {
        $(
            #[doc = $doc]
            pub static $element: Element = Element { name: $name, doc: $doc, bits: $bits, repr: $repr };
        )*
        /// All element formats.
        pub const ELEMENTS: &[&Element] = &[$(&$element),*];
    };
}

elements! {
    BF16 "bf16" 16 Repr::Float(BF16_CAST);
        "bfloat16: the upper half of an f32; overflow gives infinity"
    F16 "f16" 16 Repr::Float(F16_CAST);
        "IEEE 754 binary16; overflow gives infinity"
    E4M3 "e4m3" 8 Repr::Float(E4M3_CAST);
        "OCP OFP8 E4M3 (\"fn\"): no infinities; overflow and infinities saturate to 448, NaN stays NaN"
    E5M2 "e5m2" 8 Repr::Float(E5M2_CAST);
        "OCP OFP8 E5M2; overflow and infinities saturate to 57344, NaN stays NaN"
    E3M2 "e3m2" 6 Repr::Float(float(3, 2, 0x1f, false, Policy::satfinite(0x1f)));
        "OCP MX FP6 E3M2, one code per byte; no NaN, so NaN is stored in the scale, whose type must have one"
    E2M3 "e2m3" 6 Repr::Float(float(2, 3, 0x1f, false, Policy::satfinite(0x1f)));
        "OCP MX FP6 E2M3, one code per byte; no NaN, so NaN is stored in the scale, whose type must have one"
    E2M1 "e2m1" 4 Repr::Float(E2M1_CAST);
        "OCP MX FP4: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives; no NaN, so NaN is stored in the scale, \
         whose type must have one"
    INT8 "int8" 8 integer(SIGNED, 8, 0);
        "symmetric integer -127 … 127; no NaN, so NaN is stored in the scale, whose type must have one"
    INT4 "int4" 4 integer(SIGNED, 4, 0);
        "symmetric integer -7 … 7; no NaN, so NaN is stored in the scale, whose type must have one"
    INT3 "int3" 3 integer(SIGNED, 3, 0);
        "symmetric integer -3 … 3; no NaN, so NaN is stored in the scale, whose type must have one"
    INT2 "int2" 2 integer(SIGNED, 2, 0);
        "symmetric integer -1 … 1; no NaN, so NaN is stored in the scale, whose type must have one"
    UINT8 "uint8" 8 integer(UNSIGNED, 8, 0);
        "integer 0 … 255 with a scale and a zero point"
    UINT4 "uint4" 4 integer(UNSIGNED, 4, 0);
        "integer 0 … 15 with a scale and a zero point"
    UINT3 "uint3" 3 integer(UNSIGNED, 3, 0);
        "integer 0 … 7 with a scale and a zero point"
    UINT2 "uint2" 2 integer(UNSIGNED, 2, 0);
        "integer 0 … 3 with a scale and a zero point"
    NF4 "nf4" 4 Repr::Codebook(NF4_VALUES);
        "NormalFloat4 of QLoRA: the 16 quantiles of a normal distribution in -1 … 1 that bitsandbytes uses; code 7 is \
         0; no NaN, so NaN is stored in the scale, whose type must have one"
    MXINT8 "mxint8" 8 integer(SIGNED, 8, 6);
        "OCP MX INT8: i/64 for i = -127 … 127; no NaN, so NaN is stored in the scale, whose type must have one"
    UE4M3 "ue4m3" 8 Repr::Float(UE4M3_CAST);
        "E4M3 without a sign, the scale of NVFP4: negative numbers become 0, codes with the top bit are NaN; for \
         scales only"
    E8M0 "e8m0" 8 Repr::Power(PowerCast::UP);
        "OCP MX scale: powers of two 2^-127 … 2^127 and NaN (255); for scales only"
}

/// Returns the element format with this name.
pub fn element(name: &str) -> Option<&'static Element> {
    ELEMENTS.iter().copied().find(|element| element.name == name)
}
