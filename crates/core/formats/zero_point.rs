//! Scales with zero points, computed from the smallest and the largest value of a block.
//!
//! Each rule is a row of a table. In its formulas, `R` rounds the f32 result of an operation to the type of the scale, as in a
//! library whose tensors have that type. The f32 operations are correctly rounded, so PyTorch gives the same result on CPU and
//! GPU. `n` is the largest code. A NaN or an infinity makes the scale of its block NaN, and so does a scale or zero point that
//! overflows its type: all values of the block are then NaN.

use safetensors::Dtype;

use super::codes::Blocks;
use super::half::Half;

/// Meaning of the zero point that is stored next to the scale `s`; `c` is a code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZeroPoint {
    /// The value `m` of code 0, in the type of the scale: values are `c·s + m`.
    Minimum,
    /// The code `z` of the value 0, an integer in a byte: values are `(c − z)·s`.
    Code,
    /// The code `z` of the value 0, which may be fractional, in the type of the scale: values are `(c − z)·s`.
    FractionalCode,
}

/// Formulas of the scale `s` and the zero point (`m` or `z`, see [`ZeroPoint`]) of a block with values from `lo` to `hi`; `n` is
/// the largest code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AffineFit {
    /// `s = (hi − lo)/n`, `m = lo`.
    Range,
    /// `s = max(hi − lo, 1e-5)/n`, `z = −round(lo/s)`, clamped to the codes.
    Awq,
    /// The range is first widened to include 0; a block of zeros gets the range −1 … 1. `s = (hi − lo)/n`, `z = round(−lo/s)`.
    Gptq,
    /// `e = n/(hi − lo)`, at most 2e4, and 1 if the range is at most 1e-4; `s = 1/e`, `z = −lo·e`.
    Hqq,
}

/// A rule for scales with zero points.
#[derive(Debug, PartialEq)]
pub struct AffineRule {
    /// Name in format strings, e.g. `kivi`.
    pub name: &'static str,
    /// One line with the rule's formula and the library that uses it.
    pub doc: &'static str,
    /// Meaning of the stored zero point.
    pub zero: ZeroPoint,
    /// Formulas of scale and zero point, from the block's smallest and largest value.
    pub fit: AffineFit,
    /// True if the input and the result of every encoding step are rounded to the type of the scale; false to compute in f32.
    pub narrow_encoding: bool,
    /// True if every step of decoding is rounded to the type of the scale.
    pub narrow_decoding: bool,
}

const fn rule(
    name: &'static str,
    zero: ZeroPoint,
    fit: AffineFit,
    [narrow_encoding, narrow_decoding]: [bool; 2],
    doc: &'static str,
) -> AffineRule {
    AffineRule {
        name,
        doc,
        zero,
        fit,
        narrow_encoding,
        narrow_decoding,
    }
}

/// Rules for scales with zero points; the first is the default.
#[rustfmt::skip]
pub const AFFINE_RULES: &[&AffineRule] = &[
    &rule("minmax", ZeroPoint::Minimum, AffineFit::Range, [false, false],
        "s = (hi − lo)/n, m = lo, both then of the scale's type; codes round((x − m)/s), values c·s + m; steps in f32"),
    &rule("kivi", ZeroPoint::Minimum, AffineFit::Range, [true, true],
        "m = lo, s = R(R(hi − m)/n), codes round(R(R(x − m)/s)), values R(R(c·s) + m) (KIVI 876b4d2 quant/new_pack.py; \
         equal values have s = 0 and codes 0, where KIVI casts 0/0)"),
    &rule("awq", ZeroPoint::Code, AffineFit::Awq, [true, true],
        "s = R(max(R(hi − lo), R(1e-5))/n), z = −round(R(lo/s)) in 0 … n, codes round(R(x/s)) + z, values R((c − z)·s) \
         (AutoAWQ 0.2.9 pseudo_quantize_tensor); where all values of a block have one sign they are cut at n·s"),
    &rule("gptq", ZeroPoint::Code, AffineFit::Gptq, [false, true],
        "range widened to hold 0, −1 … 1 for zeros; s = (hi − lo)/n, z = round(−lo/s), codes round(x/s) + z by the \
         f32 s; s then of its type, values R((c − z)·s) (GPTQModel 7.7 Quantizer.find_params without search; no error \
         feedback)"),
    &rule("hqq", ZeroPoint::FractionalCode, AffineFit::Hqq, [false, true],
        "e = min(n/(hi − lo), 2e4), 1 where hi − lo ≤ 1e-4; z = −lo·e, codes round(x·e + z) by the f32 e and z; s = \
         1/e and z then of their type, values R(R(c − z)·s) (HQQ 0.2.8 Quantizer.quantize with optimize=False, \
         round_zero=False)"),
];

