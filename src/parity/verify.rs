//! Makers held against every byte, all strips of the tensor at once.

use std::sync::atomic::{AtomicUsize, Ordering};

use rayon::prelude::*;

use super::maker::Maker;
use super::place::Hits;
use super::problem::Problem;
use super::search::{Storage, Way};
use crate::formats::{Format, GlobalScale};
use crate::packed::codes;

/// What differs from what a maker makes.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    pub wrong_scales: usize,
    pub wrong_codes: usize,
    /// Blocks with a wrong scale or code.
    pub wrong_blocks: usize,
    /// No scale is more than one code off, no element more than one step.
    pub far: bool,
    /// Groups with another scale, in order.
    pub groups: Vec<usize>,
    /// The first wrong element of every group that has one, row by row.
    pub elements: Vec<usize>,
    pub hits: Hits,
}

/// How the bytes are read.
pub struct View<'a> {
    pub storage: &'a Storage,
    pub scales: Way,
    pub codes: Way,
    /// Codes are held against those of the stored scales, not of the maker's.
    pub under_stored: bool,
}

impl Tally {
    pub fn exact(&self) -> bool {
        self.wrong_scales + self.wrong_codes == 0
    }

    fn merge(mut self, other: Self) -> Self {
        self.wrong_scales += other.wrong_scales;
        self.wrong_codes += other.wrong_codes;
        self.wrong_blocks += other.wrong_blocks;
        self.far |= other.far;
        self.groups.extend(other.groups);
        self.elements.extend(other.elements);
        self.hits = match (self.hits.rows.is_empty(), other.hits.rows.is_empty()) {
            (true, _) => other.hits,
            (_, true) => self.hits,
            _ => self.hits.merge(&other.hits),
        };
        self
    }
}

impl View<'_> {
    fn is_plain(&self) -> bool {
        self.codes == Way::default()
    }

    /// The stored scale of a group.
    pub fn scale(&self, problem: &Problem, group: usize) -> Option<u32> {
        self.storage.scale(problem, self.scales.order, group)
    }

    /// The stored code of an element.
    pub fn code(&self, problem: &Problem, at: usize) -> Option<u16> {
        self.storage.code(problem, self.codes.order, at)
    }

    /// What a scale would be stored as.
    pub fn as_stored(&self, scale: u32) -> u32 {
        let recode = self.scales.recode.map(|recode| &self.storage.scale_recodes[recode]);
        recode.map_or(scale, |recode| (recode.apply)(scale))
    }

    /// Whether a stored scale is what a maker's becomes.
    pub fn is_scale(&self, made: u32, stored: u32) -> bool {
        match self.scales.recode.map(|recode| &self.storage.scale_recodes[recode]) {
            None => made == stored,
            Some(recode) => recode.explains(made, stored),
        }
    }

    /// What a code would be stored as.
    pub fn code_as_stored(&self, code: u16) -> u16 {
        let recode = self.codes.recode.map(|recode| &self.storage.code_recodes[recode]);
        recode.map_or(code, |recode| (recode.apply)(code.into()) as u16)
    }

    /// Holds a maker against all bytes.
    pub fn tally(&self, problem: &Problem, maker: &Maker, done: &AtomicUsize) -> Tally {
        let strips = (0..problem.strips().1).into_par_iter();
        let strip = |index: usize| {
            let tally = self.strip(problem, maker, index);
            done.fetch_add(problem.strip(index).1, Ordering::Relaxed);
            tally
        };
        // In order, so that lists of groups and elements are in order too.
        let tally = strips.map(strip).reduce(Tally::default, Tally::merge);
        // Of groups that span strips.
        Tally {
            wrong_blocks: tally.wrong_blocks.min(problem.grid.len()),
            ..tally
        }
    }

    fn strip(&self, problem: &Problem, maker: &Maker, index: usize) -> Tally {
        let grid = problem.grid;
        let (at, len) = problem.strip(index);
        let (cols, width, across) = (grid.cols, grid.tile.1, grid.count.1);
        let first_group = problem.row_of_groups(index) * across;
        // A group of several strips is judged with the first.
        let first_strip = at / cols == grid.place(first_group)[0] * grid.tile.0;
        let mut tally = Tally::default();
        let mut wrong = vec![false; across];
        let mut unjudged = vec![false; across];
        let mut factors: Vec<(Option<crate::formats::Single>, f32)> = Vec::with_capacity(across);
        for (i, wrong) in wrong.iter_mut().enumerate() {
            let group = first_group + i;
            let Some(made) = maker.scale(problem, group) else {
                factors.push((maker.single(problem, group), f32::NAN));
                continue;
            };
            let stored = self.scale(problem, group);
            let differs = stored.is_some_and(|stored| !self.is_scale(made, stored));
            if differs && first_strip {
                tally.wrong_scales += 1;
                tally.far |= stored.is_some_and(|stored| stored.abs_diff(made) > 1);
                tally.groups.push(group);
                *wrong = true;
            }
            unjudged[i] = stored.is_some_and(|stored| problem.value(stored).is_nan());
            let under = stored.filter(|_| self.under_stored).unwrap_or(made);
            let single = maker.single(problem, group);
            let factor = single
                .as_ref()
                .map_or(1.0, |single| single.factor(under, problem.amax[group]));
            factors.push((single, factor));
        }
        let mut x = match maker.input {
            None => problem.source.read(at, len),
            Some(_) => {
                let row = |r: usize| maker.row(problem, at + r * cols, cols);
                (0..len / cols).flat_map(row).collect()
            }
        };
        if problem.format.scaling.is_some() {
            for row in x.chunks_exact_mut(cols) {
                for (block, (single, factor)) in row.chunks_mut(width).zip(&factors) {
                    if let Some(single) = single {
                        block.iter_mut().for_each(|x| *x = single.scaled(*x, *factor));
                    }
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
        if self.is_plain() {
            let bits = problem.format.element.stored_bits();
            let start = at * bits / 8;
            if problem.stored.data.get(start..start + bytes.len()) == Some(bytes) {
                tally.wrong_blocks = wrong.iter().filter(|wrong| **wrong).count();
                return tally;
            }
        }
        let made = codes(&maker.format, bytes);
        let sign = 1 << (problem.format.element.bits - 1);
        let mut seen = vec![usize::MAX; across];
        for (i, code) in made.into_iter().enumerate() {
            let (row, c) = (i / cols, i % cols);
            let group = c / width;
            let Some(stored) = self.code(problem, at + i) else {
                continue;
            };
            let made = self.code_as_stored(code);
            if stored == made || unjudged[group] {
                continue;
            }
            tally.wrong_codes += 1;
            if tally.hits.rows.is_empty() {
                tally.hits = Hits::new(grid.rows, cols);
            }
            tally.hits.add(at / cols + row, c);
            // Codes next to each other, or zeros of both signs.
            let apart = (stored & !sign).abs_diff(made & !sign);
            tally.far |= apart > 1 || ((stored ^ made) & sign != 0 && (stored | made) & !sign > 1);
            if seen[group] != row {
                seen[group] = row;
                tally.elements.push(at + i);
            }
            wrong[group] = true;
        }
        tally.wrong_blocks = wrong.iter().filter(|wrong| **wrong).count();
        tally
    }
}
