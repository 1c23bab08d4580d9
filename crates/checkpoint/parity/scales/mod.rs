//! Finds out why stored scales differ from the scales of the reference quantizer. Each cause is tested on scales that differ and
//! on scales that match.

mod amaxes;

use std::cmp::Ordering;

use super::choose::{Explanation, choose, findings};
use super::levels::amax_of;
use super::maker::Maker;
use super::place::{Hits, Place};
use super::problem::{Problem, largest, spread};
use super::rounded::{to_power_above, to_power_below};
use super::verify::{Tally, View};
use super::{Cause, Example, Finding, Scope};
use ulplab_core::error::counted;
use ulplab_core::formats::Scale;
use ulplab_core::metrics::upper_median;

/// Maximum numbers of sampled blocks whose scales differ from the expected ones (`WRONG`) or equal them (`RIGHT`).
const WRONG: usize = 512;
const RIGHT: usize = 256;
/// Minimum number of differing blocks. A property that fewer blocks share may be chance.
const SEVERAL: usize = 4;
/// Approximate number of sampled elements.
const ELEMENTS: usize = 1 << 15;
/// Maximum block size for tests of an amax that ignores the element at one position of the block: each position needs a test.
const LANES: usize = 256;

/// If fewer than `FEW` of at least `MANY` one-byte scales differ, no cause is named: a cause may fit by chance.
const FEW: usize = 3;
const MANY: usize = 64;

/// Describes differences that are too few to name a cause.
pub fn isolated(count: usize, what: &str) -> String {
    let verb = if count == 1 { "differs" } else { "differ" };
    format!("{} {verb}, too few to name a cause", counted(count, what))
}

/// A block of the sample, with its stored and its expected scale.
struct Block {
    group: usize,
    /// Source values; empty if blocks are too large to examine.
    values: Vec<f32>,
    stored: u32,
    /// Bits of the scale that the reference quantizer would store.
    want: u32,
}

/// A sample of blocks, and the explanations that were tested on this sample.
struct Scales<'a> {
    problem: &'a Problem<'a>,
    maker: &'a Maker,
    view: &'a View<'a>,
    wrong: Vec<Block>,
    right: Vec<Block>,
    tried: Vec<Explanation>,
}

/// Finds the causes of stored scales that differ from those of the reference quantizer `maker`.
pub fn classify(maker: &Maker, view: &View, tally: &Tally) -> Vec<Finding> {
    if tally.groups.is_empty() {
        return Vec::new();
    }
    let problem = view.storage.problem;
    let grid = problem.grid;
    let mut hits = Hits::new(grid.count.0, grid.count.1);
    for group in &tally.groups {
        let [r, c] = grid.place(*group);
        hits.add(r, c);
    }
    let place = hits.place();
    let few = problem.scale_bytes() == 1 && tally.groups.len() < FEW && grid.groups() >= MANY;
    let mut scales = Scales::new(maker, view, tally, &place);
    let scope = Scope {
        place: place.text("row", "block"),
        region: place.len(),
        of: grid.groups(),
        unit: "scales",
    };
    if few && !scales.wrong.is_empty() {
        let count = tally.groups.len();
        return vec![Finding {
            example: Some(scales.example(&scales.wrong[0])),
            ..scope.finding(Cause::Isolated, isolated(count, "scale"), count)
        }];
    }
    scales.try_all();
    let (mut chosen, open) = choose(&scales.tried, scales.wrong.len());
    if !open.is_empty() {
        let (cause, detail) = scales.evidence(&open, tally);
        chosen.push(Explanation::new(cause, detail, open));
    }
    let counts = (scales.wrong.len(), tally.groups.len());
    findings(chosen, &scope, counts, |index| scales.example(&scales.wrong[index]))
}