/// Type and rule of scales with zero points.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Affine {
    /// Type of the scales, and of zero points that are not bytes; `None` for f32.
    pub half: Option<Half>,
    /// Rule that computes scale and zero point.
    pub rule: &'static AffineRule,
}

/// Scale and zero point of one block.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Fitted {
    /// Stored scale, and stored zero point (`zero`).
    pub scale: f32,
    pub zero: f32,
    /// Factor and shift that encoding uses. The factor is the scale, or its inverse for [`AffineFit::Hqq`]; the shift is the zero
    /// point.
    pub factor: f32,
    pub shift: f32,
}

impl Affine {
    pub(super) fn dtype(&self) -> Dtype {
        self.half.map_or(Dtype::F32, Half::dtype)
    }

    /// Returns the type of the zero points.
    pub(super) fn zero_dtype(&self) -> Dtype {
        match self.rule.zero {
            ZeroPoint::Code => Dtype::U8,
            ZeroPoint::Minimum | ZeroPoint::FractionalCode => self.dtype(),
        }
    }

    /// Returns the size of a zero point in bytes.
    pub fn zero_bytes(&self) -> usize {
        self.zero_dtype().bitsize() / 8
    }

    /// Rounds a number to the type of the scale.
    #[inline(always)]
    fn stored(&self, x: f32) -> f32 {
        self.half.map_or(x, |half| half.nearest(x))
    }

    /// Computes the scale and the zero point of a block for codes from 0 to `top`. All values are finite and from `lo` to `hi`.
    pub(super) fn fit(&self, lo: f32, hi: f32, top: f32) -> Fitted {
        let step = |x: f32| if self.rule.narrow_encoding { self.stored(x) } else { x };
        // If an end of the range is −0, it becomes +0: −0 and +0 compare equal, so the search for the extremes may have found
        // either.
        let (lo, hi) = (step(lo) + 0.0, step(hi) + 0.0);
        let (scale, zero, factor, shift) = match self.rule.fit {
            AffineFit::Range => {
                let (scale, zero) = (self.stored(step(hi - lo) / top), self.stored(lo));
                (scale, zero, scale, zero)
            }
            AffineFit::Awq => {
                let scale = step(step(hi - lo).max(step(1e-5)) / top);
                let zero = (-step(lo / scale).round_ties_even()).clamp(0.0, top) + 0.0;
                (self.stored(scale), zero, scale, zero)
            }
            AffineFit::Gptq => {
                let (lo, hi) = match (lo.min(0.0), hi.max(0.0)) {
                    (0.0, 0.0) => (-1.0, 1.0),
                    range => range,
                };
                let scale = (hi - lo) / top;
                let zero = (-lo / scale).round_ties_even().clamp(0.0, top) + 0.0;
                (self.stored(scale), zero, scale, zero)
            }
            AffineFit::Hqq => {
                let range = hi - lo;
                let factor = if range <= 1e-4 { 1.0 } else { (top / range).min(2e4) };
                // The subtraction from 0 gives the shift +0, not −0, if the minimum is 0.
                let shift = 0.0 - lo * factor;
                (self.stored(1.0 / factor), self.stored(shift), factor, shift)
            }
        };
        if !(scale.is_finite() && zero.is_finite()) {
            return Self::NAN;
        }
        Fitted {
            scale,
            zero,
            factor,
            shift,
        }
    }

    /// Scale and zero point of a block with a NaN or an infinity, or of a block whose scale or zero point overflows.
    pub(super) const NAN: Fitted = Fitted {
        scale: f32::NAN,
        zero: 0.0,
        factor: f32::NAN,
        shift: 0.0,
    };

