//! Scales of other largest magnitudes: of parts of the block, and of other blocks.

use super::{Block, Scales};
use crate::parity::Cause;
use crate::parity::problem::largest;

impl Scales<'_> {
    pub(super) fn parts(&mut self) {
        self.of_part("of the first half of the block", |i, n| i < n / 2);
        self.of_part("of the second half of the block", |i, n| i >= n / 2);
        self.of_part("of every second element, from the first", |i, _| i % 2 == 0);
        self.of_part("of every second element, from the second", |i, _| i % 2 == 1);
        self.amax("of the values, not of their magnitudes", |_, block| {
            (!block.values.is_empty()).then(|| block.values.iter().copied().fold(0.0, f32::max))
        });
        self.amax("of the negative values only", |_, block| {
            (!block.values.is_empty()).then(|| -block.values.iter().copied().fold(0.0, f32::min))
        });
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
                self.of_part(format!("of every {step}th element, from number {lane}"), move |i, _| {
                    i % step == lane
                });
                self.of_part(
                    format!("without every {step}th element, from number {lane}"),
                    move |i, _| i % step != lane,
                );
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
        let ranked = |rank: usize| {
            move |_: &Self, block: &Block| {
                let mut magnitudes: Vec<f32> = block.values.iter().map(|x| x.abs()).collect();
                magnitudes.sort_by(|a, b| b.total_cmp(a));
                magnitudes.get(rank).copied()
            }
        };
        self.amax("the second largest magnitude, not the largest", ranked(1));
        let mean = |power: i32| {
            move |_: &Self, block: &Block| {
                let sum: f64 = block.values.iter().map(|x| f64::from(x.abs()).powi(power)).sum();
                let mean = sum / block.values.len().max(1) as f64;
                (!block.values.is_empty()).then(|| mean.powf(1.0 / f64::from(power)) as f32)
            }
        };
        self.amax("the mean magnitude, not the largest", mean(1));
        self.amax("the root of the mean square, not the largest magnitude", mean(2));
        self.amax("half the range from the least to the largest value", |_, block| {
            let (least, most) = (
                block.values.iter().copied().fold(f32::INFINITY, f32::min),
                largest_value(block)?,
            );
            Some((most - least) / 2.0)
        });
        self.amax("the range from the least to the largest value", |_, block| {
            let (least, most) = (
                block.values.iter().copied().fold(f32::INFINITY, f32::min),
                largest_value(block)?,
            );
            Some(most - least)
        });
        for (name, round) in ROUNDED {
            self.amax(format!("{name} before the scale is made of it"), |scales, block| {
                Some(round(scales.problem.amax[block.group]))
            });
        }
    }

    pub(super) fn neighbours(&mut self) {
        let (down, across) = self.problem.grid.count;
        for (detail, stale, dr, dc) in NEIGHBOURS {
            let neighbour = move |scales: &Self, block: &Block| {
                let [r, c] = scales.problem.grid.place(block.group);
                let (r, c) = (r.checked_add_signed(*dr)?, c.checked_add_signed(*dc)?);
                (r < down && c < across).then_some(r * across + c)
            };
            self.of_group(detail, stale, neighbour);
        }
        let pairs: [(&str, &str, usize, usize); 8] = [
            ("of the other block of two", "the scale of the other block of two", 0, 1),
            ("of the other row of two", "the scale of the other row of two", 1, 0),
            (
                "of the first row of two",
                "the scale of the first row of two",
                usize::MAX,
                2,
            ),
            (
                "of the first row of four",
                "the scale of the first row of four",
                usize::MAX,
                4,
            ),
            (
                "of the first block of two",
                "the scale of the first block of two",
                usize::MAX - 1,
                2,
            ),
            (
                "of the first block of four",
                "the scale of the first block of four",
                usize::MAX - 1,
                4,
            ),
            ("of the first row", "the scale of the first row", usize::MAX, usize::MAX),
            (
                "of the first block of the row",
                "the scale of the first block of the row",
                usize::MAX - 1,
                usize::MAX,
            ),
        ];
        for (detail, stale, a, b) in pairs {
            self.of_group(detail, stale, move |scales, block| {
                let [r, c] = scales.problem.grid.place(block.group);
                let (r, c) = match a {
                    usize::MAX => (if b == usize::MAX { 0 } else { r / b * b }, c),
                    a if a == usize::MAX - 1 => (r, if b == usize::MAX { 0 } else { c / b * b }),
                    _ => (r ^ a, c ^ b),
                };
                (r < down && c < across).then_some(r * across + c)
            });
        }
        self.of_group(
            "of the tile that has this number in column order",
            "the scale of the tile that has this number in column order",
            move |_, block| Some(block.group % down * across + block.group / down),
        );
        self.of_group(
            "of the block mirrored at the diagonal",
            "the scale of the block mirrored at the diagonal",
            move |scales, block| {
                let [r, c] = scales.problem.grid.place(block.group);
                (c < down && r < across).then_some(c * across + r)
            },
        );
        for (name, height, width) in [
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
        ] {
            self.amax(name, move |scales, block| {
                let [r, c] = scales.problem.grid.place(block.group);
                let start = |i: usize, size: usize| if size == usize::MAX { 0 } else { i / size * size };
                let (top, left) = (start(r, height), start(c, width));
                let rows = top..down.min(top.saturating_add(height));
                let cols = left..across.min(left.saturating_add(width));
                let groups = rows.flat_map(|r| cols.clone().map(move |c| r * across + c));
                Some(largest(groups.map(|group| scales.problem.amax[group])))
            });
        }
        self.amax(
            "of this and all blocks before it in the row (never reset)",
            move |scales, block| {
                let first = block.group / across * across;
                Some(largest(scales.problem.amax[first..=block.group].iter().copied()))
            },
        );
        self.amax("of this block and the one before", move |scales, block| {
            let first = block.group.saturating_sub(1).max(block.group / across * across);
            Some(largest(scales.problem.amax[first..=block.group].iter().copied()))
        });
        self.amax("of this block and the one above", move |scales, block| {
            let above = block.group.checked_sub(across)?;
            Some(largest(
                [above, block.group].map(|group| scales.problem.amax[group]).into_iter(),
            ))
        });
    }

    /// Scales of another group: made of its largest magnitude, or its very bytes.
    fn of_group(&mut self, detail: &str, stale: &str, group: impl Fn(&Self, &Block) -> Option<usize>) {
        if self.follow {
            self.amax(detail, |scales, block| Some(scales.problem.amax[group(scales, block)?]));
        } else {
            self.hold(Cause::Stale, stale, |scales, block| {
                let scale = scales.maker.scale(scales.problem, group(scales, block)?)?;
                Some(scales.view.as_stored(scale))
            });
        }
    }
}

fn largest_value(block: &Block) -> Option<f32> {
    (!block.values.is_empty()).then(|| block.values.iter().copied().fold(f32::NEG_INFINITY, f32::max))
}

type Rounded = (&'static str, fn(f32) -> f32);

const ROUNDED: [Rounded; 4] = [
    ("rounded to bf16", |x| half::bf16::from_f32(x).to_f32()),
    ("truncated to bf16", |x| f32::from_bits(x.to_bits() & 0xffff_0000)),
    ("rounded to f16", |x| half::f16::from_f32(x).to_f32()),
    ("truncated to an integer", f32::trunc),
];

/// Blocks around a block: as whose largest magnitude, as whose scale, rows down and blocks across.
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
