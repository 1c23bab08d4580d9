//! Judges codes and scales of numbers that are known only within a bound.
//!
//! Rounding is discontinuous: a number that is off by an ulp may get another code, and a different largest magnitude may
//! give another scale, which changes all codes of its block. So a kernel that computes numbers and quantizes them cannot be
//! required to give certain bytes; and a tolerance on decoded values would hide a wrong rule. But scale rules are monotonic
//! in the magnitude, and casts are monotonic in the number. Hence a scale is *admissible* if it lies between the scales of
//! the smallest and the largest block maximum that the bound allows; a code is admissible if, given the stored scale, it
//! lies between the codes of the ends of its element's interval. Everything else is wrong at any distance.

use rayon::prelude::*;

use super::failure::WorstElement;
use super::values;
use super::values::POISON_BYTE;
use super::{Bound, Judge, Measured, Rule};
use ulplab_core::formats::Single;
use ulplab_core::metrics::VIOLATIONS;

/// Stored codes and scales, and the numbers that they should represent.
struct StoredBlocks<'a> {
    single: Single,
    /// Elements per block.
    width: usize,
    cols: usize,
    want: &'a [f64],
    bound: &'a Bound,
    data: &'a [u8],
    scale: &'a [u8],
}

/// Classifies a wrong code or scale: the neighbour of an admissible one, or further away.
#[derive(Clone, Copy, PartialEq)]
enum Deviation {
    Not,
    Next,
    More,
}

/// Codes or scales, with the wrong ones marked.
struct Codes<'a> {
    output: &'static str,
    shape: [usize; 2],
    wrong: Vec<Deviation>,
    /// The code, and whether it still holds the poison byte.
    found: &'a (dyn Fn(usize) -> (u32, bool) + Sync),
    /// The first and the last admissible one, and a description of their origin.
    wanted: &'a dyn Fn(usize) -> ([u32; 2], String),
}

impl Judge {
    /// Counts the scales and codes that no numbers within the bound could have: `violations` of each output. An expected
    /// NaN must be stored as NaN.
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
        let kinds = |at: usize| {
            let (code, poison) = found(at);
            values::code_kinds(poison, code == 0, wrong[at] == Deviation::Next)
        };
        let bad = |at: usize| wrong[at] != Deviation::Not;
        judge.first_wrong(judge.measured(&VIOLATIONS, 0.0), &bad, &kinds, |first| {
            let (([low, high], of), got) = ((codes.wanted)(first), found(first).0);
            let wanted = match low == high {
                true => format!("{low:#x}"),
                false => format!("{low:#x} to {high:#x}"),
            };
            WorstElement {
                at: first,
                want: low.into(),
                got: got.into(),
                bound: None,
                text: format!("want {wanted}, {of}; got {got:#x} (the first)"),
            }
        })
    }
}

impl StoredBlocks<'_> {
    /// The smallest and the largest f32 that the bound allows.
    fn interval(&self, at: usize) -> [f32; 2] {
        let (want, bound) = (self.want[at], (self.bound)(at, self.want[at]));
        [down(want - bound), up(want + bound)]
    }

    /// The elements of a block.
    fn elements(&self, block: usize) -> std::ops::Range<usize> {
        let across = self.cols.div_ceil(self.width);
        let first = block / across * self.cols + block % across * self.width;
        first..(first + self.width).min((block / across + 1) * self.cols)
    }

    /// The smallest and the largest maximum of a block that the bound allows.
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

    /// The stored scale.
    fn scale_at(&self, block: usize) -> u32 {
        let size = self.single.scale_bytes();
        let mut bytes = [0; 4];
        bytes[..size].copy_from_slice(&self.scale[block * size..][..size]);
        u32::from_le_bytes(bytes)
    }

    /// The factor or divisor that the stored scale applies to elements.
    fn factor(&self, block: usize) -> f32 {
        self.single.factor(self.scale_at(block), self.magnitudes(block)[1])
    }

    /// The codes of the ends of an element's interval.
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

/// The larger of two magnitudes; NaN is larger than any number.
fn larger(a: f32, b: f32) -> f32 {
    f32::from_bits((a.to_bits() & 0x7fff_ffff).max(b.to_bits() & 0x7fff_ffff))
}

/// The largest f32 that is not above x.
fn down(x: f64) -> f32 {
    let rounded = x as f32;
    if f64::from(rounded) > x {
        rounded.next_down()
    } else {
        rounded
    }
}

/// The smallest f32 that is not below x.
fn up(x: f64) -> f32 {
    -down(-x)
}
