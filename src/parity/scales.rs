//! Why scales are not the rule's: every cause that can be computed is, for all blocks, and the one that explains most of
//! the wrong scales and predicts the fewest that are not there is taken first.

use super::rules::Canonical;
use super::storage::global_of;
use super::{Cause, Example, Finding};
use crate::formats::{Encoded, Format, Scale};

/// Blocks that are looked at, of the wrong and of the right ones.
const WRONG: usize = 20_000;
const RIGHT: usize = 4_000;
/// Elements of the largest blocks of which each is tried to be left out.
const LANES: usize = 256;

/// A block whose scale is looked at.
struct Block {
    group: usize,
    values: Vec<f32>,
    stored: u32,
    want: u32,
    /// The largest magnitude of its values.
    amax: f32,
    global: f32,
}

/// A way to go wrong, and the scales it gives.
struct Hypothesis {
    cause: Cause,
    detail: String,
    scales: Vec<Option<u32>>,
}

/// The findings on scales; `made_with` tells whether a block's codes are those of the stored scale and of the wanted one.
pub fn classify(
    canonical: &Canonical,
    format: &Format,
    want: &Encoded,
    made_with: impl Fn(usize) -> (bool, bool),
) -> Vec<Finding> {
    let Some(scaling) = format.scaling else {
        return Vec::new();
    };
    let grid = canonical.grid;
    let scale = |bytes: &[u8], group| canonical.scale(format, bytes, group);
    let differs = |group: &usize| {
        canonical.known_scales[*group] && scale(&canonical.scales, *group) != scale(want.part("scale"), *group)
    };
    let wrong: Vec<usize> = (0..grid.len()).filter(differs).collect();
    if wrong.is_empty() {
        return Vec::new();
    }
    let globals: Vec<f32> = want
        .part("global")
        .as_chunks()
        .0
        .iter()
        .map(|bytes| f32::from_le_bytes(*bytes))
        .collect();
    let amaxes: Vec<f32> = (0..grid.len())
        .map(|group| largest(grid.elements(group).map(|at| canonical.x[at])))
        .collect();
    let block = |group: usize| Block {
        group,
        values: grid.elements(group).map(|at| canonical.x[at]).collect(),
        stored: scale(&canonical.scales, group),
        want: scale(want.part("scale"), group),
        amax: amaxes[group],
        global: global_of(format, &grid, &globals, group),
    };
    let example = |block: &Block| Example {
        place: grid.place(block.group).to_vec(),
        source: block.values.iter().take(16).copied().collect(),
        stored: show(&scaling.scale, block.stored),
        expected: show(&scaling.scale, block.want),
    };
    let mut findings = Findings::default();
    let mut left = Vec::new();
    for group in wrong.iter().copied().take(WRONG) {
        let block = block(group);
        let nan = |bits: u32| value(&scaling.scale, bits).is_nan();
        let highest = match scaling.scale {
            Scale::E8m0(_) => 254,
            Scale::E4m3(_) => 0x7e,
            // Not the type's: any scale may be as large.
            Scale::F32(_) | Scale::Half(..) | Scale::Affine(_) => u32::MAX,
        };
        let (by_stored, by_want) = made_with(group);
        let near = block.stored.abs_diff(block.want) <= 1;
        if block.want == highest || nan(block.stored) || nan(block.want) {
            findings.add(Cause::Saturation, "of scales: the largest code or NaN", || {
                example(&block)
            });
        } else if by_want && !by_stored && !near {
            findings.add(
                Cause::Layout,
                "the codes were made with another scale than the one stored for their block",
                || example(&block),
            );
        } else {
            left.push(block);
        }
    }
    let step = (grid.len() / RIGHT).max(1);
    let right: Vec<Block> = (0..grid.len())
        .step_by(step)
        .filter(|group| !differs(group))
        .map(block)
        .collect();
    let blocks: Vec<&Block> = left.iter().chain(&right).collect();
    let hypotheses = hypotheses(format, canonical, &amaxes, &blocks);
    let mut open: Vec<usize> = (0..left.len()).collect();
    while !open.is_empty() {
        let explained = |h: &Hypothesis| {
            open.iter()
                .filter(|at| h.scales[**at] == Some(left[**at].stored))
                .count()
        };
        let false_alarms = |h: &Hypothesis| {
            (left.len()..blocks.len())
                .filter(|at| h.scales[*at].is_some_and(|scale| scale != blocks[*at].want))
                .count()
        };
        let Some(best) = hypotheses
            .iter()
            .max_by_key(|h| (explained(h), std::cmp::Reverse(false_alarms(h))))
        else {
            break;
        };
        // Of equals the first in the list: `max_by_key` gives the last.
        let key = (explained(best), false_alarms(best));
        let best = hypotheses
            .iter()
            .find(|h| (explained(h), false_alarms(h)) == key)
            .unwrap_or(best);
        // By chance a hypothesis explains a few blocks of any fault.
        if key.0 * 3 < open.len() {
            break;
        }
        open.retain(|at| {
            let block = &left[*at];
            let explains = best.scales[*at] == Some(block.stored);
            if explains {
                findings.add(best.cause, &best.detail, || example(block));
            }
            !explains
        });
    }
    for block in open.into_iter().map(|at| &left[at]) {
        let of_element = |x: &f32| bits(&format.scale_of(*x, &block.values, block.global)) == block.stored;
        if block.stored.abs_diff(block.want) <= if scaling.scale.bytes() == 4 { 8 } else { 1 } {
            findings.add(Cause::ScaleRounding, "one code or a few ulps off", || example(block));
        } else if block.values.iter().any(of_element) {
            findings.add(Cause::Amax, "of some of the block's elements", || example(block));
        } else {
            findings.add(Cause::Unknown, "scales no cause explains", || example(block));
        }
    }
    let mut findings = findings.0;
    // Those not looked at are taken to be like the others.
    let looked = wrong.len().min(WRONG);
    for finding in &mut findings {
        finding.count = finding.count * wrong.len() / looked;
        finding.of = grid.len();
        finding.unit = "scales";
    }
    findings
}

