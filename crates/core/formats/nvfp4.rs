//! Scales of NVFP4: an E4M3 scale per block of E2M1, with or without an f32 global scale.
//!
//! All libraries decode the same bytes to the same values, up to the last bit of a product. But they encode the same values to
//! different bytes. Each library's rule is a row of a table. `amax_b` is the largest magnitude of a block, and `amax` the largest
//! magnitude of all blocks under one global scale. Encoding multiplies values by the f32 `G = span/amax` (see
//! [`Nvfp4Rule::span`]). Decoding multiplies by the f32 `g`, the inverse of `G` up to rounding. Without a global scale, `G` and
//! `g` are 1.

use super::cast::{Cast, INFINITY_BITS, Operation};
use super::element::UE4M3_CAST;
use super::nvfp4_select::{self, Domain, Error, Select};

/// Value that is stored as the global scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Global {
    /// No global scale.
    Absent,
    /// The largest magnitude of the tensor or row; the decoder computes the scale from it.
    Amax,
    /// `g = amax/span`, the factor of decoding.
    Decode,
    /// `G = span/amax`, the factor of encoding.
    Encode,
}

/// Formula of a block's scale before its cast to E4M3. The module documentation defines `amax_b`, `g` and `G`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockScale {
    /// `amax_b·(G·fl32(1/6))`.
    AmaxTimesSixth,
    /// `G·(amax_b·fl32(1/6))`.
    SixthTimesG,
    /// `(amax_b/6)·G`.
    QuotientTimesG,
    /// `(amax_b/6)/g`.
    QuotientOverG,
    /// `amax_b/(6·g)`.
    OverSixG,
}

/// Formula that divides an element `x` by its scales; `s` is the value of the stored E4M3 scale. The module documentation defines
/// `g` and `G`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Division {
    /// `x·min(1/(s·fl32(1/G)), FLT_MAX)`.
    Reciprocal,
    /// `x·(1/(s·fl32(1/G)))`. The factor is infinite for `s = 0`; a block of zeros gets codes 0.
    Unclamped,
    /// `x·((1/g)/s)`.
    InverseOver,
    /// `x/(s·g)`.
    Over,
}

/// A rule for E4M3 scales of E2M1 elements.
#[derive(Debug)]
pub struct Nvfp4Rule {
    /// Name in format strings, e.g. `te`.
    pub name: &'static str,
    /// One line with the rule's formula and the library that uses it.
    pub doc: &'static str,
    /// Value that is stored as the global scale.
    pub stored: Global,
    /// Number to which the factor `G = span/amax` maps the largest magnitude: 448·6, the largest E4M3 times the largest E2M1, or
    /// less to leave headroom.
    pub span: f32,
    /// Formula of the scale of a block.
    pub scale: BlockScale,
    /// Lower bound of a block's scale before its cast.
    pub floor: f32,
    /// Scale of a block of zeros, before its cast.
    pub zero_block: f32,
    /// Formula that divides elements by their scales.
    pub division: Division,
    /// True if a block whose scale underflows to 0 gets codes 0.
    pub drops_zero_scale: bool,
    /// True if −0 is stored as +0.
    pub unsigned_zero: bool,
    /// Selection among several candidate scales.
    pub select: Select,
    /// True if the library's kernel uses approximate reciprocals (≤ 1 ulp) where this rule is exact. A value next to the border
    /// between two codes may then get either code.
    pub approximate: bool,
}

impl PartialEq for Nvfp4Rule {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

/// Factors by which encoding and decoding scale numbers, computed from the global scale.
#[derive(Clone, Copy, Debug)]
pub(super) struct Level {
    /// The stored f32 value.
    pub stored: f32,
    /// `G`, the factor of encoding.
    pub encode: f32,
    /// `fl32(1/G)`.
    pub inverse: f32,
    /// `g`, the factor of decoding.
    pub decode: f32,
}

impl Level {
    /// Factors of a format without a global scale: all are 1.
    pub const ONE: Self = Self {
        stored: 1.0,
        encode: 1.0,
        inverse: 1.0,
        decode: 1.0,
    };
}

const SIXTH: f32 = 1.0 / 6.0;

/// Like `f32::min(x, f32::MAX)`, but keeps NaN.
#[inline(always)]
pub(super) fn finite(x: f32) -> f32 {
    if x > f32::MAX { f32::MAX } else { x }
}

/// Replaces 0 by 1, to avoid a division by 0.
fn nonzero(x: f32) -> f32 {
    if x == 0.0 { 1.0 } else { x }
}

impl Nvfp4Rule {
    /// Returns `G = span/amax`, the factor of encoding, for the largest magnitude `amax`.
    fn encode_factor(&self, amax: f32) -> f32 {
        nonzero(if amax == 0.0 { 1.0 } else { finite(self.span / amax) })
    }