    /// Encodes or decodes the elements of blocks. Encoding (`BACK` is false) maps elements to the numbers that are then rounded
    /// to codes; `numbers` holds the factor and the shift of each block. Decoding (`BACK` is true) maps codes, given as f32, to
    /// values; `numbers` holds the scale and the zero point of each block.
    #[inline(always)]
    pub(super) fn apply<const BACK: bool>(&self, x: Blocks, numbers: [&[f32]; 2], out: &mut [f32]) {
        let [encoding, decoding] = [self.rule.narrow_encoding, self.rule.narrow_decoding];
        match self.half.filter(|_| if BACK { decoding } else { encoding }) {
            None => self.apply_by::<BACK>(|x| x, x, numbers, out),
            Some(Half::F16) => self.apply_by::<BACK>(|x| Half::F16.nearest(x), x, numbers, out),
            Some(Half::Bf16) => self.apply_by::<BACK>(|x| Half::Bf16.nearest(x), x, numbers, out),
        }
    }

    #[inline(always)]
    fn apply_by<const BACK: bool>(
        &self,
        r: impl Fn(f32) -> f32 + Copy,
        x: Blocks,
        numbers: [&[f32]; 2],
        out: &mut [f32],
    ) {
        match (self.rule.zero, BACK) {
            (ZeroPoint::Minimum, false) => each(|x, s, m| r(r(r(x) - m) / s), x, numbers, out),
            (ZeroPoint::Code, false) => each(|x, s, z| r(r(x) / s).round_ties_even() + z, x, numbers, out),
            (ZeroPoint::FractionalCode, false) => each(|x, e, z| x * e + z, x, numbers, out),
            (ZeroPoint::Minimum, true) => each(|c, s, m| r(r(c * s) + m), x, numbers, out),
            (ZeroPoint::Code | ZeroPoint::FractionalCode, true) => each(|c, s, z| r(r(c - z) * s), x, numbers, out),
        }
    }

    /// Stores the scales and zero points of blocks.
    pub(super) fn write(&self, fitted: &[Fitted], scales: &mut [u8], zeros: &mut [u8]) {
        let numbers = |value: f32, bytes: &mut [u8]| match self.half {
            None => bytes.copy_from_slice(&value.to_le_bytes()),
            Some(half) => bytes.copy_from_slice(&half.bytes(value)),
        };
        let (scales, zeros) = (
            scales.chunks_exact_mut(self.dtype().bitsize() / 8),
            zeros.chunks_exact_mut(self.zero_bytes()),
        );
        for (Fitted { scale, zero, .. }, (scales, zeros)) in fitted.iter().zip(scales.zip(zeros)) {
            numbers(*scale, scales);
            match self.rule.zero {
                ZeroPoint::Code => zeros[0] = *zero as u8,
                ZeroPoint::Minimum | ZeroPoint::FractionalCode => numbers(*zero, zeros),
            }
        }
    }

    /// Reads the stored scales as f32.
    #[inline(always)]
    pub(super) fn read_scales(&self, stored: &[u8], out: &mut [f32]) {
        match self.half {
            None => read(stored, f32::from_le_bytes, out),
            Some(half) => read(stored, |bytes| half.value(u16::from_le_bytes(bytes)), out),
        }
    }

    /// Reads the stored zero points as f32.
    pub(super) fn read_zeros(&self, stored: &[u8], out: &mut [f32]) {
        match self.rule.zero {
            ZeroPoint::Code => stored.iter().zip(out).for_each(|(code, out)| *out = f32::from(*code)),
            ZeroPoint::Minimum | ZeroPoint::FractionalCode => self.read_scales(stored, out),
        }
    }
}

/// Reads stored numbers of `N` bytes each; `value` converts the bytes.
#[inline(always)]
pub(super) fn read<const N: usize>(stored: &[u8], value: impl Fn([u8; N]) -> f32, out: &mut [f32]) {
    let numbers = stored.as_chunks().0.iter();
    numbers.zip(out).for_each(|(bytes, out)| *out = value(*bytes));
}

/// Calls `operation` for each element, with the factor and the shift of the element's block, and writes the results to `out`.
#[inline(always)]
fn each(
    operation: impl Fn(f32, f32, f32) -> f32 + Copy,
    (x, width): Blocks,
    [factors, shifts]: [&[f32]; 2],
    out: &mut [f32],
) {
    let blocks = factors.iter().zip(shifts);
    // In groups of one column, neighbouring elements have different scales.
    if width == 1 {
        for ((x, out), (factor, shift)) in x.iter().zip(out).zip(blocks) {
            *out = operation(*x, *factor, *shift);
        }
        return;
    }
    for ((x, out), (factor, shift)) in x.chunks(width).zip(out.chunks_mut(width)).zip(blocks) {
        for (x, out) in x.iter().zip(out) {
            *out = operation(*x, *factor, *shift);
        }
    }
}
