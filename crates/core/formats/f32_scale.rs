//! Rules for scales that are stored as f32, f16 or bf16.

use super::cast::{Cast, INFINITY_BITS, Limits, Operation};
use super::half::Half;
use super::power::{PowerCast, e8m0_value};

/// Meaning of the stored scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredScale {
    /// The factor by which decoding multiplies codes.
    Decode,
    /// The factor by which encoding multiplied values. Decoding divides codes by it.
    Encode,
}

/// Rule that computes a floating-point scale from the largest magnitude of a block.
#[derive(Debug, PartialEq)]
pub struct F32Rule {
    /// Name in format strings, e.g. `deepgemm` in `e4m3/b128:f32(deepgemm)`.
    pub name: &'static str,
    /// One line with the rule's formula and the library that uses it.
    pub doc: &'static str,
    /// Lower bound of `amax`, the largest magnitude of a block: smaller magnitudes are raised to it.
    pub amax_floor: f32,
    /// True to round the scale to a power of two: up for [`StoredScale::Decode`], down for [`StoredScale::Encode`].
    pub power: bool,
    /// True if encoding computes `x / s` instead of `x · fl32(1/s)`; only with [`StoredScale::Decode`].
    pub divide: bool,
    /// Lower bound of the scale `s` in the reciprocal `fl32(1/s)`: smaller scales are raised to it.
    pub reciprocal_floor: f32,
    /// True to round a 16-bit scale up, to the smallest value not below the f32 scale; false to round to nearest.
    pub up: bool,
    /// Meaning of the stored scale: factor of decoding or of encoding.
    pub stored: StoredScale,
}

impl F32Rule {
    /// Computes the scale of each block from `amax`, the bits of the block's largest magnitude. Fills `stored` with the bytes of
    /// the scales, and `factors` with the number by which each block's elements are multiplied or divided. `round` rounds a scale
    /// to its stored type and returns its value and bytes.
    #[inline(always)]
    pub(super) fn encode<const N: usize>(
        &self,
        amax: &[u32],
        limits: &Limits,
        round: impl Fn(f32) -> (f32, [u8; N]),
        stored: &mut [u8],
        factors: &mut [f32],
    ) {
        for ((amax, bytes), factor) in amax.iter().zip(stored.as_chunks_mut().0).zip(factors) {
            let scale;
            (scale, *bytes) = round(self.scale(*amax, limits));
            *factor = self.factor(scale);
        }
    }

    /// Rounds a scale to 16 bits, and returns its value and bytes.
    #[inline(always)]
    pub(super) fn in_half(&self, half: Half, scale: f32) -> (f32, [u8; 2]) {
        let scale = if self.up { half.up(scale) } else { half.nearest(scale) };
        (scale, half.bytes(scale))
    }

    #[inline(always)]
    fn scale(&self, amax: u32, limits: &Limits) -> f32 {
        if amax >= INFINITY_BITS {
            return f32::NAN;
        }
        let amax = f32::from_bits(amax.max(self.amax_floor.to_bits()));
        match (self.stored, self.power) {
            (StoredScale::Decode, false) => amax / limits.max,
            (StoredScale::Decode, true) => e8m0_value(PowerCast::UP.encode(amax * limits.inverse) as u8),
            // The lower bound of `amax`, 1e-12, is not exact in f32, so the quotient is computed in f64.
            (StoredScale::Encode, power) => {
                let scale = (f64::from(limits.max) / f64::from(amax).max(1e-12)) as f32;
                let below = f32::from_bits(scale.to_bits() & INFINITY_BITS);
                if power { below } else { scale }
            }
        }
    }

