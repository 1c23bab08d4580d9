//! Checks the codes and scales of quantized numbers, if the numbers before quantization are known only within an error bound.
//!
//! Rounding is discontinuous. A number that is off by one ulp may get another code. A block maximum that is off by one ulp may
//! give another scale, which changes all codes of its block. So a test cannot require certain bytes of a kernel that computes
//! numbers and then quantizes them, and a tolerance on decoded values would hide a wrong rounding or scale rule. But scales are
//! monotonic in the block maximum, and codes are monotonic in the number. Hence a scale is *admissible* if it lies between the
//! scales of the smallest and of the largest block maximum that the bound allows. A code is admissible if, under the stored
//! scale, it lies between the codes of the two ends of its element's interval. Anything else is wrong, however small the
//! difference is.

use rayon::prelude::*;

use super::failure::WorstElement;
use super::values;
use super::values::POISON_BYTE;
use super::{Bound, Judge, Measured, Rule};
use ulplab_core::formats::Single;
use ulplab_core::metrics::VIOLATIONS;

/// Codes and scales that a kernel stored, and the numbers that they should represent.
struct StoredBlocks<'a> {
    single: Single,
    /// Number of elements per block.
    width: usize,
    cols: usize,
    want: &'a [f64],
    bound: &'a Bound,
    data: &'a [u8],
    scale: &'a [u8],
}

/// Distance of a code or scale from the range of admissible values: 0 in the range, 1 directly next to it, 2 farther away.
type Distance = u8;

impl Judge {
    /// Counts the scales and codes that are not admissible: `violations` of `data` and of `scale`. If the expected number is NaN,
    /// the stored one must be NaN.
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

        let (mut codes, mut scales): (Vec<Distance>, Vec<Distance>) = (vec![0; want.len()], vec![0; shape[0] * across]);
        let rows = codes.par_chunks_mut(stored.cols).zip(scales.par_chunks_mut(across));
        rows.enumerate().for_each(|(row, (codes, scales))| {
            let blocks = codes.chunks_mut(*width).zip(scales);
            for (block, (codes, scale)) in blocks.enumerate() {
                stored.judge(row * across + block, codes, scale);
            }
        });
        let found_code = |at: usize| {
            let poison = data[at * bits / 8] == POISON_BYTE;
            (stored.single.code_at(data, at), poison)
        };
        let wanted_codes = |at: usize| {
            let block = at / stored.cols * across + at % stored.cols / width;
            let of = format!(
                "of {} ± {} under the scale {:#x} that is stored",
                values::plain(want[at]),
                values::short(bound(at, want[at])),
                stored.scale_at(block)
            );
            (stored.codes(at, stored.factor(block)), of)
        };
        let found_scale = |at: usize| {
            let bytes = &scale[at * size..][..size];
            (stored.scale_at(at), bytes.iter().all(|byte| *byte == POISON_BYTE))
        };
        let wanted_scales = |at: usize| {
            let [least, most] = stored.magnitudes(at);
            let scales = [least, most].map(|amax| stored.single.scale(amax));
            let of = format!(
                "of a largest magnitude of {} to {}",
                values::plain(least.into()),
                values::plain(most.into())
            );
            (scales, of)
        };
        let of_codes = ("data", [shape[0], stored.cols]);
        vec![
            self.said_of(of_codes, &codes, &found_code, &wanted_codes),
            self.said_of(("scale", shape), &scales, &found_scale, &wanted_scales),
        ]
    }

    /// Counts wrong codes or scales of an output, and describes the first. For an element, `found` returns the stored code, and
    /// true if the kernel did not write its bytes; `wanted` returns the lowest and the highest admissible code, and a text that
    /// explains them.
    fn said_of(
        &self,
        (output, shape): (&'static str, [usize; 2]),
        wrong: &[Distance],
        found: &(dyn Fn(usize) -> (u32, bool) + Sync),
        wanted: &dyn Fn(usize) -> ([u32; 2], String),
    ) -> Measured {
        let judge = Self {
            rows: self.rows.clone(),
            ..Self::finite(output, self.dtype, &shape, self.why.clone())
        };
        let kinds = |at: usize| {
            let (code, poison) = found(at);
            values::code_kinds(poison, code == 0, wrong[at] == 1)
        };
        judge.first_wrong(judge.measured(&VIOLATIONS, 0.0), &|at| wrong[at] > 0, &kinds, |first| {
            let (([low, high], of), got) = (wanted(first), found(first).0);
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
    /// Smallest and largest f32 that the bound allows for element `at`.
    fn interval(&self, at: usize) -> [f32; 2] {
        let (want, bound) = (self.want[at], (self.bound)(at, self.want[at]));
        [down(want - bound), up(want + bound)]
    }

    /// Index range of the elements of a block.
    fn elements(&self, block: usize) -> std::ops::Range<usize> {
        let across = self.cols.div_ceil(self.width);
        let first = block / across * self.cols + block % across * self.width;
        first..(first + self.width).min((block / across + 1) * self.cols)
    }

    /// Smallest and largest value that the block maximum (of magnitudes) may have, given the error bounds of the block's
    /// elements.
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

    /// The stored scale, as bits.
    fn scale_at(&self, block: usize) -> u32 {
        let size = self.single.scale_bytes();
        let mut bytes = [0; 4];
        bytes[..size].copy_from_slice(&self.scale[block * size..][..size]);
        u32::from_le_bytes(bytes)
    }

    /// For the stored scale, returns the number by which the format multiplies or divides elements before it encodes them.
    fn factor(&self, block: usize) -> f32 {
        self.single.factor(self.scale_at(block), self.magnitudes(block)[1])
    }

    /// Codes of the smallest and of the largest number that the bound allows for element `at`.
    fn codes(&self, at: usize, factor: f32) -> [u32; 2] {
        self.interval(at).map(|x| self.single.code(x, factor))
    }

    fn judge(&self, block: usize, codes: &mut [Distance], scale: &mut Distance) {
        let [least, most] = self.magnitudes(block);
        let stored = self.scale_at(block);
        *scale = distance(stored.into(), [least, most].map(|amax| self.single.scale(amax).into()));
        let factor = self.single.factor(stored, most);
        for (at, wrong_code) in self.elements(block).zip(codes) {
            let rank = |code: u32| i64::from(self.single.rank(code));
            let ends = self.codes(at, factor).map(rank);
            *wrong_code = distance(rank(self.single.code_at(self.data, at)), ends);
        }
    }
}

fn distance(found: i64, [low, high]: [i64; 2]) -> Distance {
    (low - found).max(found - high).clamp(0, 2) as Distance
}

/// The larger of two magnitudes; NaN is larger than any number.
fn larger(a: f32, b: f32) -> f32 {
    f32::from_bits((a.to_bits() & 0x7fff_ffff).max(b.to_bits() & 0x7fff_ffff))
}

/// Rounds down: the largest f32 that is at most x.
fn down(x: f64) -> f32 {
    let rounded = x as f32;
    if f64::from(rounded) > x {
        rounded.next_down()
    } else {
        rounded
    }
}

/// Rounds up: the smallest f32 that is at least x.
fn up(x: f64) -> f32 {
    -down(-x)
}
