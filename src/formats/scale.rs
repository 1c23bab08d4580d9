//! Scales: how the largest magnitude of a block becomes the factor its elements are stored against.
//!
//! A rule is a row of a table; what differs between libraries is data. A NaN or an infinity in a block makes its scale
//! NaN and so the whole block: it must not vanish in a cast to an element that has no NaN.

use super::element::{Cast, E4M3_FLOAT, Limits};
use super::nvfp4::Nvfp4Rule;

/// Bits of the largest magnitude, as an unsigned integer: there NaN > infinity > finite, so that a maximum over it
/// propagates NaN, which `f32::max` drops.
pub(super) const INFINITY_BITS: u32 = 0x7f80_0000;

/// The value of an E8M0 code: `2^(code-127)`, NaN for 255.
#[inline(always)]
pub(super) fn e8m0_value(code: u8) -> f32 {
    match code {
        0 => f32::from_bits(0x0040_0000),
        255 => f32::NAN,
        _ => f32::from_bits(u32::from(code) << 23),
    }
}

/// The E8M0 code of the smallest power of two that is not below `|x|`, by the bits of `x`; infinity saturates.
#[inline(always)]
pub(super) fn e8m0_ceil(x: f32) -> u8 {
    e8m0_round(x, 0)
}

/// The E8M0 code of the power of two below `|x|`, or of the next one where `|x|` is more than `1 + fraction/2^23` times
/// the lower one.
#[inline(always)]
fn e8m0_round(x: f32, threshold: u32) -> u8 {
    let magnitude = x.to_bits() & 0x7fff_ffff;
    let (field, fraction) = (magnitude >> 23, magnitude & 0x7f_ffff);
    // 2^-127, the power of code 0, is the fraction 0x400000 of a subnormal.
    let up = if field == 0 {
        fraction > 0x40_0000 + threshold / 2
    } else {
        fraction > threshold
    };
    if magnitude > INFINITY_BITS {
        255
    } else {
        (field + u32::from(up)).min(254) as u8
    }
}

/// How elements are divided by their scale before the cast.
#[derive(Clone, Copy, Debug)]
pub(super) struct Quotient {
    pub factor: f32,
    /// `x / factor` instead of `x · factor`.
    pub divide: bool,
    /// Added last: −0 changes nothing, +0 clears the sign of a negative zero.
    pub zero: f32,
}

impl Quotient {
    pub const fn times(factor: f32) -> Self {
        Self {
            factor,
            divide: false,
            zero: -0.0,
        }
    }

    pub const fn over(factor: f32) -> Self {
        Self {
            factor,
            divide: true,
            zero: -0.0,
        }
    }

    #[inline(always)]
    pub fn apply(self, x: f32) -> f32 {
        (if self.divide { x / self.factor } else { x * self.factor }) + self.zero
    }
}

/// Which power of two a block gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pick {
    /// `2^(⌊log2 amax⌋ − emax)`.
    Floor,
    /// `2^(⌈log2 amax⌉ − emax)`.
    Ceil,
    /// Floor of `amax` rounded to the element's mantissa bits, half a step up.
    Even,
    /// The smallest power not below `amax · fl32(1/max)`: nothing saturates.
    RoundUp,
    /// The power nearest to `amax · fl32(1/max)` in the logarithm.
    Nearest,
}

/// A rule for E8M0 scales: one byte, a power of two.
#[derive(Debug, PartialEq)]
pub struct PowerRule {
    pub name: &'static str,
    pub doc: &'static str,
    pub pick: Pick,
    /// `amax` counts as at least this.
    pub amax_floor: f32,
}

impl PowerRule {
    /// The scale's code for the bits of `amax`.
    #[inline(always)]
    pub(super) fn code(&self, amax: u32, limits: &Limits) -> u8 {
        if amax >= INFINITY_BITS {
            return 255;
        }
        let amax = amax.max(self.amax_floor.to_bits());
        let field = match self.pick {
            Pick::Floor => amax >> 23,
            Pick::Ceil => (amax >> 23) + u32::from(amax & 0x7f_ffff != 0),
            Pick::Even => (amax + (1 << (22 - limits.mantissa_bits))) >> 23,
            Pick::RoundUp => return e8m0_ceil(f32::from_bits(amax) * limits.inverse),
            // 0x3504f3 are the fraction bits of √2 rounded down.
            Pick::Nearest => return e8m0_round(f32::from_bits(amax) * limits.inverse, 0x35_04f3),
        };
        // Half a step above the largest f32 is infinity.
        if field == 255 && self.pick == Pick::Even {
            255
        } else {
            field.saturating_sub(limits.exponent).min(254) as u8
        }
    }
}