    /// Returns the number by which encoding multiplies or divides elements whose stored scale is `scale`. With a scale of 0 (a
    /// block of zeros, or an underflow) all codes become zeros.
    #[inline(always)]
    pub(super) fn factor(&self, scale: f32) -> f32 {
        match (self.stored, self.divide) {
            (StoredScale::Encode, _) => scale,
            (StoredScale::Decode, true) if scale == 0.0 => f32::INFINITY,
            (StoredScale::Decode, true) => scale,
            (StoredScale::Decode, false) if scale == 0.0 => 0.0,
            (StoredScale::Decode, false) => 1.0 / at_least(scale, self.reciprocal_floor),
        }
    }

    pub(super) fn operation(&self) -> Operation {
        Operation::by(self.stored == StoredScale::Decode && self.divide)
    }

    /// Returns the operation of decoding: division if the stored scale is the factor of encoding, else multiplication.
    pub(super) fn inverse(&self) -> Operation {
        Operation::by(self.stored == StoredScale::Encode)
    }
}

const fn rule(name: &'static str, doc: &'static str) -> F32Rule {
    F32Rule {
        name,
        doc,
        amax_floor: 0.0,
        power: false,
        divide: true,
        reciprocal_floor: 0.0,
        up: false,
        stored: StoredScale::Decode,
    }
}

/// Returns the larger of `x` and `floor`. If `x` is NaN, the result is NaN, unlike that of `f32::max`.
#[inline(always)]
fn at_least(x: f32, floor: f32) -> f32 {
    if x < floor { floor } else { x }
}

/// Rules for f32 scales; the first is the default.
#[rustfmt::skip]
pub const F32_RULES: &[&F32Rule] = &[
    &DIV,
    &F32Rule { amax_floor: 1e-4, divide: false, ..rule("deepgemm",
        "s = max(amax, 1e-4)/max, elements x·fl32(1/s) (DeepGEMM per_token_cast_to_fp8 and its per-block and \
         per-channel siblings)") },
    &F32Rule { amax_floor: 1.0 / 512.0, divide: false, ..rule("vllm",
        "s = max(amax, 1/512)/max, elements x·fl32(1/s) (vLLM dynamic per-token FP8)") },
    &F32Rule { amax_floor: 1.0 / 512.0, ..rule("vllm_div",
        "s = max(amax, 1/512)/max, elements x/s (vLLM's kernel that divides)") },
    &VLLM_MLA,
    &ACT_QUANT_F32,
    &F32Rule { stored: StoredScale::Encode, ..rule("torchao",
        "stores s = fl32(max/max(amax, 1e-12)), the quotient in f64; elements x·s, values q/s (torchao float8)") },
    &F32Rule { stored: StoredScale::Encode, power: true, ..rule("torchao_power",
        "torchao's s rounded down to a power of two (torchao float8, round_scales_to_power_of_2)") },
    &F32Rule { divide: false, reciprocal_floor: 1e-38, ..rule("bitsandbytes",
        "s = amax/max, elements x·fl32(1/max(s, 1e-38)) (bitsandbytes quantize_4bit, whose max is 1)") },
];

/// Rules for 16-bit scales; the first is the default.
#[rustfmt::skip]
pub const HALF_RULES: &[&F32Rule] = &[
    &DIV,
    &F32Rule { up: true, ..rule("up",
        "the smallest s not below fl32(amax/max), elements x/s: nothing saturates") },
];

const DIV: F32Rule = rule("div", "s = amax/max, elements x/s; a block of zeros has s = 0");

// Scale rules of KV-cache records.
pub static VLLM_MLA: F32Rule = F32Rule {
    amax_floor: 448.0 * f32::MIN_POSITIVE,
    ..rule(
        "vllm_mla",
        "s = max(amax/448, 2^-126), elements x/s (vLLM concat_and_cache_ds_mla)",
    )
};
pub static ACT_QUANT_F32: F32Rule = F32Rule {
    amax_floor: 1e-4,
    power: true,
    divide: false,
    ..rule(
        "act_quant",
        "max(amax, 1e-4)·fl32(1/max) rounded up to a power of two, kept as f32 (DeepGEMM with use_ue8m0, vLLM \
         indexer_k_quant_and_cache)",
    )
};