impl<'a> Scales<'a> {
    fn new(maker: &'a Maker, view: &'a View<'a>, tally: &Tally, place: &Place) -> Self {
        let problem = view.storage.problem;
        let grid = problem.grid;
        let size = grid.tile.0 * grid.tile.1;
        let number = |most: usize| (ELEMENTS / size).clamp(8, most);
        let block = |group: usize| {
            let want = maker.scale(problem, group)?;
            let small = size <= ELEMENTS;
            Some(Block {
                group,
                values: if small { problem.block(group) } else { Vec::new() },
                stored: view.scale(group)?,
                want: view.as_stored(want),
            })
        };
        let wrong = spread(tally.groups.len(), number(WRONG));
        let right = spread(grid.groups(), number(RIGHT)).into_iter().filter(|group| {
            let [r, c] = grid.place(*group);
            place.contains(r, c) && tally.groups.binary_search(group).is_err()
        });
        Self {
            problem,
            maker,
            view,
            wrong: wrong.into_iter().filter_map(|at| block(tally.groups[at])).collect(),
            right: right.filter_map(block).collect(),
            tried: Vec::new(),
        }
    }

    fn scale(&self) -> Scale {
        self.problem.format.scaling.expect("there are scales").scale
    }

    fn hold(&mut self, cause: Cause, detail: impl Into<String>, predict: impl Fn(&Self, &Block) -> Option<u32>) {
        let explains = |block: &Block| predict(self, block) == Some(block.stored);
        let alarm = |block: &Block| predict(self, block).is_some_and(|scale| scale != block.want);
        let (wrong, right) = (self.wrong.iter().map(explains), self.right.iter().map(alarm));
        let tried = Explanation::tested(cause, detail.into(), wrong, right);
        self.tried.extend(tried);
    }

    /// Tests a cause that predicts which scales differ, but not the stored values: `differs` is true for a block whose scale is
    /// predicted to differ.
    fn differs(&mut self, cause: Cause, detail: impl Into<String>, differs: impl Fn(&Self, &Block) -> bool) {
        self.hold(cause, detail, |scales, block| {
            let differs = differs(scales, block);
            Some(if differs { block.stored } else { block.want })
        });
    }

    /// Tests the hypothesis that the rule computed the scale from a wrong amax. `of` returns this amax for a block.
    fn amax(&mut self, detail: impl Into<String>, of: impl Fn(&Self, &Block) -> Option<f32>) {
        self.hold(Cause::Amax, detail, |scales, block| {
            let amax = of(scales, block)?;
            let scale = scales.maker.scale_of(scales.problem, block.group, amax, &block.values);
            Some(scales.view.as_stored(scale))
        });
    }

    /// Tests the hypothesis that the rule computed the scale from a wrong amax. `of` computes this amax from the source values of
    /// a block.
    fn of_values(&mut self, detail: impl Into<String>, of: impl Fn(&[f32]) -> f32) {
        self.amax(detail, |_, block| (!block.values.is_empty()).then(|| of(&block.values)));
    }

    fn of_part(&mut self, detail: impl Into<String>, keep: impl Fn(usize, usize) -> bool) {
        self.of_values(detail, |values| {
            let kept = values.iter().enumerate().filter(|(i, _)| keep(*i, values.len()));
            largest(kept.map(|(_, x)| *x))
        });
    }

    fn try_all(&mut self) {
        self.steps();
        self.rules();
        self.parts();
        self.neighbours();
        self.others();
        self.without_elements();
        self.limits();
        self.recodes();
        self.special();
    }

