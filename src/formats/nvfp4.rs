//! Scales of NVFP4: E4M3 per block of E2M1, alone or under a second, f32 level.
//!
//! Libraries agree on what the bytes mean up to the last bit of the product, and differ in how they pick them. A rule is
//! a row of two tables: one for a single level, one for two.

use super::element::{Cast, E4M3_FLOAT};
use super::scale::Quotient;

/// The largest value two levels can hold per unit of the global scale: 448 · 6.
const SPAN: f32 = 2688.0;

/// A rule for E4M3 scales of E2M1 elements.
#[derive(Debug)]
pub struct Nvfp4Rule {
    pub name: &'static str,
    pub doc: &'static str,
    /// The f32 stored for the tensor (or token), from the largest magnitude in it; NaN where that is not finite.
    pub(super) global: fn(amax: f32) -> f32,
    /// Code of the block's scale and the division of its elements, from the block's largest magnitude and the stored
    /// global; NaN magnitudes give the NaN code.
    pub(super) encode: fn(amax: f32, global: f32) -> (u8, Quotient),
    /// What the elements are multiplied by, from the block scale's value and the stored global.
    pub(super) decode: fn(scale: f32, global: f32) -> f32,
}

impl PartialEq for Nvfp4Rule {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

/// Rules with one level; the first is the default.
pub const NVFP4_SINGLE_RULES: &[&Nvfp4Rule] = &[&FLASHINFER, &TORCHAO_SINGLE, &V41];

/// Rules with two levels; the first is the default.
pub const NVFP4_RULES: &[&Nvfp4Rule] = &[&TE, &TORCHAO, &MODELOPT];

fn no_global(_amax: f32) -> f32 {
    1.0
}

fn block_only(scale: f32, _global: f32) -> f32 {
    scale
}

fn e4m3(x: f32) -> (u8, f32) {
    let code = E4M3_FLOAT.encode(x);
    (code as u8, E4M3_FLOAT.decode(code))
}

/// Like `f32::min(x, f32::MAX)`, but keeps NaN.
fn finite(x: f32) -> f32 {
    if x > f32::MAX { f32::MAX } else { x }
}

/// Like `f32::max(x, floor)`, but keeps NaN.
fn at_least(x: f32, floor: f32) -> f32 {
    if x < floor { floor } else { x }
}

pub static FLASHINFER: Nvfp4Rule = Nvfp4Rule {
    name: "flashinfer",
    doc: "s = e4m3(amax·fl32(1/6)), elements x·min(fl32(1/s), FLT_MAX): FlashInfer with global scale 1, its rcp.approx \
          taken as exact; a block below 6·2^-10 has s = 0 and is lost",
    global: no_global,
    encode: |amax, _| {
        let (code, scale) = e4m3(amax * (1.0 / 6.0));
        (code, Quotient::times(finite(1.0 / scale)))
    },
    decode: block_only,
};

pub static TORCHAO_SINGLE: Nvfp4Rule = Nvfp4Rule {
    name: "torchao",
    doc: "s = e4m3(max(amax/6, 2^-6)), elements x·fl32(1/s) (torchao)",
    global: no_global,
    encode: |amax, _| {
        let (code, scale) = e4m3(at_least(amax / 6.0, 1.0 / 64.0));
        (code, Quotient::times(1.0 / scale))
    },
    decode: block_only,
};

pub static V41: Nvfp4Rule = Nvfp4Rule {
    name: "v41",
    doc: "s = e4m3(max(amax·fl32(1/6), 2^-9)), elements x/s with −0 stored as +0 (SGLang: DeepSeek-V4.1 FP4 KV)",
    global: no_global,
    encode: |amax, _| {
        let (code, scale) = e4m3(at_least(amax * (1.0 / 6.0), 1.0 / 512.0));
        (
            code,
            Quotient {
                zero: 0.0,
                ..Quotient::over(scale)
            },
        )
    },
    decode: block_only,
};

/// TransformerEngine's encode scale: 2688/amax, 1 where that is no use.
fn te_encode_scale(amax: f32) -> f32 {
    let scale = finite(SPAN / amax);
    if amax == 0.0 || scale == 0.0 { 1.0 } else { scale }
}

pub static TE: Nvfp4Rule = Nvfp4Rule {
    name: "te",
    doc: "stores amax; G = min(2688/amax, FLT_MAX), s = e4m3(amax_b·(G·fl32(1/6))), elements \
          x·min(1/(s·fl32(1/G)), FLT_MAX), value q·(s·amax·fl32(1/2688)) (TransformerEngine)",
    global: |amax| amax,
    encode: |amax, global| {
        let g = te_encode_scale(global);
        let (code, scale) = e4m3(amax * (g * (1.0 / 6.0)));
        (code, Quotient::times(finite(1.0 / (scale * (1.0 / g)))))
    },
    decode: |scale, global| scale * global * (1.0 / SPAN),
};

pub static TORCHAO: Nvfp4Rule = Nvfp4Rule {
    name: "torchao",
    doc: "stores g = amax/2688; s = e4m3(max((amax_b/6)/g, 2^-6)), elements x·((1/g)/s), value q·(s·g) (torchao); a \
          tensor of zeros has g = 0",
    global: |amax| amax / SPAN,
    encode: |amax, g| {
        // torchao makes NaN of a tensor of zeros.
        if g == 0.0 {
            return (0x08, Quotient::times(0.0));
        }
        let (code, scale) = e4m3(at_least((amax / 6.0) / g, 1.0 / 64.0));
        (code, Quotient::times((1.0 / g) / scale))
    },
    decode: |scale, g| scale * g,
};

pub static MODELOPT: Nvfp4Rule = Nvfp4Rule {
    name: "modelopt",
    doc: "stores g = amax/2688; s = e4m3(amax_b/(6·g)), 1 for a block of zeros, elements x/(s·g), value q·(s·g) (NVIDIA \
          ModelOpt, checkpoints' weight_scale_2)",
    global: |amax| amax / SPAN,
    encode: |amax, g| {
        let (code, scale) = e4m3(if amax == 0.0 { 1.0 } else { amax / (6.0 * g) });
        let step = scale * g;
        // A step that underflows to 0 holds zeros only; ModelOpt divides by it.
        let quotient = if step == 0.0 {
            Quotient::times(0.0)
        } else {
            Quotient::over(step)
        };
        (code, Quotient { zero: 0.0, ..quotient })
    },
    decode: |scale, g| scale * g,
};
