//! Compares hypothetical quantizers with every stored byte of the tensor, in strips of rows that run in parallel.

use std::sync::atomic::Ordering;

use rayon::prelude::*;

use super::maker::Maker;
use super::place::Hits;
use super::search::{Storage, StorageForm};
use crate::packed::codes;
use ulplab_core::formats::{Format, GlobalScale, Single};

/// Maximum relative error of a number before it is rounded to a scale or code, in a kernel with approximate reciprocals. A code
/// takes two reciprocals and three products, a scale one reciprocal and two products. An approximate reciprocal is off by at most
/// an ulp, the rounded reciprocal of the rule by half an ulp. An ulp is at most 2^-23.
const APPROXIMATE: f32 = 4.0 / (1 << 23) as f32;

/// Differences between the stored bytes and the bytes that a quantizer makes.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    pub wrong_codes: usize,
    /// Number of blocks with a wrong scale or a wrong code.
    pub wrong_blocks: usize,
    /// True if at least one difference is too large for approximate reciprocals: even with a relative error of [`APPROXIMATE`]
    /// before rounding, the rule does not give the stored scale or code.
    pub far: bool,
    /// Indices of the groups whose stored scales differ from the expected ones, in ascending order.
    pub groups: Vec<usize>,
    /// Index of the first wrong element in each row of each group, row by row.
    pub elements: Vec<usize>,
    pub hits: Hits,
}

/// A way to read the stored bytes: the order and encoding of scales and of codes.
#[derive(Clone, Copy)]
pub struct View<'a> {
    pub storage: &'a Storage<'a>,
    pub scales: StorageForm,
    pub codes: StorageForm,
    /// True if the expected codes are computed with the stored scales, not with the scales of the quantizer.
    pub under_stored: bool,
}

impl Tally {
    fn merge(mut self, other: Self) -> Self {
        self.wrong_codes += other.wrong_codes;
        self.wrong_blocks += other.wrong_blocks;
        self.far |= other.far;
        self.groups.extend(other.groups);
        self.elements.extend(other.elements);
        self.hits = self.hits.merge(other.hits);
        self
    }
}