    /// Computes the global scale and its factors from the largest magnitude `amax`. If `amax` is not finite, all values under
    /// this global scale become NaN.
    pub(super) fn level(&self, amax: f32) -> Level {
        let amax = if amax.is_finite() { amax } else { f32::NAN };
        self.stored_level(match self.stored {
            Global::Absent => return Level::ONE,
            Global::Amax => amax,
            Global::Decode => amax / self.span,
            Global::Encode => self.encode_factor(amax),
        })
    }

    /// Returns the factors for a stored global scale.
    pub(super) fn stored_level(&self, stored: f32) -> Level {
        let (encode, inverse, decode) = match self.stored {
            Global::Absent => return Level::ONE,
            Global::Amax => {
                let encode = self.encode_factor(stored);
                (encode, 1.0 / encode, stored / self.span)
            }
            // A tensor of zeros has g = 0, for which libraries produce NaN or leave the case to the caller. Here, `nonzero`
            // replaces 0 by 1.
            Global::Decode => (1.0 / nonzero(stored), nonzero(stored), nonzero(stored)),
            Global::Encode => (stored, 1.0 / stored, 1.0 / stored),
        };
        Level {
            stored,
            encode,
            inverse,
            decode,
        }
    }

    /// Computes the scale of each block from `amax`, the bits of the block's largest magnitude. Fills `stored` with the E4M3
    /// codes of the scales, and `factors` with the factor or divisor of each block's elements.
    #[inline(always)]
    pub(super) fn encode(
        &self,
        amax: &[u32],
        (x, width): (&[f32], usize),
        level: &Level,
        stored: &mut [u8],
        factors: &mut [f32],
    ) {
        // The first arm passes the formulas of the default rule as constants, so that the loops vectorise.
        match (self.scale, self.division) {
            (BlockScale::AmaxTimesSixth, Division::Reciprocal) => {
                self.scales(BlockScale::AmaxTimesSixth, amax, level, factors);
                self.codes((x, width), amax, level, factors, stored);
                self.factors(Division::Reciprocal, amax, stored, level, factors);
            }
            (scale, division) => {
                self.scales(scale, amax, level, factors);
                self.codes((x, width), amax, level, factors, stored);
                self.factors(division, amax, stored, level, factors);
            }
        }
    }

    /// Computes the scales of blocks before their cast to E4M3.
    #[inline(always)]
    fn scales(&self, scale: BlockScale, amax: &[u32], level: &Level, out: &mut [f32]) {
        let sixth = level.encode * SIXTH;
        for (bits, out) in amax.iter().zip(out) {
            let finite = *bits < INFINITY_BITS;
            let amax = if finite { f32::from_bits(*bits) } else { f32::NAN };
            let scale = match scale {
                BlockScale::AmaxTimesSixth => amax * sixth,
                BlockScale::SixthTimesG => level.encode * (amax * SIXTH),
                BlockScale::QuotientTimesG => (amax / 6.0) * level.encode,
                BlockScale::QuotientOverG => (amax / 6.0) / level.decode,
                BlockScale::OverSixG => amax / (6.0 * level.decode),
            };
            let scale = if amax == 0.0 { self.zero_block } else { scale };
            // Unlike `f32::max`, this comparison keeps NaN. Infinities, which occur if G is large, saturate in the cast.
            *out = if scale < self.floor { self.floor } else { scale };
        }
    }

    #[inline(always)]
    fn codes(&self, (x, width): (&[f32], usize), amax: &[u32], level: &Level, scales: &[f32], stored: &mut [u8]) {
        if self.select == Select::One {
            for (scale, code) in scales.iter().zip(stored) {
                *code = UE4M3_CAST.encode(*scale) as u8;
            }
            return;
        }
        for (((block, amax), scale), code) in x.chunks(width).zip(amax).zip(scales).zip(stored) {
            *code = nvfp4_select::best(self, *amax, *scale, block, level);
        }
    }

