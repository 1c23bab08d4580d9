//! Tries causes outside of the cast: codes that were made with wrong scales, encodings, orders or inputs.

use super::{Codes, SampledCell, bracket};
use crate::packed::Grid;
use crate::parity::maker::{INPUTS, Maker};
use crate::parity::problem::Cell;
use crate::parity::{Cause, recode};

impl Codes<'_> {
    /// Tests the hypotheses that codes were computed with a wrong scale: the scale of another block, no scale, a reciprocal, or a
    /// scale that is off by a factor.
    pub(super) fn scales(&mut self) {
        if self.maker.format.scaling.is_none() {
            return;
        }
        let detail = "made with the scale the rule gives, not the one that is stored";
        self.hold(Cause::Stale, detail, |codes, seen| codes.under(seen, Some(seen.own)));
        for (whose, group) in BLOCKS {
            let detail = format!("made with the scale of {whose}");
            self.hold(Cause::Stale, detail, |codes, seen| {
                // Skip a block that `group` maps to itself: its scale is the expected one.
                let other = group(&codes.problem.grid, seen.cell.group).filter(|other| *other != seen.cell.group)?;
                codes.under(seen, codes.view.scale(other))
            });
        }
        let repr = self.repr;
        self.hold(Cause::Scaling, "made without any scale", |_, seen| {
            Some(seen.x.iter().map(|x| repr.encode(*x)).collect())
        });
        self.hold(Cause::Scaling, "made with the reciprocals of the scales", |_, seen| {
            let code = |(x, y): (&f32, &f32)| repr.encode(if *y == 0.0 { 0.0 } else { x * (x / y) });
            Some(seen.x.iter().zip(&seen.y).map(code).collect())
        });
        let element = self.problem.format.element.max();
        // A scale that is not rounded maps amax to the largest code. Compute in f64: the way a kernel divides matters only at
        // ties.
        let detail = "codes are made with the scale before it was rounded";
        self.hold(Cause::ScaleRounding, detail, |codes, seen| {
            let amax = f64::from(codes.problem.amax[seen.cell.group]);
            let code = |x: &f32| repr.encode((f64::from(*x) * f64::from(element) / amax) as f32);
            (amax > 0.0 && amax.is_finite()).then(|| seen.x.iter().map(code).collect())
        });
        if self.maker.format.global.is_some() {
            let detail = "codes are made without the global scale";
            self.hold(Cause::GlobalScale, detail, |codes, seen| {
                let scale = codes.problem.value(seen.scale);
                Some(seen.x.iter().map(|x| repr.encode(x / scale)).collect())
            });
        }
        let largest = [240.0, 448.0, 57344.0, 127.0, 6.0, 7.0, 127.5, 128.0, 256.0, 8.0].map(|max: f32| max / element);
        let factors = FACTORS.into_iter().chain(largest).chain([element, 1.0 / element]);
        for factor in factors.filter(|factor: &f32| (factor - 1.0).abs() > 1e-6) {
            let detail = format!("quotients are {}", recode::factor_name(f64::from(factor), 1e-4));
            self.cast(Cause::Scaling, detail, |y, _| repr.encode(y * factor));
        }
    }

    /// Computes the codes of a cell with the encoded scale `scale`; `None` if the scale or the input values are unknown.
    fn under(&self, seen: &SampledCell, scale: Option<u32>) -> Option<Vec<u16>> {
        self.maker.codes(self.problem, &seen.cell, scale?)
    }

    pub(super) fn recodes(&mut self) {
        let bits = self.problem.format.element.bits;
        // Skip the change of code bits that the search has already found for all codes: the expected codes include this change.
        let known = self.view.storage.codes.recode(self.view.codes);
        let known = known.map(|recode| recode.name.as_str());
        for recode in recode::of_codes(self.repr, bits) {
            if known == Some(recode.name.as_str()) {
                continue;
            }
            self.cast(recode.cause, format!("codes are {}", recode.name), |_, want| {
                (recode.apply)(want.into()) as u16
            });
        }
        for other in recode::others(self.problem.format.element.repr, bits) {
            self.cast(Cause::Encoding, format!("codes are {}", other.name), |y, _| {
                other.encode(y)
            });
        }
    }

    /// Tests the hypotheses that each code was stored at another position of its cell (row segment under one scale), or in
    /// another cell.
    pub(super) fn orders(&mut self) {
        for (detail, at) in PERMUTED {
            self.hold(Cause::Layout, *detail, |_, seen| {
                let n = seen.want.len();
                Some((0..n).map(|i| seen.want[at(i, n).min(n - 1)]).collect())
            });
        }
        if self.problem.format.element.bits == 4 {
            self.hold(Cause::NibbleOrder, "in some blocks", |_, seen| {
                let n = seen.want.len();
                Some((0..n).map(|i| seen.want[(i ^ 1).min(n - 1)]).collect())
            });
        }
        let (rows, cols) = (self.problem.grid.rows as isize, self.problem.grid.cols as isize);
        let width = self.problem.grid.tile.1.min(128) as isize;
        for (detail, cause, by) in [
            ("the codes of the row before", Cause::Stale, -cols),
            ("the codes of the next row", Cause::Stale, cols),
            ("the codes of the block before", Cause::Stale, -width),
            ("the codes of the next block", Cause::Stale, width),
            ("the codes of two rows before", Cause::Stale, -2 * cols),
            ("the codes of two rows on", Cause::Stale, 2 * cols),
            ("the codes of the element before: one place late", Cause::Layout, -1),
            ("the codes of the next element: one place early", Cause::Layout, 1),
            ("two places late", Cause::Layout, -2),
            ("two places early", Cause::Layout, 2),
        ] {
            self.hold(cause, detail, |codes, seen| {
                let start = isize::try_from(seen.cell.at).ok()? + by;
                let whole = start >= 0 && start + seen.want.len() as isize <= rows * cols;
                let start = usize::try_from(start).ok().filter(|_| whole)?;
                let (end, mut at) = (start + seen.want.len(), start);
                let mut moved = Vec::with_capacity(seen.want.len());
                while at < end {
                    // The shifted range may cross cells (row segments under one scale): compute the codes of each cell as far as
                    // it lies in the range.
                    let whole = codes.problem.cell_of(at);
                    let len = end.min(whole.at + whole.len) - at;
                    let cell = Cell { at, len, ..whole };
                    let scale = codes.maker.scale(codes.problem, cell.group).unwrap_or(seen.scale);
                    moved.extend(codes.maker.codes(codes.problem, &cell, scale)?);
                    at += len;
                }
                Some(moved)
            });
        }
    }

    pub(super) fn inputs(&mut self) {
        for input in INPUTS {
            let maker = Maker {
                input: Some(input),
                ..self.maker.clone()
            };
            self.hold(input.cause, format!("the input is {}", input.detail), |codes, seen| {
                maker.codes(codes.problem, &seen.cell, seen.scale)
            });
        }
    }

    pub(super) fn never_written(&mut self) {
        let stored = self.wrong_codes();
        let runs = stored.chunk_by(|a, b| a == b);
        if let Some(&[code, ..]) = runs.max_by_key(|run| run.len()) {
            let detail = format!("all codes are {}: never written, or written over", self.show(code));
            self.cast(Cause::Missing, detail, |_, _| code);
        }
    }

    /// Tests inexact quotients and stochastic rounding as the cause if codes are one step off, some up and some down.
    pub(super) fn steps(&mut self) {
        let (repr, top) = (self.repr, self.top());
        let distance = |&(cell, i): &(usize, usize)| {
            let seen = &self.seen[cell];
            let (low, high) = bracket(repr, top, seen.y[i]);
            let (low, high) = (f64::from(repr.decode(low)), f64::from(repr.decode(high)));
            let stored = repr.decode(seen.stored[i]?);
            let same = stored == 0.0 || (stored < 0.0) == (seen.y[i] < 0.0);
            let stored = f64::from(stored).abs();
            let far = (stored - f64::from(seen.y[i].abs())).abs() / (high - low);
            (same && high > low && (stored == low || stored == high)).then_some((far, stored == high))
        };
        let distances: Vec<(f64, bool)> = self.wrong.iter().filter_map(distance).collect();
        if distances.len() * 20 < self.wrong.len() * 19 || distances.is_empty() {
            return;
        }
        let mean = distances.iter().map(|(far, _)| far).sum::<f64>() / distances.len() as f64;
        let most = distances.iter().map(|(far, _)| *far).fold(0.0, f64::max);
        let up = distances.iter().filter(|(_, up)| *up).count() as f64 / distances.len() as f64;
        let (cause, detail) = if most < 0.5 + 1e-4 {
            (Cause::Division, "the quotient is an ulp or two off, just beside a tie")
        } else if most < 0.75 && (mean - 0.5) < 0.6 * (most - 0.5) {
            let detail = "the quotient is less exact than f32: only values near a tie differ";
            (Cause::Division, detail)
        } else if (0.6..0.72).contains(&mean) && (0.3..0.7).contains(&up) {
            (
                Cause::Stochastic,
                "rounded up or down at random, the nearer one more often",
            )
        } else {
            return;
        };
        self.hold(cause, detail, |_, seen| {
            let code = |(stored, want): (&Option<u16>, &u16)| stored.unwrap_or(*want);
            Some(seen.stored.iter().zip(&seen.want).map(code).collect())
        });
    }
}

