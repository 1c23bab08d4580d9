//! Compares quantizers with every byte of the tensor, all strips in parallel.

use std::sync::atomic::Ordering;

use rayon::prelude::*;

use super::maker::Maker;
use super::place::Hits;
use super::search::{Storage, StorageForm};
use crate::packed::codes;
use ulplab_core::formats::{Format, GlobalScale, Single};

/// Bound on the relative error of a number before it is rounded to a scale or a code, in a kernel with approximate reciprocals.
/// Two reciprocals and three products lead to a code, one reciprocal and two products to a scale. An approximate reciprocal errs
/// by at most an ulp, the rule's rounded reciprocal by half an ulp. An ulp is at most 2^-23.
const APPROXIMATE: f32 = 4.0 / (1 << 23) as f32;

/// Differences between the stored bytes and the bytes that a quantizer makes.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    pub wrong_codes: usize,
    /// Number of blocks with a wrong scale or a wrong code.
    pub wrong_blocks: usize,
    /// True if approximate reciprocals cannot explain a difference: the rule does not give the stored scale or code for a number
    /// that is off by [`APPROXIMATE`].
    pub far: bool,
    /// Indices of the groups whose scales differ, in ascending order.
    pub groups: Vec<usize>,
    /// Index of the first wrong element in each row of each group, row by row.
    pub elements: Vec<usize>,
    pub hits: Hits,
}

/// The storage forms in which bytes are read.
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
    /// Stored scale of a group. A recode (a fixed change of the bits) is not undone.
    pub fn scale(&self, group: usize) -> Option<u32> {
        self.storage.scales.stored(self.scales.order, group)
    }

    /// Stored code of an element. A recode (a fixed change of the bits) is not undone.
    pub fn code(&self, at: usize) -> Option<u16> {
        let code = self.storage.codes.stored(self.codes.order, at);
        code.map(|code| code as u16)
    }

    /// Returns the bits that are stored for a scale in this view.
    pub fn as_stored(&self, scale: u32) -> u32 {
        self.storage.scales.apply(self.scales, scale)
    }

    /// Returns the bits that are stored for a code in this view.
    pub fn code_as_stored(&self, code: u16) -> u16 {
        self.storage.codes.apply(self.codes, code.into()) as u16
    }

    /// Compares quantizers with all bytes. If several quantizers have the same codes, these are computed once.
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
        // If a group spans several strips, each strip counts it: limit the count to the number of groups.
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

    /// Computes the factors that scale the values of a strip, and counts the scales of the strip that differ.
    fn scales<'m>(&self, maker: &'m Maker, index: usize) -> (Scaled<'m>, Tally) {
        let problem = self.storage.problem;
        let grid = problem.grid;
        let across = grid.count.1;
        let first_group = problem.row_of_groups(index) * across;
        // If a group spans several strips, its scale is compared only in the first strip.
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
            // Codes are made with the stored scale if the view says so, or if the scales differ only slightly.
            let under = stored.filter(|_| self.under_stored || near).unwrap_or(made);
            if let Some(single) = &scaled.single {
                scaled.factors[i] = single.factor(under, problem.amax[group]);
            }
        }
        (scaled, tally)
    }

    /// Finds the codes of a strip that differ.
    fn codes(&self, scaled: &Scaled, source: &[f32], at: usize) -> Strip {
        let (problem, maker) = (self.storage.problem, scaled.maker);
        let (grid, repr) = (problem.grid, maker.format.repr());
        let (cols, width) = (grid.cols, grid.tile.1);
        let mut x = match maker.input {
            None => source.to_vec(),
            Some(_) => {
                // If the changed values of a row are unknown, use the source values.
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

/// Factors that scale the values of a strip, and the state of each scale of the strip.
struct Scaled<'m> {
    maker: &'m Maker,
    /// For each group, true if its scale differs.
    wrong: Vec<bool>,
    /// For each group, true if its scale is NaN, so that its codes mean nothing.
    unjudged: Vec<bool>,
    single: Option<Single>,
    factors: Vec<f32>,
}

/// The codes of a strip that differ, and a flag for each group with such codes.
#[derive(Clone, Default)]
struct Strip {
    tally: Tally,
    groups: Vec<bool>,
}

impl Scaled<'_> {
    /// True if both quantizers scale the values in the same way, so that their codes are equal.
    fn same(&self, other: &Self) -> bool {
        let bits = |scaled: &Self| -> Vec<u32> { scaled.factors.iter().map(|factor| factor.to_bits()).collect() };
        // Scale two test values: 1 tells multiplication from division, and -0 tells the sign of zero.
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