    /// Computes the factor of each block's elements from the E4M3 code of the block's stored scale.
    #[inline(always)]
    fn factors(&self, division: Division, amax: &[u32], stored: &[u8], level: &Level, out: &mut [f32]) {
        for ((amax, code), out) in amax.iter().zip(stored).zip(out) {
            let scale = UE4M3_CAST.decode(u32::from(*code));
            *out = self.factor(division, *amax, scale, level);
        }
    }

    /// Returns the number by which encoding multiplies the elements of a block (or divides, for [`Division::Over`]). `amax` holds
    /// the bits of the block's largest magnitude, and `scale` is the value of its stored scale.
    #[inline(always)]
    pub(super) fn factor(&self, division: Division, amax: u32, scale: f32, level: &Level) -> f32 {
        let factor = match division {
            Division::Reciprocal => finite(1.0 / (scale * level.inverse)),
            Division::Unclamped if amax == 0 => 0.0,
            Division::Unclamped => 1.0 / (scale * level.inverse),
            Division::InverseOver => level.encode / scale,
            // If the product underflows to 0, the division by infinity stores zeros; a division by 0 would give NaN.
            Division::Over if scale * level.decode == 0.0 => f32::INFINITY,
            Division::Over => scale * level.decode,
        };
        let dropped = self.drops_zero_scale && scale == 0.0;
        if dropped { 0.0 } else { factor }
    }

    pub(super) fn operation(&self) -> Operation {
        Operation {
            divide: self.division == Division::Over,
            zero: if self.unsigned_zero { 0.0 } else { -0.0 },
        }
    }

