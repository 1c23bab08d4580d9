//! Codes and scales of numbers that are known within a bound only.
//!
//! Rounding jumps: a number off by an ulp may have another code, and a largest magnitude another scale, which changes all
//! codes of its block. So a kernel that computes numbers and stores them in blocks cannot be held to certain bytes, nor,
//! without losing sight of a wrong rule, to a distance. But rules grow with the magnitude, and casts with the number.
//! Hence a scale is *admissible* if it lies between those of the least and the greatest largest magnitude that the bound
//! leaves open, and a code if, under the scale that is stored, it lies between those of the ends of its element's interval.
//! All else is wrong, whatever its distance.

use rayon::prelude::*;

use super::failure::{Elements, WorstElement};
use super::values;
use super::values::POISON_BYTE;
use super::{Bound, Judge, Measured, Rule};
use crate::formats::Single;
use crate::metrics::VIOLATIONS;

/// What was stored, and of which numbers.
struct StoredBlocks<'a> {
    single: Single,
    /// Elements of a block.
    width: usize,
    cols: usize,
    want: &'a [f64],
    bound: &'a Bound,
    data: &'a [u8],
    scale: &'a [u8],
}

/// How wrong a code or scale is: not, the neighbour of an admissible one, or by more.
#[derive(Clone, Copy, PartialEq)]
enum Deviation {
    Not,
    Next,
    More,
}

/// Codes or scales of which some are wrong.
struct Codes<'a> {
    output: &'static str,
    shape: [usize; 2],
    wrong: Vec<Deviation>,
    /// Code, and whether it is what was there before.
    found: &'a (dyn Fn(usize) -> (u32, bool) + Sync),
    /// The admissible ones, first and last, and what they are of.
    wanted: &'a dyn Fn(usize) -> ([u32; 2], String),
}

impl Judge {
    /// Scales and codes that no numbers within the bound have: `violations` of each output. A NaN must be one.
    pub(super) fn admissible_of(&self, data: &[u8], scale: &[u8]) -> Vec<Measured> {
        let Rule::Admissible {
            format,
            width,
            above,
            want,
            bound,
        } = &self.rule
        else {
            unreachable!("asked of this rule only");
        };
        let stored = StoredBlocks {
            single: Single::new(format, *above).expect("a format with scales"),
            width: *width,
            cols: self.cols(),
            want,
            bound,
            data,
            scale,
        };
        let (across, size) = (stored.cols.div_ceil(*width), stored.single.scale_bytes());
        let shape = [want.len() / stored.cols, across];
        let bits = 8 * data.len() / want.len().max(1);
        assert_eq!(data.len() * 8, want.len() * bits, "bytes of codes");
        assert_eq!(scale.len(), shape[0] * across * size, "bytes of scales");

        let (mut codes, mut scales) = (
            vec![Deviation::Not; want.len()],
            vec![Deviation::Not; shape[0] * across],
        );
        let rows = codes.par_chunks_mut(stored.cols).zip(scales.par_chunks_mut(across));
        rows.enumerate().for_each(|(row, (codes, scales))| {
            let blocks = codes.chunks_mut(*width).zip(scales);
            for (block, (codes, scale)) in blocks.enumerate() {
                stored.judge(row * across + block, codes, scale);
            }
        });
        let codes = Codes {
            output: "data",
            shape: [shape[0], stored.cols],
            wrong: codes,
            found: &|at| {
                let poison = data[at * bits / 8] == POISON_BYTE;
                (stored.single.code_at(data, at), poison)
            },
            wanted: &|at| {
                let block = at / stored.cols * across + at % stored.cols / width;
                let of = format!(
                    "of {} ± {} under the scale {:#x} that is stored",
                    values::plain(want[at]),
                    values::short(bound(at, want[at])),
                    stored.scale_at(block)
                );
                (stored.codes(at, stored.factor(block)), of)
            },
        };
        let scales = Codes {
            output: "scale",
            shape,
            wrong: scales,
            found: &|at| {
                let bytes = &scale[at * size..][..size];
                (stored.scale_at(at), bytes.iter().all(|byte| *byte == POISON_BYTE))
            },
            wanted: &|at| {
                let [least, most] = stored.magnitudes(at);
                let scales = [least, most].map(|amax| stored.single.scale(amax));
                let of = format!(
                    "of a largest magnitude of {} to {}",
                    values::plain(least.into()),
                    values::plain(most.into())
                );
                (scales, of)
            },
        };
        vec![self.said_of(codes), self.said_of(scales)]
    }

