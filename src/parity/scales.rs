//! Why scales are not the maker's: every cause that can be computed is, and held against those that differ and those that
//! do not.

use super::choose::{Tried, choose};
use super::maker::Maker;
use super::place::{Hits, Place};
use super::problem::{Problem, largest, spread};
use super::search::amax_of;
use super::verify::{Tally, View};
use super::{Cause, Example, Finding};
use crate::formats::Scale;

/// Blocks that are looked at, of the wrong and of the right ones.
const WRONG: usize = 512;
const RIGHT: usize = 256;
/// Elements of all blocks that are looked at.
const ELEMENTS: usize = 1 << 15;
/// Elements of the largest blocks of which each is tried to be left out.
const LANES: usize = 256;

/// A block whose scale is looked at.
struct Block {
    group: usize,
    /// Empty of blocks too large to look at.
    values: Vec<f32>,
    stored: u32,
    /// As it would be stored.
    want: u32,
}

/// Explanations are tried for these.
struct Scales<'a> {
    problem: &'a Problem<'a>,
    maker: &'a Maker,
    view: &'a View<'a>,
    wrong: Vec<Block>,
    right: Vec<Block>,
    /// Whether the codes of wrong blocks were made with the stored scales.
    follow: bool,
    tried: Vec<Tried>,
}

/// The findings on scales. `follow`: codes are those of the stored scales, wrong as these are.
pub fn classify(problem: &Problem, maker: &Maker, view: &View, tally: &Tally, follow: bool) -> Vec<Finding> {
    if tally.groups.is_empty() {
        return Vec::new();
    }
    let grid = problem.grid;
    let mut hits = Hits::new(grid.count.0, grid.count.1);
    for group in &tally.groups {
        let [r, c] = grid.place(*group);
        hits.add(r, c);
    }
    let place = hits.place();
    let mut scales = Scales::new(problem, maker, view, tally, &place, follow);
    scales.try_all();
    let (chosen, open) = choose(&scales.tried, scales.wrong.len());
    let looked = scales.wrong.len();
    // Those not looked at are taken to be like the others.
    let count = |of: usize| (of * tally.groups.len()).div_ceil(looked);
    let finding = |cause, detail: String, others: Vec<String>, some: &[usize]| Finding {
        cause,
        detail,
        others,
        place: place.text("row", "block"),
        count: count(some.len()).min(tally.groups.len()),
        of: grid.len(),
        unit: "scales",
        example: some.first().map(|index| scales.example(&scales.wrong[*index])),
    };
    let mut findings: Vec<Finding> = chosen
        .iter()
        .map(|chosen| {
            finding(
                chosen.cause,
                chosen.detail.clone(),
                chosen.others.clone(),
                &chosen.explained,
            )
        })
        .collect();
    if !open.is_empty() {
        let (cause, detail) = scales.evidence(&open, tally);
        findings.push(finding(cause, detail, Vec::new(), &open));
    }
    findings
}

impl<'a> Scales<'a> {
    fn new(
        problem: &'a Problem<'a>,
        maker: &'a Maker,
        view: &'a View<'a>,
        tally: &Tally,
        place: &Place,
        follow: bool,
    ) -> Self {
        let grid = problem.grid;
        let size = grid.tile.0 * grid.tile.1;
        let number = |most: usize| (ELEMENTS / size).clamp(8, most);
        let block = |group: usize| {
            let want = maker.scale(problem, group)?;
            let small = size <= ELEMENTS;
            Some(Block {
                group,
                values: if small { problem.block(group) } else { Vec::new() },
                stored: view.scale(problem, group)?,
                want: view.as_stored(want),
            })
        };
        let wrong = spread(tally.groups.len(), number(WRONG));
        let right = spread(grid.len(), number(RIGHT)).into_iter().filter(|group| {
            let [r, c] = grid.place(*group);
            place.contains(r, c) && tally.groups.binary_search(group).is_err()
        });
        Self {
            problem,
            maker,
            view,
            wrong: wrong.into_iter().filter_map(|at| block(tally.groups[at])).collect(),
            right: right.filter_map(block).collect(),
            follow,
            tried: Vec::new(),
        }
    }