    fn steps(&mut self) {
        if self.problem.scale_bytes() == 1 {
            for (detail, step) in [("one code below", -1), ("one code above", 1)] {
                self.hold(Cause::ScaleRounding, detail, |_, block| {
                    block.want.checked_add_signed(step)
                });
            }
        } else {
            for (way, ulps) in [("below", -8i32..0), ("above", 1..9), ("off", -8..9)] {
                self.differs(Cause::ScaleRounding, format!("up to 8 ulps {way}"), |_, block| {
                    ulps.contains(&(block.stored.wrapping_sub(block.want) as i32))
                });
            }
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
                ..self.maker.clone()
            };
            let detail = format!("as rule {} has it", scaling.scale.rule().0);
            self.hold(Cause::ScaleRounding, detail, |scales, block| {
                Some(scales.view.as_stored(maker.scale(scales.problem, block.group)?))
            });
        }
        if let Scale::E4m3(_) = self.scale() {
            for (way, up) in [("down", false), ("up", true)] {
                let detail = format!("rounded {way}, not to nearest");
                self.hold(Cause::ScaleRounding, detail, |scales, block| {
                    let exact = scales.exact(block)?;
                    let value = |code: u32| f64::from(scales.problem.value(code));
                    let below = (0..0x7f).rev().find(|code| value(*code) <= exact).unwrap_or(0);
                    let above = up && value(below) < exact;
                    Some(if above { (below + 1).min(0x7e) } else { below })
                });
            }
        }
    }

    /// Returns the scale of an NVFP4 block before it is rounded to E4M3; `None` for other formats.
    fn exact(&self, block: &Block) -> Option<f64> {
        let Scale::E4m3(rule) = self.scale() else { return None };
        let amax = f64::from(self.problem.amax[block.group]);
        let global = self.maker.global(self.problem, block.group);
        let own = match self.maker.globals.is_empty() {
            true => 2688.0,
            false => f64::from(amax_of(rule.stored, global)),
        };
        Some(amax / 6.0 * 2688.0 / own).filter(|exact| exact.is_finite())
    }

    fn others(&mut self) {
        // Test the hypothesis that every amax was multiplied by one factor, which is estimated from the blocks that differ.
        let ratio = |block: &Block| {
            let (stored, want) = (self.problem.value(block.stored), self.problem.value(block.want));
            Some(f64::from(stored) / f64::from(want)).filter(|ratio| ratio.is_finite() && *ratio > 0.0)
        };
        if let Some(middle) = upper_median(self.wrong.iter().filter_map(ratio).collect()) {
            let steps = if self.problem.scale_bytes() == 4 { 0..1 } else { -24..25 };
            let near = steps.map(|step| middle * f64::from(step).mul_add(1.0 / 48.0, 0.0).exp2());
            let factors = near.chain([0.5, 0.75, 0.8, 0.9, 0.95, 0.99, 1.05, 1.1, 1.2, 1.25, 1.5, 2.0]);
            for factor in factors.filter(|factor| (factor - 1.0).abs() > 1e-3) {
                let detail = format!("times a factor of about {factor:.3} (clipped or with headroom)");
                self.amax(detail, |scales, block| {
                    Some((f64::from(scales.problem.amax[block.group]) * factor) as f32)
                });
            }
        }
        for (detail, round) in [
            ("rounded up to a power of two", to_power_above as fn(f32) -> f32),
            ("rounded down to a power of two", to_power_below),
        ] {
            self.amax(detail, |scales, block| Some(round(scales.problem.amax[block.group])));
        }
    }

    /// Tests the hypotheses that the amax leaves out the element at one fixed position of every block.
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
        for recode in &view.storage.scales.recodes {
            self.hold(recode.cause, recode.finding(), |_, block| {
                Some((recode.apply)(block.want))
            });
        }
        let mut values: Vec<u32> = self.wrong.iter().map(|block| block.stored).collect();
        values.sort_unstable();
        if let Some(&common) = values.get(values.len() / 2).filter(|_| values.len() >= SEVERAL) {
            let shown = show(&self.scale(), common);
            let detail = format!("all scales are {shown}: never written, or written over");
            self.hold(Cause::Missing, detail, |_, _| Some(common));
            let detail = format!("blocks of zeros have the scale {shown}");
            self.hold(Cause::ScaleRounding, detail, |_, block| {
                let zero = problem.amax[block.group] == 0.0;
                Some(if zero { common } else { block.want })
            });
        }
    }

    fn limits(&mut self) {
        // Skip small samples: the smallest and the largest of a few scales would be mistaken for limits to which scales are
        // clamped.
        if self.wrong.len() < SEVERAL {
            return;
        }
        let problem = self.problem;
        let value = |bits: u32| problem.value(bits);
        let stored = || self.wrong.iter().chain(&self.right).map(|block| value(block.stored));
        let finite = || stored().filter(|value| value.is_finite());
        let (least, most) = (finite().fold(f32::INFINITY, f32::min), finite().fold(0.0, f32::max));
        let below = format!("of scales: none is below {least:e}");
        let above = format!("of scales: none is above {most:e}, as of values that are clamped");
        for (detail, limit, way) in [(below, least, Ordering::Less), (above, most, Ordering::Greater)] {
            self.hold(Cause::Saturation, detail, |_, block| {
                let beyond = value(block.want).partial_cmp(&limit) == Some(way);
                let at = value(block.stored) == limit;
                Some(match (beyond, at) {
                    (false, _) => block.want,
                    (true, true) => block.stored,
                    (true, false) => u32::MAX,
                })
            });
        }
    }

    fn special(&mut self) {
        let problem = self.problem;
        let is_nan = |bits: u32| problem.value(bits).is_nan();
        let highest = match self.scale() {
            Scale::E8m0(_) => Some(254),
            Scale::E4m3(_) => Some(0x7e),
            // Scales do not reach the largest value of these types.
            Scale::F32(_) | Scale::Half(..) | Scale::Affine(_) => None,
        };
        let detail = "of scales: the largest code or NaN";
        self.differs(Cause::Saturation, detail, |_, block| {
            Some(block.want) == highest || is_nan(block.stored) || is_nan(block.want)
        });
    }

    /// Describes the differing scales `open`, which no tried cause explains. Returns "layout" as the cause if the stored scales
    /// are a permutation of the expected ones, else "unknown".
    fn evidence(&self, open: &[usize], tally: &Tally) -> (Cause, String) {
        if self.is_permutation(tally) {
            let detail = "the right scales at other places, in an order that has no name here";
            return (Cause::Layout, detail.into());
        }
        let ratio = |index: &usize| {
            let block = &self.wrong[*index];
            self.problem.value(block.stored) / self.problem.value(block.want)
        };
        let mut ratios: Vec<f32> = open.iter().map(ratio).filter(|ratio| !ratio.is_nan()).collect();
        ratios.sort_by(f32::total_cmp);
        let range = match (ratios.first(), ratios.last()) {
            (Some(a), Some(b)) => format!("they are {a:.3} to {b:.3} times the expected ones"),
            _ => "they are no numbers".into(),
        };
        let with = match self.view.under_stored {
            true => "the codes were made with the stored scales",
            false => "the codes were not made with the stored scales",
        };
        (Cause::Unknown, format!("scales no cause explains: {range}; {with}"))
    }

    /// True if the stored scales are a permutation of the expected ones.
    fn is_permutation(&self, tally: &Tally) -> bool {
        if tally.groups.len() < 16 {
            return false;
        }
        let pairs = tally.groups.iter().filter_map(|group| {
            let want = self.view.as_stored(self.maker.scale(self.problem, *group)?);
            Some((want, self.view.scale(*group)?))
        });
        let (mut want, mut stored): (Vec<u32>, Vec<u32>) = pairs.unzip();
        want.sort_unstable();
        stored.sort_unstable();
        want == stored && want.chunk_by(|a, b| a == b).nth(2).is_some()
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

/// Formats a scale for a report: bits and value.
pub fn show(scale: &Scale, bits: u32) -> String {
    let value = scale.value(&bits.to_le_bytes()[..scale.bytes()]);
    match scale.bytes() {
        1 => format!("{bits:#04x} ({value:e})"),
        _ => format!("{bits:#010x} ({value:e})"),
    }
}