    fn said_of(&self, codes: Codes) -> Measured {
        let Codes { wrong, found, .. } = &codes;
        let judge = Self {
            rows: self.rows.clone(),
            ..Self::finite(codes.output, self.dtype, &codes.shape, self.why.clone())
        };
        let right = judge.measured(&VIOLATIONS, 0.0);
        let bad = |at: usize| wrong[at] != Deviation::Not;
        let Some(first) = (0..wrong.len()).find(|at| bad(*at)) else {
            return right;
        };
        let elements = Elements {
            judge: &judge,
            count: (0..wrong.len()).into_par_iter().filter(|at| bad(*at)).count(),
            bad: &bad,
            kinds: &|at| {
                let (code, poison) = found(at);
                values::code_kinds(poison, code == 0, wrong[at] == Deviation::Next)
            },
        };
        let ([low, high], of) = (codes.wanted)(first);
        let got = found(first).0;
        let wanted = match low == high {
            true => format!("{low:#x}"),
            false => format!("{low:#x} to {high:#x}"),
        };
        let said = WorstElement {
            at: first,
            want: low.into(),
            got: got.into(),
            bound: None,
            text: format!("want {wanted}, {of}; got {got:#x} (the first)"),
        };
        elements.failed(right, said)
    }
}

impl StoredBlocks<'_> {
    /// The least and the greatest f32 that the bound leaves open.
    fn interval(&self, at: usize) -> [f32; 2] {
        let (want, bound) = (self.want[at], (self.bound)(at, self.want[at]));
        [down(want - bound), up(want + bound)]
    }

    /// Elements of a block.
    fn elements(&self, block: usize) -> std::ops::Range<usize> {
        let across = self.cols.div_ceil(self.width);
        let first = block / across * self.cols + block % across * self.width;
        first..(first + self.width).min((block / across + 1) * self.cols)
    }

    /// The least and the greatest largest magnitude of a block.
    fn magnitudes(&self, block: usize) -> [f32; 2] {
        let of = |at: usize| {
            let [low, high] = self.interval(at);
            let least = if low <= 0.0 && high >= 0.0 {
                0.0
            } else {
                low.abs().min(high.abs())
            };
            [least, larger(low.abs(), high.abs())]
        };
        let all = self.elements(block).map(of);
        all.fold([0.0; 2], |[least, most], [low, high]| {
            [larger(least, low), larger(most, high)]
        })
    }

    /// The scale that is stored.
    fn scale_at(&self, block: usize) -> u32 {
        let size = self.single.scale_bytes();
        let mut bytes = [0; 4];
        bytes[..size].copy_from_slice(&self.scale[block * size..][..size]);
        u32::from_le_bytes(bytes)
    }

    /// What elements are multiplied or divided by under it.
    fn factor(&self, block: usize) -> f32 {
        self.single.factor(self.scale_at(block), self.magnitudes(block)[1])
    }

    /// Codes of the ends of an element's interval.
    fn codes(&self, at: usize, factor: f32) -> [u32; 2] {
        self.interval(at).map(|x| self.single.code(x, factor))
    }

    fn judge(&self, block: usize, codes: &mut [Deviation], scale: &mut Deviation) {
        let [least, most] = self.magnitudes(block);
        let stored = self.scale_at(block);
        *scale = wrong(stored.into(), [least, most].map(|amax| self.single.scale(amax).into()));
        let factor = self.single.factor(stored, most);
        for (at, wrong_code) in self.elements(block).zip(codes) {
            let rank = |code: u32| i64::from(self.single.rank(code));
            let ends = self.codes(at, factor).map(rank);
            *wrong_code = wrong(rank(self.single.code_at(self.data, at)), ends);
        }
    }
}

fn wrong(found: i64, [low, high]: [i64; 2]) -> Deviation {
    match (low - found).max(found - high) {
        ..=0 => Deviation::Not,
        1 => Deviation::Next,
        _ => Deviation::More,
    }
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
    use crate::formats::{Codec, Encoded, GlobalScale, codec};
    use crate::ops::Outputs;

    /// What is said of stored numbers, judged by others and a bound.
    fn said(codec: &dyn Codec, width: usize, above: f32, encoded: &Encoded, x: &[f32], bound: f64) -> Vec<Measured> {
        let want: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
        let stored = ["data", "scale"].map(|part| (part, encoded.part(part).to_vec()));
        let format = *codec.format().unwrap();
        Judge::admissible((format, width, above), 32, want, move |_, _| bound, "").measure(&Outputs(stored.into()))
    }

    /// Inadmissible codes and scales of the bytes of `x + error`, judged by `x` and a bound.
    fn judge(name: &str, x: &[f32], error: impl Fn(usize) -> f32, bound: f64) -> (f64, f64) {
        let codec = codec(name).unwrap();
        let format = codec.format().unwrap();
        let off: Vec<f32> = x.iter().enumerate().map(|(at, x)| x + error(at)).collect();
        let encoded = format.encode(&off, 32, GlobalScale::Stored(&[4.0]));
        let width = if name == "nvfp4" { 16 } else { 32 };
        let found = said(&*codec, width, 4.0, &encoded, x, bound);
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
        let found = said(&*codec, 32, 1.0, &encoded, &x, 1e-6);
        assert!(found[0].value >= 1.0 && found[1].value == 1.0, "{found:?}");
    }
}