    fn scale(&self) -> Scale {
        self.problem.format.scaling.expect("there are scales").scale
    }

    fn hold(&mut self, cause: Cause, detail: impl Into<String>, predict: impl Fn(&Self, &Block) -> Option<u32>) {
        let explains: Vec<bool> = self
            .wrong
            .iter()
            .map(|block| predict(self, block) == Some(block.stored))
            .collect();
        if !explains.contains(&true) {
            return;
        }
        let alarm = |block: &&Block| predict(self, block).is_some_and(|scale| scale != block.want);
        let alarms = self.right.iter().filter(alarm).count() as f64 / self.right.len().max(1) as f64;
        let detail = detail.into();
        self.tried.push(Tried {
            cause,
            detail,
            explains,
            alarms,
        });
    }

    /// Scales of another largest magnitude.
    fn amax(&mut self, detail: impl Into<String>, of: impl Fn(&Self, &Block) -> Option<f32>) {
        self.hold(Cause::Amax, detail, |scales, block| {
            let amax = of(scales, block)?;
            let scale = scales.maker.scale_of(scales.problem, block.group, amax, &block.values);
            Some(scales.view.as_stored(scale))
        });
    }

    fn of_part(&mut self, detail: impl Into<String>, keep: impl Fn(usize, usize) -> bool) {
        self.amax(detail, |_, block| {
            let n = block.values.len();
            let kept = block.values.iter().enumerate().filter(|(i, _)| keep(*i, n));
            (n > 0).then(|| largest(kept.map(|(_, x)| *x)))
        });
    }

    fn try_all(&mut self) {
        self.steps();
        self.rules();
        self.parts();
        self.neighbours();
        self.others();
        self.without_elements();
        self.recodes();
        self.limits();
    }

    fn steps(&mut self) {
        if self.problem.scale_bytes() == 1 {
            for (detail, step) in [("one code below", -1), ("one code above", 1)] {
                self.hold(Cause::ScaleRounding, detail, |_, block| {
                    block.want.checked_add_signed(step)
                });
            }
        } else {
            for (detail, ulps) in [("up to 8 ulps below", -8i32..0), ("up to 8 ulps above", 1..9)] {
                self.hold(Cause::ScaleRounding, detail, |_, block| {
                    let apart = block.stored.wrapping_sub(block.want) as i32;
                    Some(if ulps.contains(&apart) {
                        block.stored
                    } else {
                        block.want
                    })
                });
            }
            self.hold(Cause::ScaleRounding, "up to 8 ulps off", |_, block| {
                let near = block.stored.abs_diff(block.want) <= 8;
                Some(if near { block.stored } else { block.want })
            });
        }
    }

    fn rules(&mut self) {
        let own = self.maker.format;
        for other in own.by_rules().into_iter().skip(1) {
            let Some(scaling) = other.scaling else { continue };
            let globals = match (scaling.scale, self.scale()) {
                (Scale::E4m3(rule), Scale::E4m3(own)) if rule.stored != own.stored => {
                    let amax = |global: &f32| other.global_of(amax_of(own.stored, *global)).unwrap_or(1.0);
                    self.maker.globals.iter().map(amax).collect()
                }
                _ => self.maker.globals.clone(),
            };
            let maker = Maker {
                format: other,
                globals,
                input: self.maker.input,
            };
            let detail = format!("as rule {} has it", scaling.scale.rule().0);
            self.hold(Cause::ScaleRounding, detail, |scales, block| {
                Some(scales.view.as_stored(maker.scale(scales.problem, block.group)?))
            });
        }
        if let Scale::E4m3(_) = self.scale() {
            for (detail, up) in [
                ("rounded down, not to nearest", false),
                ("rounded up, not to nearest", true),
            ] {
                self.hold(Cause::ScaleRounding, detail, |scales, block| {
                    let exact = scales.exact(block)?;
                    let value = |code: u32| f64::from(scales.problem.value(code));
                    let below = (0..0x7f).rev().find(|code| value(*code) <= exact).unwrap_or(0);
                    Some(if up && value(below) < exact {
                        (below + 1).min(0x7e)
                    } else {
                        below
                    })
                });
            }
        }
    }

