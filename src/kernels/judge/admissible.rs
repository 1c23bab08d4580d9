//! Codes and scales of numbers that are known within a bound only.
//!
//! Rounding jumps: a number off by an ulp may have another code, and a largest magnitude another scale, which changes all
//! codes of its block. So a kernel that computes numbers and stores them in blocks cannot be held to certain bytes, nor,
//! without losing sight of a wrong rule, to a distance. But rules grow with the magnitude, and casts with the number.
//! Hence a scale is *admissible* if it lies between those of the least and the greatest largest magnitude that the bound
//! leaves open, and a code if, under the scale that is stored, it lies between those of the ends of its element's interval.
//! All else is wrong, whatever its distance.

use rayon::prelude::*;

use super::Measured;
use crate::formats::{Format, Single};
use crate::metrics::VIOLATIONS;
use crate::record::Worst;

/// What a kernel stored of `[rows, cols]` in blocks of a row.
#[derive(Clone, Copy)]
pub struct Stored<'a> {
    pub format: &'a Format,
    /// Elements of a block.
    pub width: usize,
    pub cols: usize,
    /// The f32 above the block scales; not read where there is none.
    pub above: f32,
    pub data: &'a [u8],
    pub scale: &'a [u8],
}

/// Scales and codes that no numbers within `bound` of `want` have: `violations` of each output. A NaN must be one.
///
/// # Panics
/// When the format has no scales, or the bytes are not of `want.len()` elements.
pub fn admissible(stored: Stored, want: &[f64], bound: impl Fn(usize) -> f64 + Sync) -> Vec<Measured> {
    let Stored { width, cols, .. } = stored;
    let single = Single::new(stored.format, stored.above).expect("a format with scales");
    let across = cols.div_ceil(width);
    let rows = want.len() / cols;
    let bits = 8 * stored.data.len() / want.len().max(1);
    assert_eq!(stored.data.len() * 8, want.len() * bits, "bytes of codes");
    assert_eq!(
        stored.scale.len(),
        rows * across * single.scale_bytes(),
        "bytes of scales"
    );
    let found = (0..rows * across)
        .into_par_iter()
        .map(|block| {
            let first = block / across * cols + block % across * width;
            let elements = first..(first + width).min((block / across + 1) * cols);
            judge_block(&single, &stored, block, elements, want, &bound)
        })
        .reduce(Found::default, Found::and);
    let measured = |output, count: u64, n: usize, worst: Option<(usize, u32, u32)>, cols| Measured {
        output,
        metric: &VIOLATIONS,
        value: count as f64,
        n: n as u64,
        worst: worst.map(|(at, want, got)| Worst {
            index: crate::metrics::unravel(at, &[rows, cols]),
            want: want.into(),
            got: got.into(),
        }),
    };
    vec![
        measured("data", found.codes, want.len(), found.code, cols),
        measured("scale", found.scales, rows * across, found.scale, across),
    ]
}

/// How many are inadmissible, and where the first is, with what was nearest to be expected and what was found.
#[derive(Default)]
struct Found {
    codes: u64,
    scales: u64,
    code: Option<(usize, u32, u32)>,
    scale: Option<(usize, u32, u32)>,
}

impl Found {
    fn and(self, later: Self) -> Self {
        let first = |a: Option<(usize, u32, u32)>, b: Option<(usize, u32, u32)>| a.into_iter().chain(b).min();
        Self {
            codes: self.codes + later.codes,
            scales: self.scales + later.scales,
            code: first(self.code, later.code),
            scale: first(self.scale, later.scale),
        }
    }
}

