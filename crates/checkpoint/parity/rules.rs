//! Finds which rules of the tables made the bytes.

use super::maker::{Maker, name};
use super::problem::Sample;
use super::verify::{Tally, View};
use ulplab_core::formats::{Format, Half, Scale};

/// Elements that every rule is compared with before any rule is compared with all.
const SAMPLE: usize = 1 << 14;

/// A rule, compared with the stored bytes.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The format with the rule.
    pub format: Format,
    /// Blocks with a wrong scale or code.
    pub wrong_blocks: usize,
    /// True if every difference is one that approximate reciprocals explain.
    pub close: bool,
    /// The type to which the scales are rounded, if not f32; codes are made with the rounded scales.
    pub narrow: Option<Half>,
}

impl Candidate {
    /// True if the rule explains every byte.
    pub fn exact(&self) -> bool {
        self.wrong_blocks == 0
    }

    /// True if the library's kernel is approximate and the differences are within its tolerance.
    pub fn tolerated(&self) -> bool {
        approximate(&self.format) && self.close
    }

    /// The rule, and the cast if it is not the element's own.
    pub fn name(&self) -> String {
        format!("{}{}", name(&self.format), self.rounded())
    }

    /// The words after the name of its rule.
    pub fn rounded(&self) -> String {
        let words = |half: Half| format!(" with scales rounded to {}", half.name());
        self.narrow.map_or(String::new(), words)
    }

    /// A rule whose differences from all bytes were counted.
    pub(super) fn new(format: Format, tally: &Tally) -> Self {
        Self {
            format,
            wrong_blocks: tally.wrong_blocks,
            close: !tally.far,
            narrow: None,
        }
    }
}

/// True if the kernel of the format's rule takes approximate reciprocals.
pub(super) fn approximate(format: &Format) -> bool {
    matches!(format.scaling.map(|scaling| scaling.scale), Some(Scale::E4m3(rule)) if rule.approximate)
}

/// The numbers of scales and of codes of a sample that differ.
fn glance(view: &View, maker: &Maker, sample: &Sample) -> (usize, usize) {
    let (storage, problem) = (view.storage, view.storage.problem);
    let scales = storage.scales_by(maker, &sample.groups);
    let codes = storage.codes_of(&sample.cells, |cell| {
        let stored = view.scale(cell.group);
        if stored.is_some_and(|stored| problem.value(stored).is_nan()) {
            return None;
        }
        let scale = match maker.format.scaling {
            None => 0,
            Some(_) if view.under_stored => stored?,
            Some(_) => maker.scale(problem, cell.group)?,
        };
        maker.codes(problem, cell, scale)
    });
    let wrong_scales = storage.scales.wrong(&scales, view.scales);
    (wrong_scales, storage.codes.wrong(&codes, view.codes))
}

/// The rules of `formats` that explain a sample, with the element's own cast or, where only codes differ, any other, held
/// against all bytes. Approximate ones may differ by a little.
pub fn candidates(view: &View, formats: &[Format]) -> Vec<Candidate> {
    let problem = view.storage.problem;
    let (few, sample) = (problem.sample(SAMPLE / 32), problem.sample(SAMPLE));
    let mut makers = Vec::new();
    for format in formats {
        let maker = Maker::as_stored(problem, format);
        // Most rules are out after a few blocks.
        let (scales, _) = glance(view, &maker, &few);
        if scales * 10 > few.groups.len() || (scales > 0 && !approximate(format)) {
            continue;
        }
        let (scales, codes) = glance(view, &maker, &sample);
        let explained = scales + codes == 0;
        if explained || (approximate(format) && scales * 10 < sample.groups.len()) {
            makers.push(maker.clone());
        }
        if scales == 0 && !explained {
            let others = format.by_casts().into_iter().skip(1);
            let others = others.map(|format| Maker {
                format,
                ..maker.clone()
            });
            makers.extend(others.filter(|maker| glance(view, maker, &sample).1 == 0));
        }
    }
    let tallies = view.tallies(&makers);
    let candidate = |(maker, tally): (&Maker, &Tally)| Candidate::new(maker.format, tally);
    makers.iter().zip(&tallies).map(candidate).collect()
}