impl View<'_> {
    /// Returns the stored bits of the scale of a group, read in the order of this view. A wrong encoding of scales is not undone.
    pub fn scale(&self, group: usize) -> Option<u32> {
        self.storage.scales.stored(self.scales.order, group)
    }

    /// Returns the stored code of an element, read in the order of this view. A wrong encoding of codes is not undone.
    pub fn code(&self, at: usize) -> Option<u16> {
        let code = self.storage.codes.stored(self.codes.order, at);
        code.map(|code| code as u16)
    }

    /// Converts the bits of a correct scale to the wrong encoding of this view, if it has one.
    pub fn as_stored(&self, scale: u32) -> u32 {
        self.storage.scales.apply(self.scales, scale)
    }

    /// Converts a correct code to the wrong encoding of this view, if it has one.
    pub fn code_as_stored(&self, code: u16) -> u16 {
        self.storage.codes.apply(self.codes, code.into()) as u16
    }

    /// Compares hypothetical quantizers with all stored bytes. The codes of quantizers with the same cast, input and factors of
    /// elements are computed only once.
    pub fn tallies(&self, makers: &[Maker]) -> Vec<Tally> {
        let problem = self.storage.problem;
        let strips = (0..problem.strips().1).into_par_iter();
        let strip = |index: usize| {
            let tallies = self.strip(makers, index);
            problem.done.fetch_add(problem.strip(index).1, Ordering::Relaxed);
            tallies
        };
        let none = || vec![Tally::default(); makers.len()];
        // Merge in order, so that the lists of groups and elements stay sorted.
        let merge = |a: Vec<Tally>, b: Vec<Tally>| a.into_iter().zip(b).map(|(a, b)| a.merge(b)).collect();
        let tallies: Vec<Tally> = strips.map(strip).reduce(none, merge);
        // A group that spans several strips was counted by each of them: limit the count to the number of groups.
        let blocks = |tally: Tally| Tally {
            wrong_blocks: tally.wrong_blocks.min(problem.grid.groups()),
            ..tally
        };
        tallies.into_iter().map(blocks).collect()
    }

    fn strip<'m>(&self, makers: &'m [Maker], index: usize) -> Vec<Tally> {
        let problem = self.storage.problem;
        let (at, len) = problem.strip(index);
        let source = problem.source.read(at, len);
        let mut done: Vec<(Scaled, Strip)> = Vec::new();
        let tally = |maker: &'m Maker| {
            let (scaled, tally) = self.scales(maker, index);
            let same = done.iter().find(|(other, _)| other.same(&scaled));
            let strip = same.map(|(_, strip)| strip.clone());
            let strip = strip.unwrap_or_else(|| self.codes(&scaled, &source, at));
            let tally = scaled.with(&strip, tally);
            done.push((scaled, strip));
            tally
        };
        makers.iter().map(tally).collect()
    }

    /// Computes the factors that scale the elements of a strip of rows before the cast, and collects the stored scales that
    /// differ from those of `maker`.
    fn scales<'m>(&self, maker: &'m Maker, index: usize) -> (Scaled<'m>, Tally) {
        let problem = self.storage.problem;
        let grid = problem.grid;
        let across = grid.count.1;
        let first_group = problem.row_of_groups(index) * across;
        // Compare the scale of a group that spans several strips only in the first strip: otherwise it counts more than once.
        let first_strip = problem.strip(index).0 / grid.cols == grid.place(first_group)[0] * grid.tile.0;
        let mut tally = Tally::default();
        let mut scaled = Scaled {
            maker,
            wrong: vec![false; across],
            unjudged: vec![false; across],
            // All groups of a strip have the same global scale.
            single: maker.single(problem, first_group),
            factors: vec![f32::NAN; across],
        };
        for i in 0..across {
            let group = first_group + i;
            let Some(made) = maker.scale(problem, group) else {
                continue;
            };
            let stored = self.scale(group);
            let differs = stored.is_some_and(|stored| self.as_stored(made) != stored);
            let near = differs && stored.is_some_and(|stored| maker.nearly(problem, group, stored, APPROXIMATE));
            if differs && first_strip {
                tally.far |= !near;
                tally.groups.push(group);
                scaled.wrong[i] = true;
            }
            scaled.unjudged[i] = stored.is_some_and(|stored| problem.value(stored).is_nan());
            // Expect codes for the stored scale if the view requires it, or if an approximate reciprocal explains the difference
            // of the scale.
            let under = stored.filter(|_| self.under_stored || near).unwrap_or(made);
            if let Some(single) = &scaled.single {
                scaled.factors[i] = single.factor(under, problem.amax[group]);
            }
        }
        (scaled, tally)
    }

    /// Collects the stored codes of a strip of rows that differ from those of the quantizer.
    fn codes(&self, scaled: &Scaled, source: &[f32], at: usize) -> Strip {
        let (problem, maker) = (self.storage.problem, scaled.maker);
        let (grid, repr) = (problem.grid, maker.format.repr());
        let (cols, width) = (grid.cols, grid.tile.1);
        let mut x = match maker.input {
            None => source.to_vec(),
            Some(_) => {
                // A faulty input may read outside of the tensor: use the source values for such a row.
                let values = |r: usize| maker.values(problem, at + r * cols, cols);
                let row = |(r, row): (usize, &[f32])| values(r).unwrap_or_else(|| row.to_vec());
                source.chunks_exact(cols).enumerate().flat_map(row).collect()
            }
        };
        if let Some(single) = &scaled.single {
            for row in x.chunks_exact_mut(cols) {
                for (block, factor) in row.chunks_mut(width).zip(&scaled.factors) {
                    block.iter_mut().for_each(|x| *x = single.scaled(*x, *factor));
                }
            }
        }
        let bare = Format {
            scaling: None,
            global: None,
            ..maker.format
        };
        let encoded = bare.encode(&x, cols, GlobalScale::Own);
        let bytes = encoded.part("data");
        let mut strip = Strip::default();
        if self.codes == StorageForm::default() {
            let start = at * problem.format.element.stored_bits() / 8;
            if problem.stored.data.get(start..start + bytes.len()) == Some(bytes) {
                return strip;
            }
        }
        strip.groups = vec![false; grid.count.1];
        let tally = &mut strip.tally;
        let mut seen = vec![usize::MAX; grid.count.1];
        for (i, code) in codes(&maker.format, bytes).into_iter().enumerate() {
            let (row, c) = (i / cols, i % cols);
            let group = c / width;
            let Some(stored) = self.code(at + i) else {
                continue;
            };
            let made = self.code_as_stored(code);
            if stored == made || scaled.unjudged[group] {
                continue;
            }
            tally.wrong_codes += 1;
            if tally.hits.rows.is_empty() {
                tally.hits = Hits::new(grid.rows, cols);
            }
            tally.hits.add(at / cols + row, c);
            let about = |by: f32| self.code_as_stored(repr.encode(x[i] * (1.0 + by)));
            tally.far = tally.far || ![APPROXIMATE, -APPROXIMATE].into_iter().any(|by| about(by) == stored);
            if seen[group] != row {
                seen[group] = row;
                tally.elements.push(at + i);
            }
            strip.groups[group] = true;
        }
        strip
    }
}

/// Factors that multiply the values of a strip of rows before the cast, and two flags for each scale of the strip.
struct Scaled<'m> {
    maker: &'m Maker,
    /// For each group, true if the stored scale differs from the expected one.
    wrong: Vec<bool>,
    /// For each group, true if the stored scale is NaN: the codes then mean nothing.
    unjudged: Vec<bool>,
    single: Option<Single>,
    factors: Vec<f32>,
}

/// Counts of the differing codes of a strip, and a flag for each group: true if it has differing codes.
#[derive(Clone, Default)]
struct Strip {
    tally: Tally,
    groups: Vec<bool>,
}

impl Scaled<'_> {
    /// True if two quantizers have the same cast, input and factors of elements, so that their codes are equal.
    fn same(&self, other: &Self) -> bool {
        let bits = |scaled: &Self| -> Vec<u32> { scaled.factors.iter().map(|factor| factor.to_bits()).collect() };
        // Scale two test values: 1 shows if the operation multiplies or divides, and -0 shows the sign of a zero result.
        let operation = |scaled: &Self| {
            let scaled = |x: f32| scaled.single.as_ref().map(|single| single.scaled(x, 3.0).to_bits());
            [scaled(1.0), scaled(-0.0)]
        };
        let input = |scaled: &Self| scaled.maker.input.map(std::ptr::from_ref);
        self.maker.format.repr() == other.maker.format.repr()
            && input(self) == input(other)
            && operation(self) == operation(other)
            && bits(self) == bits(other)
    }

    fn with(&self, strip: &Strip, tally: Tally) -> Tally {
        let wrong = self.wrong.iter().enumerate();
        let wrong = wrong.filter(|(i, wrong)| **wrong || strip.groups.get(*i).is_some_and(|wrong| *wrong));
        let wrong_blocks = wrong.count();
        Tally {
            wrong_blocks,
            ..tally.merge(strip.tally.clone())
        }
    }
}
