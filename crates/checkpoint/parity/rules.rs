//! Finds the rules that reproduce the stored bytes, among all known rules of a format. A rule defines how scales are computed and
//! values are rounded.

use super::maker::{Maker, name};
use super::problem::Sample;
use super::verify::{Tally, View};
use ulplab_core::formats::{Format, Half, Scale};

/// Number of elements in the sample. Only rules that reproduce the sample are compared with all elements.
const SAMPLE: usize = 1 << 14;

/// A rule, and the result of its comparison with the stored bytes.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The format, including the rule that computes the scales.
    pub format: Format,
    /// Number of blocks with a wrong scale or a wrong code.
    pub wrong_blocks: usize,
    /// True if the error of approximate reciprocals in a kernel explains every difference.
    pub close: bool,
    /// Type to which the f32 scales of the rule were rounded before codes were computed with them; `None` for no rounding.
    pub narrow: Option<Half>,
}

impl Candidate {
    /// True if the rule reproduces every byte.
    pub fn exact(&self) -> bool {
        self.wrong_blocks == 0
    }

    /// True if the kernel of this rule uses approximate reciprocals, and the error of these explains all differences.
    pub fn tolerated(&self) -> bool {
        approximate(&self.format) && self.close
    }

    /// Returns the name of the rule, with the cast if it is not the default cast of the element type, and with the rounding of
    /// scales.
    pub fn name(&self) -> String {
        format!("{}{}", name(&self.format), self.rounded())
    }

    /// Returns e.g. " with scales rounded to bf16", to be added to the name of the rule; empty without rounding.
    pub fn rounded(&self) -> String {
        let words = |half: Half| format!(" with scales rounded to {}", half.name());
        self.narrow.map_or(String::new(), words)
    }

    /// Creates the candidate for the rule of `format`. `tally` counts the differences between all stored bytes and the bytes of
    /// this rule.
    pub(super) fn new(format: Format, tally: &Tally) -> Self {
        Self {
            format,
            wrong_blocks: tally.wrong_blocks,
            close: !tally.far,
            narrow: None,
        }
    }
}

/// True if the kernel of the format's rule uses approximate reciprocals.
pub(super) fn approximate(format: &Format) -> bool {
    matches!(format.scaling.map(|scaling| scaling.scale), Some(Scale::E4m3(rule)) if rule.approximate)
}

/// Counts the scales and the codes of a sample that differ from those of the quantizer `maker`.
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

/// Returns the rules of `formats` that reproduce a sample, with the result of comparing them with all bytes. If a rule reproduces
/// the scales of the sample but not the codes, also tests this rule with other casts of the element type. Rules with approximate
/// reciprocals may differ slightly from the sample.
pub fn candidates(view: &View, formats: &[Format]) -> Vec<Candidate> {
    let problem = view.storage.problem;
    let (few, sample) = (problem.sample(SAMPLE / 32), problem.sample(SAMPLE));
    let mut makers = Vec::new();
    for format in formats {
        let maker = Maker::as_stored(problem, format);
        // Compare a few blocks first: most rules already fail on them, and the large sample is slow.
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
