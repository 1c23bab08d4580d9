//! Tests the hypotheses that scales were computed from the amax (largest magnitude) of only a part of the block, or of other
//! blocks.

use super::Scales;
use crate::parity::Cause;
use crate::parity::place::{Origin, index_of};
use crate::parity::problem::largest;
use crate::parity::rounded::{cut_to_bf16, to_bf16, to_f16};

impl Scales<'_> {
    pub(super) fn parts(&mut self) {
        self.of_part("of the first half of the block", |i, n| i < n / 2);
        self.of_part("of the second half of the block", |i, n| i >= n / 2);
        self.of_part("of every second element, from the first", |i, _| i % 2 == 0);
        self.of_part("of every second element, from the second", |i, _| i % 2 == 1);
        let bound = |values: &[f32], start, pick: fn(f32, f32) -> f32| values.iter().copied().fold(start, pick);
        self.of_values("of the values, not of their magnitudes", |values| {
            bound(values, 0.0, f32::max)
        });
        self.of_values("of the negative values only", |values| -bound(values, 0.0, f32::min));
        for (pieces, name) in [(4, "quarter"), (8, "eighth")] {
            for piece in 0..pieces {
                let detail = format!("without the {name} number {}", piece + 1);
                self.of_part(detail, move |i, n| i * pieces / n != piece);
                let detail = format!("of the {name} number {} alone", piece + 1);
                self.of_part(detail, move |i, n| i * pieces / n == piece);
            }
        }
        for step in [4, 8] {
            for lane in 0..step {
                let detail = format!("of every {step}th element, from number {lane}");
                self.of_part(detail, move |i, _| i % step == lane);
                let detail = format!("without every {step}th element, from number {lane}");
                self.of_part(detail, move |i, _| i % step != lane);
            }
        }
        self.of_part("of the first element", |i, _| i == 0);
        self.of_part("of the last element", |i, n| i + 1 == n);
        let width = self.problem.grid.tile.1;
        if self.problem.grid.tile.0 > 1 {
            self.of_part("of the first row of the tile", move |i, _| i < width);
            self.of_part("of the first column of the tile", move |i, _| i % width == 0);
            self.of_part("of the diagonal of the tile", move |i, _| i % width == i / width);
        }
        self.amax("the second largest magnitude, not the largest", |_, block| {
            let mut magnitudes: Vec<f32> = block.values.iter().map(|x| x.abs()).collect();
            magnitudes.sort_by(|a, b| b.total_cmp(a));
            magnitudes.get(1).copied()
        });
        let mean = |values: &[f32], power: i32| {
            let sum: f64 = values.iter().map(|x| f64::from(x.abs()).powi(power)).sum();
            (sum / values.len() as f64).powf(1.0 / f64::from(power)) as f32
        };
        self.of_values("the mean magnitude, not the largest", |values| mean(values, 1));
        self.of_values("the root of the mean square, not the largest magnitude", |values| {
            mean(values, 2)
        });
        let range =
            |values: &[f32]| bound(values, f32::NEG_INFINITY, f32::max) - bound(values, f32::INFINITY, f32::min);
        self.of_values("half the range from the least to the largest value", |values| {
            range(values) / 2.0
        });
        self.of_values("the range from the least to the largest value", range);
        for (name, round) in ROUNDED {
            self.amax(format!("{name} before the scale is made of it"), |scales, block| {
                Some(round(scales.problem.amax[block.group]))
            });
        }
    }

    pub(super) fn neighbours(&mut self) {
        let grid = self.problem.grid;
        let (down, across) = grid.count;
        for (detail, stale, dr, dc) in NEIGHBOURS {
            self.of_group(detail, stale, |group| grid.neighbour(group, *dr, *dc));
        }
        for (whose, origin) in AT {
            let (detail, stale) = (format!("of {whose}"), format!("the scale of {whose}"));
            self.of_group(&detail, &stale, |group| {
                index_of(origin(grid.place(group), [down, across]), [down, across])
            });
        }
        for (name, height, width) in TOGETHER {
            self.amax(*name, move |scales, block| {
                let [r, c] = scales.problem.grid.place(block.group);
                let (top, left) = (r / height * height, c / width * width);
                let rows = top..down.min(top.saturating_add(*height));
                let cols = left..across.min(left.saturating_add(*width));
                let groups = rows.flat_map(|r| cols.clone().map(move |c| r * across + c));
                Some(scales.largest_of(groups))
            });
        }
        self.amax(
            "of this and all blocks before it in the row (never reset)",
            |scales, block| Some(scales.largest_of(block.group / across * across..=block.group)),
        );
        self.amax("of this block and the one before", |scales, block| {
            let first = block.group.saturating_sub(1).max(block.group / across * across);
            Some(scales.largest_of(first..=block.group))
        });
        self.amax("of this block and the one above", |scales, block| {
            Some(scales.largest_of([block.group.checked_sub(across)?, block.group]))
        });
    }

    fn largest_of(&self, groups: impl IntoIterator<Item = usize>) -> f32 {
        largest(groups.into_iter().map(|group| self.problem.amax[group]))
    }

    /// Tests the hypothesis that each block has the scale of another block, `group(block)`. If the codes fit the stored scales,
    /// the finding is a wrong amax (`detail`), otherwise a scale that was written to the wrong block (`stale`).
    fn of_group(&mut self, detail: &str, stale: &str, group: impl Fn(usize) -> Option<usize>) {
        if self.view.under_stored {
            self.amax(detail, |scales, block| Some(scales.problem.amax[group(block.group)?]));
        } else {
            self.hold(Cause::Stale, stale, |scales, block| {
                let scale = scales.maker.scale(scales.problem, group(block.group)?)?;
                Some(scales.view.as_stored(scale))
            });
        }
    }
}

