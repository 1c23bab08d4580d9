//! E8M0 scales, which are powers of two.

use super::cast::{Cast, INFINITY_BITS, Limits};

/// The cast of an f32 to the exponent byte `b` of `2^(b-127)`; 255 is NaN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PowerCast {
    /// A normal number is rounded up if its fraction bits exceed this threshold.
    pub threshold: u32,
    /// Threshold for subnormal f32 numbers: if the fraction bits exceed it, the code is 1 (2^-126), otherwise 0 (2^-127, whose
    /// fraction bits are 0x400000).
    pub subnormal_threshold: u32,
    /// True if infinities and numbers that round beyond 2^127 become NaN instead of 2^127.
    pub special: bool,
    /// True if zero and negative numbers become NaN; otherwise the sign is ignored, and zero becomes 2^-127.
    pub positive_only: bool,
}

impl PowerCast {
    /// Rounds to the smallest power not below the number: PTX `cvt.rp.satfinite.ue8m0x2.f32`.
    pub(crate) const UP: Self = Self {
        threshold: 0,
        subnormal_threshold: 0x40_0000,
        special: false,
        positive_only: false,
    };
    /// Rounds to the largest power not above the number: PTX `cvt.rz.satfinite.ue8m0x2.f32`.
    pub(crate) const DOWN: Self = Self {
        threshold: 0x7f_ffff,
        subnormal_threshold: 0x7f_ffff,
        ..Self::UP
    };
    /// Rounds to the nearest power; a tie goes to the larger power, also among subnormals, as in torch and ml_dtypes.
    pub(crate) const HALF_UP: Self = Self {
        threshold: 0x3f_ffff,
        subnormal_threshold: 0x40_0000,
        special: true,
        positive_only: false,
    };
    /// Rounds to the power of two whose logarithm is nearest: the border is √2 times a power. 0x3504f3 holds the fraction bits of
    /// √2, rounded down.
    pub(crate) const NEAREST: Self = Self {
        threshold: 0x35_04f3,
        subnormal_threshold: 0x40_0000 + 0x35_04f3 / 2,
        ..Self::UP
    };

    /// Returns the same cast, except that zero and negative numbers become NaN.
    pub(crate) const fn positive_only(self) -> Self {
        Self {
            positive_only: true,
            ..self
        }
    }

    /// Returns the same cast, except that infinities and numbers that round beyond 2^127 become NaN.
    pub(crate) const fn special(self) -> Self {
        Self { special: true, ..self }
    }
}

impl Cast for PowerCast {
    const WIDTHS: &'static [u32] = &[8];

    #[inline(always)]
    fn encode(&self, x: f32) -> u32 {
        let magnitude = x.to_bits() & 0x7fff_ffff;
        let (field, fraction) = (magnitude >> 23, magnitude & 0x7f_ffff);
        let threshold = if field == 0 {
            self.subnormal_threshold
        } else {
            self.threshold
        };
        // An infinity is rounded like a number beyond 2^127.
        let code = (field + u32::from(fraction > threshold)).min(254 + u32::from(self.special));
        let unfit = self.positive_only & ((magnitude == 0) | x.is_sign_negative());
        let refused = (magnitude > INFINITY_BITS) | unfit;
        if refused { 255 } else { code }
    }

    #[inline(always)]
    fn decode(&self, code: u32) -> f32 {
        e8m0_value(code as u8)
    }
}

/// Returns the value of an E8M0 code: `2^(code-127)`, NaN for 255.
#[inline(always)]
pub(super) fn e8m0_value(code: u8) -> f32 {
    f32::from_bits(match code {
        0 => 0x0040_0000,
        255 => 0x7fc0_0000,
        _ => u32::from(code) << 23,
    })
}

/// Formula of the power of two that scales a block; `amax` is the block's largest magnitude, `max` is the element's largest
/// value, and `emax` is ⌊log2 max⌋.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pick {
    /// `2^(⌊log2 amax⌋ − emax)`.
    Floor,
    /// `2^(⌈log2 amax⌉ − emax)`.
    Ceil,
    /// The formula of `Floor`, after `amax` is rounded to the element's mantissa bits, ties up.
    Even,
    /// The cast of `amax · fl32(1/max)`.
    Cast(PowerCast),
    /// `⌈fl32(log2(amax / max))⌉`. The result is one power too low if the logarithm rounds down to an integer.
    Log,
}