/// Rules for E8M0 scales; the first is the default.
pub const POWER_RULES: &[&PowerRule] = &[
    &RCEIL,
    &FLOOR,
    &CEIL,
    &EVEN,
    &ACT_QUANT,
    &FP4_ACT_QUANT,
    &FLASHMLA_V41,
    &NEAREST,
];

pub static RCEIL: PowerRule = PowerRule {
    name: "rceil",
    doc: "smallest power of two not below amax·fl32(1/max) (cuBLAS, TransformerEngine, torchao RCEIL)",
    pick: Pick::RoundUp,
    amax_floor: 0.0,
};
pub static FLOOR: PowerRule = PowerRule {
    name: "floor",
    doc: "2^(⌊log2 amax⌋ − emax); the top of a block may saturate (OCP MX v1.0 §6.3)",
    pick: Pick::Floor,
    amax_floor: 0.0,
};
pub static CEIL: PowerRule = PowerRule {
    name: "ceil",
    doc: "2^(⌈log2 amax⌉ − emax) (torchao CEIL)",
    pick: Pick::Ceil,
    amax_floor: 0.0,
};
pub static EVEN: PowerRule = PowerRule {
    name: "even",
    doc: "floor of amax rounded to the element's mantissa (torchao EVEN)",
    pick: Pick::Even,
    amax_floor: 0.0,
};
pub static ACT_QUANT: PowerRule = PowerRule {
    name: "act_quant",
    doc: "rceil of max(amax, 1e-4) (DeepSeek act_quant with ue8m0 scales, vLLM, DeepGEMM)",
    pick: Pick::RoundUp,
    amax_floor: 1e-4,
};
pub static FP4_ACT_QUANT: PowerRule = PowerRule {
    name: "fp4_act_quant",
    doc: "rceil of max(amax, 6·2^-126) (DeepSeek fp4_act_quant)",
    pick: Pick::RoundUp,
    amax_floor: 6.0 * f32::MIN_POSITIVE,
};
pub static FLASHMLA_V41: PowerRule = PowerRule {
    name: "flashmla_v41",
    doc: "rceil with scales of at least 2^-13, the power of two above 1e-4 (FlashMLA, SGLang: DeepSeek-V4.1 KV)",
    pick: Pick::RoundUp,
    amax_floor: 448.0 / 8192.0,
};
pub static NEAREST: PowerRule = PowerRule {
    name: "nearest",
    doc: "power nearest to amax/max in the logarithm; the top of a block may saturate (SGLang MXFP4 KV)",
    pick: Pick::Nearest,
    amax_floor: 0.0,
};

/// A rule for f32 scales.
#[derive(Debug, PartialEq)]
pub struct F32Rule {
    pub name: &'static str,
    pub doc: &'static str,
    /// `amax` counts as at least this.
    pub amax_floor: f32,
    /// Round the scale up to a power of two, as [`Pick::RoundUp`] does.
    pub power: bool,
    /// `x / s` instead of `x · fl32(1/s)`.
    pub divide: bool,
}

impl F32Rule {
    #[inline(always)]
    pub(super) fn scale(&self, amax: u32, limits: &Limits) -> f32 {
        if amax >= INFINITY_BITS {
            return f32::NAN;
        }
        let amax = f32::from_bits(amax.max(self.amax_floor.to_bits()));
        if self.power {
            e8m0_value(e8m0_ceil(amax * limits.inverse))
        } else {
            amax / limits.max
        }
    }

    #[inline(always)]
    pub(super) fn quotient(&self, scale: f32) -> Quotient {
        // A block of zeros, or one so small that its scale underflows, is stored as zeros.
        if scale == 0.0 {
            Quotient::times(0.0)
        } else if self.divide {
            Quotient::over(scale)
        } else {
            Quotient::times(1.0 / scale)
        }
    }
}