/// All ways to go wrong that can be computed, those that are likelier at first sight first.
fn hypotheses(format: &Format, canonical: &Canonical, amaxes: &[f32], blocks: &[&Block]) -> Vec<Hypothesis> {
    let mut all = Vec::new();
    let scale_of =
        |format: &Format, amax: f32, block: &Block| bits(&format.scale_of(amax, &block.values, block.global));
    for other in format.by_rules().into_iter().skip(1) {
        let rule = other.scaling.map_or("", |scaling| scaling.scale.rule().0);
        all.push(Hypothesis {
            cause: Cause::ScaleRounding,
            detail: format!("as rule {rule} has it"),
            scales: blocks
                .iter()
                .map(|block| Some(scale_of(&other, block.amax, block)))
                .collect(),
        });
    }
    for (detail, step) in [("one code below", -1), ("one code above", 1)] {
        all.push(Hypothesis {
            cause: Cause::ScaleRounding,
            detail: detail.into(),
            scales: blocks.iter().map(|block| block.want.checked_add_signed(step)).collect(),
        });
    }
    let mut amax = |detail: String, of: &dyn Fn(&Block) -> Option<f32>| {
        all.push(Hypothesis {
            cause: Cause::Amax,
            detail,
            scales: blocks
                .iter()
                .map(|block| of(block).map(|amax| scale_of(format, amax, block)))
                .collect(),
        });
    };
    let part = |block: &Block, keep: &dyn Fn(usize, usize) -> bool| {
        let n = block.values.len();
        Some(largest(
            block
                .values
                .iter()
                .enumerate()
                .filter(|(i, _)| keep(*i, n))
                .map(|(_, x)| *x),
        ))
    };
    amax("of the first half of the block".into(), &|block| {
        part(block, &|i, n| i < n / 2)
    });
    amax("of the second half of the block".into(), &|block| {
        part(block, &|i, n| i >= n / 2)
    });
    amax("of every second element, from the first".into(), &|block| {
        part(block, &|i, _| i % 2 == 0)
    });
    amax("of every second element, from the second".into(), &|block| {
        part(block, &|i, _| i % 2 == 1)
    });
    amax("of the values, not of their magnitudes".into(), &|block| {
        Some(block.values.iter().copied().fold(0.0, f32::max))
    });
    for (pieces, name) in [(4, "quarter"), (8, "eighth")] {
        for piece in 0..pieces {
            let detail = format!("without the {name} number {}", piece + 1);
            amax(detail, &|block| part(block, &|i, n| i * pieces / n != piece));
        }
    }
    let grid = canonical.grid;
    let (down, across) = grid.count;
    let neighbour = |block: &Block, dr: isize, dc: isize| {
        let [r, c] = grid.place(block.group);
        let (r, c) = (r.checked_add_signed(dr)?, c.checked_add_signed(dc)?);
        (r < down && c < across).then(|| amaxes[r * across + c])
    };
    amax("of the block before".into(), &|block| neighbour(block, 0, -1));
    amax("of the next block".into(), &|block| neighbour(block, 0, 1));
    amax("of the block above".into(), &|block| neighbour(block, -1, 0));
    amax("of the block below".into(), &|block| neighbour(block, 1, 0));
    amax("of two blocks side by side".into(), &|block| {
        let c = grid.place(block.group)[1];
        let other = neighbour(block, 0, if c.is_multiple_of(2) { 1 } else { -1 }).unwrap_or(0.0);
        Some(block.amax.max(other))
    });
    let whole = amaxes.iter().copied().fold(0.0, f32::max);
    let rows: Vec<f32> = amaxes
        .chunks(across.max(1))
        .map(|row| row.iter().copied().fold(0.0, f32::max))
        .collect();
    amax("of the tensor".into(), &|_| Some(whole));
    amax("of the row".into(), &|block| Some(rows[grid.place(block.group)[0]]));
    all.extend(without_elements(format, blocks));
    all
}