fn judge_block(
    single: &Single,
    stored: &Stored,
    block: usize,
    elements: std::ops::Range<usize>,
    want: &[f64],
    bound: &(impl Fn(usize) -> f64 + Sync),
) -> Found {
    let mut found = Found::default();
    let interval = |at: usize| (down(want[at] - bound(at)), up(want[at] + bound(at)));
    let (mut least, mut most) = (0f32, 0f32);
    for at in elements.clone() {
        let (low, high) = interval(at);
        let magnitude = if low <= 0.0 && high >= 0.0 {
            0.0
        } else {
            low.abs().min(high.abs())
        };
        least = larger(least, magnitude);
        most = larger(most, larger(low.abs(), high.abs()));
    }
    let size = single.scale_bytes();
    let mut bytes = [0; 4];
    bytes[..size].copy_from_slice(&stored.scale[block * size..][..size]);
    let scale = u32::from_le_bytes(bytes);
    let scales = (single.scale(least), single.scale(most));
    if scale < scales.0 || scale > scales.1 {
        found.scales = 1;
        found.scale = Some((block, scales.0, scale));
    }
    let factor = single.factor(scale, most);
    for at in elements {
        let (low, high) = interval(at);
        let code = single.code_at(stored.data, at);
        let codes = (single.code(low, factor), single.code(high, factor));
        let rank = single.rank(code);
        if rank < single.rank(codes.0) || rank > single.rank(codes.1) {
            found.codes += 1;
            found.code = found.code.or(Some((at, codes.0, code)));
        }
    }
    found
}

/// The larger of two magnitudes; NaN beats all.
fn larger(a: f32, b: f32) -> f32 {
    f32::from_bits((a.to_bits() & 0x7fff_ffff).max(b.to_bits() & 0x7fff_ffff))
}

/// The largest f32 not above.
fn down(x: f64) -> f32 {
    let rounded = x as f32;
    if f64::from(rounded) > x {
        rounded.next_down()
    } else {
        rounded
    }
}

/// The smallest f32 not below.
fn up(x: f64) -> f32 {
    -down(-x)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::{GlobalScale, codec};

    /// Inadmissible codes and scales of the bytes of `x + error`, judged by `x` and a bound.
    fn judge(name: &str, x: &[f32], error: impl Fn(usize) -> f32, bound: f64) -> (f64, f64) {
        let codec = codec(name).unwrap();
        let format = codec.format().unwrap();
        let off: Vec<f32> = x.iter().enumerate().map(|(at, x)| x + error(at)).collect();
        let encoded = format.encode(&off, 32, GlobalScale::Stored(&[4.0]));
        let stored = Stored {
            format,
            width: if name == "nvfp4" { 16 } else { 32 },
            cols: 32,
            above: 4.0,
            data: encoded.part("data"),
            scale: encoded.part("scale"),
        };
        let want: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
        let found = admissible(stored, &want, |_| bound);
        (found[0].value, found[1].value)
    }

    fn numbers() -> Vec<f32> {
        (0..32 * 40)
            .map(|i| ((i * 7919 % 2003) as f32 - 1001.0) / 250.0)
            .collect()
    }

    #[test]
    fn what_the_bound_allows_is_admissible_and_no_more() {
        for name in ["mxfp8", "mxfp4", "nvfp4"] {
            let x = numbers();
            assert_eq!(judge(name, &x, |_| 0.0, 0.0), (0.0, 0.0), "{name}");
            // More than the numbers lie apart, so that some cross from one code to the next in every format.
            let error = |at: usize| if at.is_multiple_of(2) { 5e-3 } else { -5e-3 };
            assert_eq!(judge(name, &x, error, 5.01e-3), (0.0, 0.0), "{name}");
            assert!(judge(name, &x, error, 1e-7).0 > 0.0, "{name}");
            assert!(judge(name, &x, |at| x[at], 1e-4).1 > 30.0, "{name}: twice the numbers");
        }
    }

    #[test]
    fn nan_must_be_stored_as_such() {
        let mut x = numbers();
        x[100] = f32::NAN;
        assert_eq!(judge("mxfp8", &x, |_| 0.0, 1e-6), (0.0, 0.0));
        let plain = |at: usize| if at == 100 { 1.0 } else { 0.0 };
        let mut without = x.clone();
        without[100] = 0.0;
        assert_eq!(judge("mxfp8", &without, plain, 1.5), (0.0, 0.0));
        // The bytes of a number where NaN is wanted.
        let codec = codec("mxfp8").unwrap();
        let encoded = codec.encode(&without, 32);
        let stored = Stored {
            format: codec.format().unwrap(),
            width: 32,
            cols: 32,
            above: 1.0,
            data: encoded.part("data"),
            scale: encoded.part("scale"),
        };
        let want: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
        let found = admissible(stored, &want, |_| 1e-6);
        assert!(found[0].value >= 1.0 && found[1].value == 1.0, "{found:?}");
    }
}