    /// The scale of an NVFP4 block before it is rounded.
    fn exact(&self, block: &Block) -> Option<f64> {
        let Scale::E4m3(rule) = self.scale() else { return None };
        let amax = f64::from(self.problem.amax[block.group]);
        let global = self.maker.global(self.problem, block.group);
        let own = if self.maker.globals.is_empty() {
            2688.0
        } else {
            f64::from(amax_of(rule.stored, global))
        };
        Some(amax / 6.0 * 2688.0 / own).filter(|exact| exact.is_finite())
    }

    fn parts(&mut self) {
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

    fn neighbours(&mut self) {
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

    fn others(&mut self) {
        // One factor of all largest magnitudes: found on the blocks that differ.
        let ratio = |block: &Block| {
            let (stored, want) = (self.problem.value(block.stored), self.problem.value(block.want));
            Some(f64::from(stored) / f64::from(want)).filter(|ratio| ratio.is_finite() && *ratio > 0.0)
        };
        let mut ratios: Vec<f64> = self.wrong.iter().filter_map(ratio).collect();
        ratios.sort_by(f64::total_cmp);
        if let Some(&middle) = ratios.get(ratios.len() / 2) {
            let steps = if self.problem.scale_bytes() == 4 { 0..1 } else { -24..25 };
            let mut factors: Vec<f64> = steps
                .map(|step| middle * f64::from(step).mul_add(1.0 / 48.0, 0.0).exp2())
                .collect();
            factors.extend([0.5, 0.75, 0.8, 0.9, 0.95, 0.99, 1.05, 1.1, 1.2, 1.25, 1.5, 2.0]);
            for factor in factors.into_iter().filter(|factor| (factor - 1.0).abs() > 1e-3) {
                let detail = format!("times a factor of about {factor:.3} (clipped or with headroom)");
                self.amax(detail, |scales, block| {
                    Some((f64::from(scales.problem.amax[block.group]) * factor) as f32)
                });
            }
        }
        let power = |bits: u32| bits & 0x7f80_0000;
        self.amax("rounded up to a power of two", |scales, block| {
            Some(f32::from_bits(power(
                scales.problem.amax[block.group].to_bits() + 0x7f_ffff,
            )))
        });
        self.amax("rounded down to a power of two", |scales, block| {
            Some(f32::from_bits(power(scales.problem.amax[block.group].to_bits())))
        });
    }

    /// The largest magnitude without one element, the same in all blocks.
    fn without_elements(&mut self) {
        let size = self.wrong.iter().map(|block| block.values.len()).max().unwrap_or(0);
        if size > LANES {
            return;
        }
        for lane in 0..size {
            self.of_part(format!("without element {lane} of the block"), move |i, _| i != lane);
        }
    }

    fn recodes(&mut self) {
        let (view, problem) = (self.view, self.problem);
        for recode in &view.storage.scale_recodes {
            self.hold(recode.cause, format!("scales are {}", recode.name), |_, block| {
                let made = (recode.apply)(block.want);
                // As near as the change can be computed.
                Some(if made != block.stored && recode.explains(block.want, block.stored) {
                    block.stored
                } else {
                    made
                })
            });
        }
        let mut values: Vec<u32> = self.wrong.iter().map(|block| block.stored).collect();
        values.sort_unstable();
        if let Some(&common) = values.get(values.len() / 2) {
            let shown = show(&self.scale(), common);
            self.hold(
                Cause::Missing,
                format!("all scales are {shown}: never written, or written over"),
                |_, _| Some(common),
            );
            self.hold(
                Cause::ScaleRounding,
                format!("blocks of zeros have the scale {shown}"),
                |_, block| {
                    let zero = problem.amax[block.group] == 0.0;
                    Some(if zero { common } else { block.want })
                },
            );
        }
    }

    fn limits(&mut self) {
        let stored = || {
            self.wrong
                .iter()
                .chain(&self.right)
                .map(|block| self.problem.value(block.stored))
        };
        let finite = || stored().filter(|value| value.is_finite());
        let (least, most) = (finite().fold(f32::INFINITY, f32::min), finite().fold(0.0, f32::max));
        let problem = self.problem;
        let value = |bits: u32| problem.value(bits);
        let clamp = |block: &Block, limit: f32, below: bool| {
            let beyond = if below {
                value(block.want) < limit
            } else {
                value(block.want) > limit
            };
            let at = value(block.stored) == limit;
            if beyond {
                if at { block.stored } else { u32::MAX }
            } else {
                block.want
            }
        };
        self.hold(
            Cause::Saturation,
            format!("of scales: none is below {least:e}"),
            |_, block| Some(clamp(block, least, true)),
        );
        self.hold(
            Cause::Saturation,
            format!("of scales: none is above {most:e}"),
            |_, block| Some(clamp(block, most, false)),
        );
        let highest = match self.scale() {
            Scale::E8m0(_) => 254,
            Scale::E4m3(_) => 0x7e,
            // Not the type's: any scale may be as large.
            Scale::F32(_) | Scale::Half(..) | Scale::Affine(_) => u32::MAX,
        };
        self.hold(Cause::Saturation, "of scales: the largest code or NaN", |_, block| {
            let special = block.want == highest || value(block.stored).is_nan() || value(block.want).is_nan();
            Some(if special { block.stored } else { block.want })
        });
    }

    /// What is seen of scales that nothing explains.
    fn evidence(&self, open: &[usize], tally: &Tally) -> (Cause, String) {
        let blocks: Vec<&Block> = open.iter().map(|index| &self.wrong[*index]).collect();
        if self.is_permutation(tally) {
            return (
                Cause::Layout,
                "the right scales at other places, in an order that has no name here".into(),
            );
        }
        let ratio = |block: &&Block| self.problem.value(block.stored) / self.problem.value(block.want);
        let mut ratios: Vec<f32> = blocks.iter().map(ratio).filter(|ratio| !ratio.is_nan()).collect();
        ratios.sort_by(f32::total_cmp);
        let range = match (ratios.first(), ratios.last()) {
            (Some(a), Some(b)) => format!("they are {a:.3} to {b:.3} times the expected ones"),
            _ => "they are no numbers".into(),
        };
        let with = match self.follow {
            true => "the codes were made with the stored scales",
            false => "the codes were not made with the stored scales",
        };
        (Cause::Unknown, format!("scales no cause explains: {range}; {with}"))
    }

    /// Whether all stored scales are the expected ones at other places.
    fn is_permutation(&self, tally: &Tally) -> bool {
        if tally.groups.len() < 16 {
            return false;
        }
        let pairs = tally.groups.iter().filter_map(|group| {
            let want = self.view.as_stored(self.maker.scale(self.problem, *group)?);
            Some((want, self.view.scale(self.problem, *group)?))
        });
        let (mut want, mut stored): (Vec<u32>, Vec<u32>) = pairs.unzip();
        want.sort_unstable();
        stored.sort_unstable();
        let mut kinds = want.clone();
        kinds.dedup();
        want == stored && kinds.len() > 2
    }

    fn example(&self, block: &Block) -> Example {
        let scale = self.scale();
        Example {
            place: self.problem.grid.place(block.group).to_vec(),
            source: block.values.iter().take(16).copied().collect(),
            stored: show(&scale, block.stored),
            expected: show(&scale, block.want),
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

/// A scale as a person reads it.
pub fn show(scale: &Scale, bits: u32) -> String {
    let value = scale.value(&bits.to_le_bytes()[..scale.bytes()]);
    match scale.bytes() {
        1 => format!("{bits:#04x} ({value:e})"),
        _ => format!("{bits:#010x} ({value:e})"),
    }
}