/// Roundings that a kernel may apply to the amax: words for reports, and the function.
const ROUNDED: [(&str, fn(f32) -> f32); 4] = [
    ("rounded to bf16", to_bf16),
    ("truncated to bf16", cut_to_bf16),
    ("rounded to f16", to_f16),
    ("truncated to an integer", f32::trunc),
];

/// Wrong blocks whose amax or scale a kernel may have used: description, and function from the position of a block to that of the
/// wrong block.
const AT: &[(&str, Origin)] = &[
    ("the other block of two", |[r, c], _| [r, c ^ 1]),
    ("the other row of two", |[r, c], _| [r ^ 1, c]),
    ("the first row of two", |[r, c], _| [r / 2 * 2, c]),
    ("the first row of four", |[r, c], _| [r / 4 * 4, c]),
    ("the first block of two", |[r, c], _| [r, c / 2 * 2]),
    ("the first block of four", |[r, c], _| [r, c / 4 * 4]),
    ("the first row", |[_, c], _| [0, c]),
    ("the first block of the row", |[r, _], _| [r, 0]),
    (
        "the tile that has this number in column order",
        |[r, c], [down, across]| {
            let group = r * across + c;
            [group % down, group / down]
        },
    ),
    ("the block mirrored at the diagonal", |[r, c], _| [c, r]),
];

/// Sets of blocks that may share one amax by mistake: description, number of rows of blocks, and number of blocks in a row. The
/// sets start at multiples of these numbers.
const TOGETHER: &[(&str, usize, usize)] = &[
    ("of two blocks side by side", 1, 2),
    ("of four blocks side by side", 1, 4),
    ("of eight blocks side by side", 1, 8),
    ("of two blocks one above the other", 2, 1),
    ("of four blocks one above the other", 4, 1),
    ("of blocks of two rows and two columns", 2, 2),
    ("of 16 rows", 16, 1),
    ("of 32 rows", 32, 1),
    ("of 128 rows", 128, 1),
    ("of the row", 1, usize::MAX),
    ("of the column of blocks", usize::MAX, 1),
    ("of the tensor", usize::MAX, usize::MAX),
];

/// Neighbours of a block whose amax or scale a kernel may have used by mistake: text for the amax, text for the scale, and
/// position of the neighbour in rows down and blocks to the right.
const NEIGHBOURS: &[(&str, &str, isize, isize)] = &[
    ("of the block before", "the scale of the block before", 0, -1),
    ("of the next block", "the scale of the next block", 0, 1),
    ("of the block above", "the scale of the row before", -1, 0),
    ("of the block below", "the scale of the next row", 1, 0),
    ("of the block two before", "the scale of the block two before", 0, -2),
    ("of the block two on", "the scale of the block two on", 0, 2),
    ("of the block four before", "the scale of the block four before", 0, -4),
    ("of the block four on", "the scale of the block four on", 0, 4),
    ("of the block two rows above", "the scale two rows before", -2, 0),
    ("of the block two rows below", "the scale two rows on", 2, 0),
    ("of the block four rows above", "the scale four rows before", -4, 0),
    ("of the block four rows below", "the scale four rows on", 4, 0),
    ("of the block 32 rows above", "the scale 32 rows before", -32, 0),
    ("of the block 32 rows below", "the scale 32 rows on", 32, 0),
    (
        "of the block above and before",
        "the scale of the block above and before",
        -1,
        -1,
    ),
];