/// Rules for f32 scales; the first is the default.
pub const F32_RULES: &[&F32Rule] = &[&DIV, &DEEPGEMM, &VLLM_TOKEN, &VLLM_MLA, &ACT_QUANT_F32];

pub static DIV: F32Rule = F32Rule {
    name: "div",
    doc: "s = amax/max, elements x/s; a block of zeros has s = 0",
    amax_floor: 0.0,
    power: false,
    divide: true,
};
pub static DEEPGEMM: F32Rule = F32Rule {
    name: "deepgemm",
    doc: "s = max(amax, 1e-4)/max, elements x·fl32(1/s) (DeepGEMM per_token_cast_to_fp8)",
    amax_floor: 1e-4,
    power: false,
    divide: false,
};
pub static VLLM_TOKEN: F32Rule = F32Rule {
    name: "vllm",
    doc: "s = max(amax, 1/512)/max, elements x·fl32(1/s) (vLLM dynamic per-token FP8)",
    amax_floor: 1.0 / 512.0,
    power: false,
    divide: false,
};
pub static VLLM_MLA: F32Rule = F32Rule {
    name: "vllm_mla",
    doc: "s = max(amax/448, 2^-126), elements x/s (vLLM concat_and_cache_ds_mla)",
    amax_floor: 448.0 * f32::MIN_POSITIVE,
    power: false,
    divide: true,
};
pub static ACT_QUANT_F32: F32Rule = F32Rule {
    name: "act_quant",
    doc: "max(amax, 1e-4)·fl32(1/max) rounded up to a power of two, kept as f32 (vLLM indexer_k_quant_and_cache, ue8m0)",
    amax_floor: 1e-4,
    power: true,
    divide: false,
};

/// A stored scale: its format and the rule that picks it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scale {
    E8m0(&'static PowerRule),
    F32(&'static F32Rule),
    E4m3(&'static Nvfp4Rule),
}

impl Scale {
    /// Bytes of one scale.
    pub const fn bytes(&self) -> usize {
        match self {
            Self::E8m0(_) | Self::E4m3(_) => 1,
            Self::F32(_) => 4,
        }
    }

    /// Name of its format in format strings.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::E8m0(_) => "e8m0",
            Self::F32(_) => "f32",
            Self::E4m3(_) => "e4m3",
        }
    }

    pub const fn rule(&self) -> (&'static str, &'static str) {
        match self {
            Self::E8m0(rule) => (rule.name, rule.doc),
            Self::F32(rule) => (rule.name, rule.doc),
            Self::E4m3(rule) => (rule.name, rule.doc),
        }
    }

    /// Stores the scale for the bits of `amax` and tells how the elements are to be divided by it.
    #[inline(always)]
    pub(super) fn encode(&self, amax: u32, limits: &Limits, global: f32, out: &mut [u8]) -> Quotient {
        match self {
            Self::E8m0(rule) => {
                let code = rule.code(amax, limits);
                out[0] = code;
                // 254 - code is the code of the reciprocal; of 2^127 that is the subnormal 2^-127.
                Quotient::times(if code == 255 { f32::NAN } else { e8m0_value(254 - code) })
            }
            Self::F32(rule) => {
                let scale = rule.scale(amax, limits);
                out.copy_from_slice(&scale.to_le_bytes());
                rule.quotient(scale)
            }
            Self::E4m3(rule) => {
                let finite = amax < INFINITY_BITS && global.is_finite();
                let amax = if finite { f32::from_bits(amax) } else { f32::NAN };
                let (code, quotient) = (rule.encode)(amax, global);
                out[0] = code;
                quotient
            }
        }
    }

    /// What the elements of a block are multiplied by.
    #[inline(always)]
    pub(super) fn decode(&self, bytes: &[u8], global: f32) -> f32 {
        match self {
            Self::E8m0(_) => e8m0_value(bytes[0]),
            Self::F32(_) => f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]),
            Self::E4m3(rule) => (rule.decode)(E4M3_FLOAT.decode(u32::from(bytes[0])), global),
        }
    }
}