/// The largest magnitude without one element, the same in all blocks: without any but the largest it stays.
fn without_elements(format: &Format, blocks: &[&Block]) -> Vec<Hypothesis> {
    let mut all: Vec<Hypothesis> = Vec::new();
    if blocks.iter().any(|block| block.values.len() > LANES) {
        return all;
    }
    for (at, block) in blocks.iter().enumerate() {
        let Some(top) = (0..block.values.len()).max_by_key(|i| block.values[*i].abs().to_bits()) else {
            continue;
        };
        let others = block.values.iter().enumerate().filter(|(i, _)| *i != top);
        let second = bits(&format.scale_of(largest(others.map(|(_, x)| *x)), &block.values, block.global));
        while all.len() <= top {
            all.push(Hypothesis {
                cause: Cause::Amax,
                detail: format!("without element {} of the block", all.len()),
                scales: blocks.iter().map(|block| Some(block.want)).collect(),
            });
        }
        all[top].scales[at] = Some(second);
    }
    all
}

/// Counts by cause and detail, and the first example of each.
#[derive(Default)]
pub struct Findings(pub Vec<Finding>);

impl Findings {
    pub fn add(&mut self, cause: Cause, detail: &str, example: impl FnOnce() -> Example) {
        match self
            .0
            .iter_mut()
            .find(|finding| finding.cause == cause && finding.detail == detail)
        {
            Some(finding) => finding.count += 1,
            None => self.0.push(Finding {
                cause,
                detail: detail.into(),
                count: 1,
                of: 0,
                unit: "",
                example: Some(example()),
            }),
        }
    }
}

/// The largest magnitude; NaN beats all.
fn largest(values: impl Iterator<Item = f32>) -> f32 {
    f32::from_bits(values.map(|x| x.abs().to_bits()).max().unwrap_or(0))
}

fn bits(bytes: &[u8]) -> u32 {
    match *bytes {
        [byte] => byte.into(),
        [a, b, c, d] => {
            let bits = u32::from_le_bytes([a, b, c, d]);
            if f32::from_bits(bits).is_nan() {
                0x7fc0_0000
            } else {
                bits
            }
        }
        _ => 0,
    }
}

fn value(scale: &Scale, bits: u32) -> f32 {
    scale.value(&bits.to_le_bytes()[..scale.bytes()])
}

fn show(scale: &Scale, bits: u32) -> String {
    let value = value(scale, bits);
    match scale.bytes() {
        1 => format!("{bits:#04x} ({value:e})"),
        _ => format!("{bits:#010x} ({value:e})"),
    }
}