/// A rule for E8M0 scales: one byte, a power of two.
#[derive(Debug, PartialEq)]
pub struct PowerRule {
    /// Name in format strings, e.g. `rceil`.
    pub name: &'static str,
    /// One line with the rule's formula and the library that uses it.
    pub doc: &'static str,
    /// Formula of the power of two, from a block's largest magnitude.
    pub pick: Pick,
    /// Lower bound of `amax`, the largest magnitude of a block: smaller magnitudes are raised to it.
    pub amax_floor: f32,
    /// True if a block with an infinity gets a NaN scale; otherwise its scale is the largest power that the rule can give.
    pub infinity_is_nan: bool,
    /// Factor by which encoding multiplies the elements of a block whose scale is 2^-127 (code 0).
    pub multiplier_of_zero: f32,
}

impl PowerRule {
    /// Computes the scale of each block from `amax`, the bits of the block's largest magnitude. Fills `stored` with the E8M0
    /// codes of the scales, and `factors` with the factor of each block's elements.
    #[inline(always)]
    pub(super) fn encode(&self, amax: &[u32], limits: &Limits, stored: &mut [u8], factors: &mut [f32]) {
        // The first arm passes the most common cast as a constant, so that its loop vectorises.
        match self.pick {
            Pick::Cast(PowerCast::UP) => self.codes(Pick::Cast(PowerCast::UP), amax, limits, stored),
            pick => self.codes(pick, amax, limits, stored),
        }
        for (code, factor) in stored.iter().zip(factors) {
            *factor = self.factor(*code);
        }
    }

    /// Returns the factor by which encoding multiplies elements whose scale has the code `code`.
    #[inline(always)]
    pub(super) fn factor(&self, code: u8) -> f32 {
        // 254 − code is the code of the reciprocal. The reciprocal of 2^127 is the subnormal 2^-127. The factor for a NaN scale
        // does not matter: all its elements decode to NaN.
        let reciprocal = e8m0_value(254u8.saturating_sub(code));
        if code == 0 { self.multiplier_of_zero } else { reciprocal }
    }

    #[inline(always)]
    fn codes(&self, pick: Pick, amax: &[u32], limits: &Limits, stored: &mut [u8]) {
        for (amax, code) in amax.iter().zip(stored) {
            *code = self.code(pick, *amax, limits);
        }
    }

    #[inline(always)]
    fn code(&self, pick: Pick, amax: u32, limits: &Limits) -> u8 {
        let bits = amax.max(self.amax_floor.to_bits());
        let value = f32::from_bits(bits);
        let aligned = |field: u32| (field as i32 - limits.exponent).clamp(0, 254) as u8;
        let code = match pick {
            Pick::Floor => aligned(bits >> 23),
            Pick::Ceil => aligned((bits >> 23) + u32::from(bits & 0x7f_ffff != 0)),
            Pick::Even => match (bits + (1 << (22 - limits.mantissa_bits))) >> 23 {
                // The largest f32 numbers are rounded up to 2^128, which has the exponent field 255 of infinity.
                255 if self.infinity_is_nan => 255,
                field => aligned(field),
            },
            Pick::Cast(cast) => cast.encode(value * limits.inverse) as u8,
            Pick::Log => {
                let log = f64::from(value / limits.max).log2() as f32;
                (log.ceil().clamp(-127.0, 127.0) as i32 + 127) as u8
            }
        };
        let nan_from = INFINITY_BITS + u32::from(!self.infinity_is_nan);
        if amax >= nan_from { 255 } else { code }
    }
}

const fn rule(name: &'static str, doc: &'static str, pick: Pick) -> PowerRule {
    PowerRule {
        name,
        doc,
        pick,
        amax_floor: 0.0,
        infinity_is_nan: true,
        multiplier_of_zero: f32::from_bits(0x7f00_0000),
    }
}

/// Returns a rule of torchao 0.18: infinities saturate, and blocks with the scale 2^-127 use another factor.
const fn torchao_018(name: &'static str, doc: &'static str, pick: Pick, multiplier_of_zero: f32) -> PowerRule {
    PowerRule {
        infinity_is_nan: false,
        multiplier_of_zero,
        ..rule(name, doc, pick)
    }
}