    /// Returns the factor by which decoding multiplies the codes of a block, given the value of the block's stored scale.
    #[inline(always)]
    pub(super) fn decode(&self, scale: f32, level: &Level) -> f32 {
        match self.stored {
            Global::Absent => scale,
            Global::Amax => scale * level.stored * (1.0 / self.span),
            Global::Decode => scale * level.stored,
            Global::Encode => scale * level.inverse,
        }
    }
}

const fn rule(name: &'static str, doc: &'static str) -> Nvfp4Rule {
    Nvfp4Rule {
        name,
        doc,
        stored: Global::Amax,
        span: 2688.0,
        scale: BlockScale::AmaxTimesSixth,
        floor: 0.0,
        zero_block: 0.0,
        division: Division::Reciprocal,
        drops_zero_scale: false,
        unsigned_zero: false,
        select: Select::One,
        approximate: false,
    }
}

const fn single(name: &'static str, doc: &'static str) -> Nvfp4Rule {
    Nvfp4Rule {
        stored: Global::Absent,
        scale: BlockScale::SixthTimesG,
        ..rule(name, doc)
    }
}

/// Rules without a global scale; the first is the default. The table is a static, since rules are compared by address.
#[rustfmt::skip]
pub static NVFP4_SINGLE_RULES: &[&Nvfp4Rule] = &[
    &FLASHINFER,
    &Nvfp4Rule { scale: BlockScale::QuotientTimesG, floor: 1.0 / 64.0, ..single("torchao",
        "s = e4m3(max(amax_b/6, 2^-6)), elements x·fl32(1/s) (torchao)") },
    &V41,
];

/// Rules with a global scale; the first is the default.
#[rustfmt::skip]
pub static NVFP4_RULES: &[&Nvfp4Rule] = &[
    &rule("te",
        "stores amax; G = min(2688/amax, FLT_MAX), s = e4m3(amax_b·(G·fl32(1/6))), elements x·min(1/(s·fl32(1/G)), \
         FLT_MAX), value q·(s·amax·fl32(1/2688)) (TransformerEngine)"),
    &Nvfp4Rule {
        stored: Global::Decode, scale: BlockScale::QuotientOverG, floor: 1.0 / 64.0, division: Division::InverseOver,
        ..rule("torchao",
        "stores g = amax/2688; s = e4m3(max((amax_b/6)/g, 2^-6)), elements x·((1/g)/s), value q·(s·g) (torchao 0.18 \
         and main); a tensor of zeros has g = 0") },
    &Nvfp4Rule { stored: Global::Encode, scale: BlockScale::QuotientTimesG, floor: 1.0 / 64.0, ..rule("torchao_triton",
        "stores G = min(2688/amax, FLT_MAX); s = e4m3(max((amax_b/6)·G, 2^-6)), elements x·min(1/(s·fl32(1/G)), \
         FLT_MAX) (torchao's Triton kernel for training)") },
    &Nvfp4Rule {
        stored: Global::Decode, scale: BlockScale::OverSixG, zero_block: 1.0, division: Division::Over,
        unsigned_zero: true,
        ..rule("modelopt",
        "stores g = amax/2688; s = e4m3(amax_b/(6·g)), 1 for a block of zeros, elements x/(s·g), value q·(s·g) (NVIDIA \
         ModelOpt, checkpoints' weight_scale_2)") },
    &VLLM,
    &Nvfp4Rule { drops_zero_scale: false, name: "flashinfer",
        doc: "like vllm, but a block whose s underflows to 0 gets the codes of x·∞ (FlashInfer, its rcp.approx taken \
        as exact)",
        ..VLLM },
    &Nvfp4Rule { stored: Global::Encode, ..rule("flashinfer_exact",
        "stores G = 2688/amax; s and elements by te's formulas (FlashInfer's exact mode)") },
    &Nvfp4Rule {
        stored: Global::Encode, scale: BlockScale::QuotientTimesG, division: Division::Unclamped,
        drops_zero_scale: true,
        ..rule("fouroversix",
        "stores G = 2688/amax; s = e4m3((amax_b/6)·G), elements x·(1/(s·fl32(1/G))), 0 where s = 0 (fouroversix \
         without its selection; the published NVFP4 training recipe)") },
    &four_over_six("te46_mae", 448.0, Error::Absolute, Domain::F32,
        "four-over-six: s = e4m3((amax_b/6)·G) or 3/2 of it, whichever has the smaller Σ|error|; otherwise like te \
         (TransformerEngine)"),
    &four_over_six("te46_mse", 448.0, Error::Squared, Domain::F32, "four-over-six with the smaller Σerror²"),
    &four_over_six("te46_mae_256", 256.0, Error::Absolute, Domain::F32,
        "four-over-six with G = 6·256/amax, which leaves room for the larger scale, and with the smaller Σ|error|"),
    &four_over_six("te46_mse_256", 256.0, Error::Squared, Domain::F32,
        "four-over-six with G = 6·256/amax and the smaller Σerror² (the paper's)"),
    &four_over_six("te46_mae_f16", 448.0, Error::Absolute, Domain::F16,
        "te46_mae with errors in f16, TransformerEngine's fast path"),
    &four_over_six("te46_mse_f16", 448.0, Error::Squared, Domain::F16, "te46_mse with errors in f16"),
    &four_over_six("te46_mae_256_f16", 256.0, Error::Absolute, Domain::F16, "te46_mae_256 with errors in f16"),
    &four_over_six("te46_mse_256_f16", 256.0, Error::Squared, Domain::F16, "te46_mse_256 with errors in f16"),
    &Nvfp4Rule { select: Select::Search { radius: 8 }, ..rule("search",
        "like te, with the E4M3 scale of least Σerror² among the 17 codes around te's") },
];

const fn four_over_six(name: &'static str, most: f32, error: Error, domain: Domain, doc: &'static str) -> Nvfp4Rule {
    Nvfp4Rule {
        span: 6.0 * most,
        scale: BlockScale::QuotientTimesG,
        select: Select::FourOverSix { error, domain },
        ..rule(name, doc)
    }
}

const VLLM: Nvfp4Rule = Nvfp4Rule {
    stored: Global::Encode,
    scale: BlockScale::SixthTimesG,
    division: Division::Unclamped,
    drops_zero_scale: true,
    approximate: true,
    ..rule(
        "vllm",
        "stores G = 2688/amax; s = e4m3(G·(amax_b·fl32(1/6))), elements x·(1/(s·fl32(1/G))), 0 where s = 0 (vLLM, its \
         rcp.approx taken as exact)",
    )
};

// Scale rules of KV-cache records.
pub static FLASHINFER: Nvfp4Rule = Nvfp4Rule {
    approximate: true,
    ..single(
        "flashinfer",
        "s = e4m3(amax_b·fl32(1/6)), elements x·min(fl32(1/s), FLT_MAX): FlashInfer with global scale 1, its \
         rcp.approx taken as exact; a block below 6·2^-10 has s = 0 and is lost",
    )
};
pub static V41: Nvfp4Rule = Nvfp4Rule {
    floor: 1.0 / 512.0,
    division: Division::Over,
    unsigned_zero: true,
    ..single(
        "v41",
        "s = e4m3(max(amax_b·fl32(1/6), 2^-9)), elements x/s with −0 stored as +0 (SGLang: DeepSeek-V4.1 FP4 KV)",
    )
};