/// Wrong blocks whose scale a kernel may have used: description, and function from the index of a block to that of the wrong
/// block.
const BLOCKS: [(&str, fn(&Grid, usize) -> Option<usize>); 7] = [
    ("the block before", |grid, group| grid.neighbour(group, 0, -1)),
    ("the next block", |grid, group| grid.neighbour(group, 0, 1)),
    ("the row before", |grid, group| grid.neighbour(group, -1, 0)),
    ("the next row", |grid, group| grid.neighbour(group, 1, 0)),
    ("the first block", |_, _| Some(0)),
    ("the first block of the row", |grid, group| {
        Some(group / grid.count.1 * grid.count.1)
    }),
    ("the first row", |grid, group| Some(group % grid.count.1)),
];

/// Factors by which quotients may be off.
const FACTORS: [f32; 14] = [
    2.0,
    0.5,
    4.0,
    0.25,
    8.0,
    0.125,
    16.0,
    1.0 / 16.0,
    1.5,
    0.75,
    2.0 / 3.0,
    4.0 / 3.0,
    0.9,
    1.1,
];

/// A wrong order of the elements of a block: description, and function from stored index and block length to the index of the
/// element.
type Permuted = (&'static str, fn(usize, usize) -> usize);

const PERMUTED: &[Permuted] = &[
    ("every two elements are exchanged", |i, _| i ^ 1),
    ("every two pairs of elements are exchanged", |i, _| i ^ 2),
    ("every two fours of elements are exchanged", |i, _| i ^ 4),
    ("every four elements are in reverse order", |i, _| i ^ 3),
    ("every eight elements are in reverse order", |i, _| i ^ 7),
    ("the halves of blocks are exchanged", |i, n| (i + n / 2) % n),
    ("blocks are in reverse order", |i, n| n - 1 - i),
    ("blocks are rotated by one element", |i, n| (i + 1) % n),
    ("blocks are rotated by one element the other way", |i, n| {
        (i + n - 1) % n
    }),
    ("the halves of blocks are interleaved", |i, n| i / 2 + i % 2 * (n / 2)),
    ("even elements come before odd ones in blocks", |i, n| {
        i * 2 % n + i * 2 / n
    }),
];