const UP: Pick = Pick::Cast(PowerCast::UP);
/// Factor by which torchao 0.18 multiplies values under the scale 2^-127. Such values decode to half their size.
const HALVING: f32 = f32::from_bits(0x7e80_0000);

/// Rules for E8M0 scales; the first is the default.
#[rustfmt::skip]
pub const POWER_RULES: &[&PowerRule] = &[
    &rule("rceil", "smallest power of two not below amax·fl32(1/max) (cuBLAS, torchao RCEIL)", UP),
    &rule("floor", "2^(⌊log2 amax⌋ − emax); the top of a block may saturate (OCP MX v1.0 §6.3, torchao FLOOR)",
        Pick::Floor),
    &rule("ceil", "2^(⌈log2 amax⌉ − emax) (torchao CEIL)", Pick::Ceil),
    &rule("even", "floor of amax rounded to the element's mantissa (torchao EVEN)", Pick::Even),
    &PowerRule { infinity_is_nan: false, ..rule("te",
        "rceil, but an infinity saturates to 2^127 (TransformerEngine MXFP8, whose maximum also ignores NaN)", UP) },
    &rule("vllm",
        "largest power of two not above amax·fl32(1/max) (vLLM's UE8M0 scales of FP4, which truncate the exponent)",
        Pick::Cast(PowerCast::DOWN)),
    &ACT_QUANT,
    &FP4_ACT_QUANT,
    &FLASHMLA_V41,
    &NEAREST,
    &PowerRule { infinity_is_nan: false, multiplier_of_zero: 0.0, ..rule("flashinfer",
        "rceil, but an infinity saturates, and a block with the scale 2^-127 is stored as zeros (FlashInfer MXFP8, its \
         rcp.approx taken as exact: on a GPU a scale may be one code off where amax/max is a power of two)", UP) },
    &PowerRule { infinity_is_nan: false, ..rule("modelopt",
        "2^⌈fl32(log2(amax/max))⌉, at least 2^-127 (ModelOpt MXFP4; its cast is e2m1(modelopt_mxfp4))", Pick::Log) },
    &torchao_018("torchao_018_floor",
        "floor as of torchao 0.18: an infinity saturates, values with the scale 2^-127 decode to half their size",
        Pick::Floor, HALVING),
    &torchao_018("torchao_018_ceil", "ceil as of torchao 0.18, see torchao_018_floor", Pick::Ceil, HALVING),
    &torchao_018("torchao_018_even", "even as of torchao 0.18, see torchao_018_floor", Pick::Even, HALVING),
    &torchao_018("torchao_018_rceil",
        "2^⌈fl32(log2(amax/max))⌉ as of torchao 0.18: one step too low just above max·2^k; an infinity saturates, \
         values with the scale 2^-127 are not scaled", Pick::Log, 1.0),
];

// Scale rules of KV-cache records.
pub static ACT_QUANT: PowerRule = PowerRule {
    amax_floor: 1e-4,
    ..rule(
        "act_quant",
        "rceil of max(amax, 1e-4) (DeepSeek act_quant with ue8m0 scales, vLLM, DeepGEMM)",
        UP,
    )
};
pub static FP4_ACT_QUANT: PowerRule = PowerRule {
    amax_floor: 6.0 * f32::MIN_POSITIVE,
    ..rule(
        "fp4_act_quant",
        "rceil of max(amax, 6·2^-126) (DeepSeek fp4_act_quant)",
        UP,
    )
};
pub static FLASHMLA_V41: PowerRule = PowerRule {
    amax_floor: 448.0 / 8192.0,
    ..rule(
        "flashmla_v41",
        "rceil with scales of at least 2^-13, the power of two above 1e-4 (FlashMLA, SGLang: DeepSeek-V4.1 KV)",
        UP,
    )
};
pub static NEAREST: PowerRule = rule(
    "nearest",
    "power nearest to amax/max in the logarithm; the top of a block may saturate (SGLang MXFP4 KV)",
    Pick::Cast(PowerCast::NEAREST),
);
