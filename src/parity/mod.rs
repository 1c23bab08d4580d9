//! Which rule made the bytes of a quantized tensor; or, where none did, what went wrong.
//!
//! First the storage is told from the source alone: order of nibbles and codes, order of scales, meaning of the global
//! scale. Then the bytes are compared with those of every rule of the format's table. What no rule explains is
//! attributed: scales by computing what each fault would have made of every block, codes by what the cast saw.

mod command;
mod elements;
mod output;
mod rules;
mod scales;
mod storage;

use std::fmt;

pub use command::{ParityArgs, run_to};
use elements::Elements;
pub use rules::Candidate;
use rules::Canonical;

use crate::formats::{Encoded, Format};
use crate::layouts::Layout;
use crate::packed::{Grid, codes};

/// Why bytes differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Cause {
    /// The largest magnitude is one of other elements than the block's.
    Amax,
    /// The scale is rounded or bounded otherwise.
    ScaleRounding,
    /// A value just between two codes became the other one.
    TieRule,
    /// What is too large wraps around, becomes NaN, or stops elsewhere.
    Saturation,
    /// The first of two 4-bit codes is in the high nibble.
    NibbleOrder,
    /// Scales in the order of a blocked layout, or not in it.
    Swizzle,
    /// Rows and columns exchanged, or rows another number of elements apart.
    Layout,
    /// The f32 above the block scales means something else.
    GlobalScale,
    /// The quotient before the cast is computed or rounded otherwise.
    Division,
    /// Zeros have another sign.
    ZeroSign,
    /// None of these.
    Unknown,
}

impl Cause {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Amax => "amax",
            Self::ScaleRounding => "scale rounding",
            Self::TieRule => "tie rule",
            Self::Saturation => "saturation",
            Self::NibbleOrder => "nibble order",
            Self::Swizzle => "swizzle",
            Self::Layout => "layout",
            Self::GlobalScale => "global-scale convention",
            Self::Division => "division",
            Self::ZeroSign => "sign of zero",
            Self::Unknown => "unknown",
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Bytes of a quantized tensor as they lie in its buffers.
#[derive(Clone, Debug, Default)]
pub struct Stored<'a> {
    /// As many as the codes take.
    pub data: &'a [u8],
    /// At least as many as the scales take.
    pub scale: &'a [u8],
    /// One, or one for each row, or none.
    pub global: Vec<f32>,
    /// The layout the scales are said to be in; none is row-major.
    pub layout: Option<&'static Layout>,
}

/// Mismatches of one cause.
#[derive(Clone, Debug)]
pub struct Finding {
    pub cause: Cause,
    pub detail: String,
    pub count: usize,
    pub of: usize,
    /// What is counted.
    pub unit: &'static str,
    pub example: Option<Example>,
}

/// The first mismatch of a finding.
#[derive(Clone, Debug)]
pub struct Example {
    /// Row and column, of the element or of the block among the blocks.
    pub place: Vec<usize>,
    /// The element, or the first 16 of the block.
    pub source: Vec<f32>,
    pub stored: String,
    pub expected: String,
}

/// What was found out about one tensor.
#[derive(Clone, Debug)]
pub struct Diagnosis {
    /// The format with the rule that findings are relative to.
    pub reference: Candidate,
    /// Order of the codes and of the scales.
    pub data_order: String,
    pub scale_order: String,
    /// All rules that explain every byte, in that order of storage.
    pub exact: Vec<Candidate>,
    /// Rules of approximate kernels that explain every byte within what such a kernel may differ by.
    pub tolerated: Vec<Candidate>,
    /// Global scales that are not of the largest magnitude under them.
    pub foreign_globals: usize,
    /// What differs from the reference, most first.
    pub findings: Vec<Finding>,
    /// Whether the reference was named by the user.
    pub named: bool,
}

impl Diagnosis {
    /// Whether the storage is as declared, and the rule asked for, or any, explains the bytes.
    pub fn explained(&self) -> bool {
        let tolerated =
            self.named && self.reference.tolerated() && self.findings.iter().all(|finding| !finding.storage());
        self.findings.is_empty() || tolerated
    }

    /// The cause of most of the mismatches.
    pub fn cause(&self) -> Option<Cause> {
        self.findings.first().map(|finding| finding.cause)
    }
}

impl Finding {
    /// Whether it is about where bytes are, not about what they are.
    fn storage(&self) -> bool {
        matches!(self.cause, Cause::NibbleOrder | Cause::Swizzle | Cause::Layout)
    }

    fn share(&self) -> f64 {
        self.count as f64 / self.of.max(1) as f64
    }
}

/// Diagnoses `[rows, cols]` values beside what is stored of them. `named`: the format's own rule is the one to hold
/// against, and not just any.
///
/// # Panics
/// When the format does not take `cols`, or the buffers are too small.
pub fn diagnose(x: &[f32], cols: usize, stored: &Stored, format: &Format, named: bool) -> Diagnosis {
    // Rotated values are rounded like any others.
    let (x, format) = (
        format.rotated(x),
        Format {
            rotation: None,
            ..*format
        },
    );
    let grid = Grid::new(&format, x.len() / cols, cols);
    let data = storage::Data::new(&format, &grid, &x, stored.data);
    let data_order = data.order();
    let (canonical_codes, known_codes) = data.read(&data_order);
    let implied = storage::implied(&format, &grid, &x, &canonical_codes, &known_codes);
    let found = storage::scales(&format, &grid, stored, &implied);
    let size = format.scaling.map_or(0, |scaling| scaling.scale.bytes());
    let place = |group: usize| found.as_ref().and_then(|found| found.order.places[group]);
    let scale = |group: usize| match place(group) {
        Some(place) => &stored.scale[place * size..(place + 1) * size],
        None => &[0; 4][..size],
    };
    let mut canonical = Canonical {
        x: &x,
        grid,
        codes: canonical_codes,
        scales: (0..grid.len()).flat_map(scale).copied().collect(),
        known_scales: (0..grid.len()).map(|group| place(group).is_some()).collect(),
        known_codes,
        globals: stored.global.clone(),
        convention: found.as_ref().and_then(|found| found.convention),
    };
    let mut candidates = canonical.candidates(&format);
    // Few or extreme values imply their scales badly; bytes that a rule makes are right all the same.
    if let Some(convention) = canonical.convention.filter(|convention| convention.factor != 1.0) {
        canonical.convention = Some(storage::Convention {
            factor: 1.0,
            ..convention
        });
        let others = canonical.candidates(&format);
        match others.iter().any(Candidate::exact) {
            true => candidates = others,
            false => canonical.convention = Some(convention),
        }
    }
    // A rule that makes all but the global scale is meant; one that makes some more blocks than the next is not.
    let badness = |candidate: &&Candidate| {
        let other = candidate.wrong_globals > 0 && candidate.wrong_blocks > 0;
        (
            candidate.wrong_blocks + if other { grid.len() / 50 } else { 0 },
            candidate.wrong_globals,
        )
    };
    let reference = match named {
        true => &candidates[0],
        false => candidates.iter().min_by_key(badness).unwrap_or(&candidates[0]),
    }
    .clone();
    let mut findings = misplaced(&canonical, &data, &data_order, stored, &format, found.as_ref());
    findings.extend(attribute(&canonical, &reference));
    // What no cause explains comes last, unless it is most: then the others explain some by chance.
    let count = |unit: &str, unknown: bool| -> usize {
        let told = |finding: &&Finding| finding.unit == unit && (finding.cause == Cause::Unknown) == unknown;
        findings.iter().filter(told).map(|finding| finding.count).sum()
    };
    let by_chance = ["scales", "codes"].map(|unit| (count(unit, true) > count(unit, false)).then_some(unit));
    let last = |finding: &Finding| finding.cause == Cause::Unknown && !by_chance.contains(&Some(finding.unit));
    findings.sort_by(|a, b| last(a).cmp(&last(b)).then(b.share().total_cmp(&a.share())));
    Diagnosis {
        data_order: data_order.name,
        scale_order: found.map_or_else(String::new, |found| found.order.name),
        exact: candidates
            .iter()
            .filter(|candidate| candidate.exact())
            .cloned()
            .collect(),
        tolerated: candidates
            .iter()
            .filter(|candidate| !candidate.exact() && candidate.tolerated())
            .cloned()
            .collect(),
        foreign_globals: canonical.foreign_globals(&format),
        reference,
        findings,
        named,
    }
}

/// What is stored elsewhere than declared.
fn misplaced(
    canonical: &Canonical,
    data: &storage::Data,
    order: &storage::Order,
    stored: &Stored,
    format: &Format,
    scales: Option<&storage::Scales>,
) -> Vec<Finding> {
    let finding = |order: &storage::Order, what: &str, count, of, unit| Finding {
        cause: order.cause,
        detail: format!("{what} are {}", order.name),
        count,
        of,
        unit,
        example: None,
    };
    let mut findings = Vec::new();
    let elements = canonical.codes.len();
    let moved =
        (0..elements).filter(|at| order.places[*at] != Some(*at) && data.raw(*at) != Some(canonical.codes[*at]));
    findings.push(finding(order, "codes", moved.count(), elements, "codes"));
    if let (Some(found), Some(scaling)) = (scales, format.scaling) {
        let declared = storage::declared(&canonical.grid, stored.layout, scaling.scale.bytes());
        let size = scaling.scale.bytes();
        let at = |place: Option<usize>| place.and_then(|place| stored.scale.get(place * size..(place + 1) * size));
        let moved = (0..canonical.grid.len()).filter(|group| at(declared[*group]) != at(found.order.places[*group]));
        let mut moved = finding(&found.order, "scales", moved.count(), canonical.grid.len(), "scales");
        if stored.layout.is_some_and(|layout| layout.name.starts_with("blocked")) && found.order.name == "row-major" {
            moved.cause = Cause::Swizzle;
        }
        findings.push(moved);
    }
    findings.retain(|finding| finding.count > 0);
    findings
}

/// What differs from the reference, once the bytes are in order.
fn attribute(canonical: &Canonical, reference: &Candidate) -> Vec<Finding> {
    let format = &reference.format;
    let (want, wrong_globals) = canonical.encode(format);
    let mut findings = Vec::new();
    if wrong_globals > 0 {
        let found = canonical
            .convention
            .map(|convention| (convention.stored, convention.factor));
        let detail = match found {
            Some((stored, 1.0)) => format!("stored is {}", meaning(stored)),
            Some((_, factor)) if factor.is_nan() => {
                format!("stored is {:e}, expected a positive number", canonical.globals[0])
            }
            Some((_, factor)) => format!("values come out {factor:.4} times too large by any convention"),
            None => String::new(),
        };
        findings.push(Finding {
            cause: Cause::GlobalScale,
            detail,
            count: wrong_globals,
            of: wrong_globals,
            unit: "global scales",
            example: None,
        });
    }
    // The codes are judged under the scales that are stored; where one is not known, under the wanted one.
    let mut under = want.clone();
    let grid = canonical.grid;
    for part in under.parts.iter_mut().filter(|part| part.name == "scale") {
        let size = part.bytes.len() / grid.len().max(1);
        for group in (0..grid.len()).filter(|group| canonical.known_scales[*group]) {
            part.bytes[group * size..(group + 1) * size]
                .copy_from_slice(&canonical.scales[group * size..(group + 1) * size]);
        }
    }
    let elements = Elements::new(canonical, format, format.quotients(canonical.x, &under));
    let want_codes = codes(format, want.part("data"));
    let as_wanted = |group: usize| {
        grid.elements(group)
            .all(|at| !canonical.known_codes[at] || canonical.codes[at] == want_codes[at])
    };
    findings.extend(scales::classify(canonical, format, &want, |group| {
        (elements.follow_scale(group), as_wanted(group))
    }));
    findings.extend(elements.classify(as_wanted));
    findings
}

fn meaning(stored: crate::formats::Global) -> &'static str {
    use crate::formats::Global;
    match stored {
        Global::Absent => "nothing",
        Global::Amax => "the largest magnitude",
        Global::Decode => "what codes are multiplied by, amax/2688",
        Global::Encode => "what values are multiplied by, 2688/amax",
    }
}

/// The bytes of a tensor that was encoded, for tests and for tensors in memory.
impl<'a> From<&'a Encoded> for Stored<'a> {
    fn from(encoded: &'a Encoded) -> Self {
        let globals = encoded.part("global").as_chunks().0.iter();
        Self {
            data: encoded.part("data"),
            scale: encoded.part("scale"),
            global: globals.map(|bytes| f32::from_le_bytes(*bytes)).collect(),
            layout: None,
        }
    }
}
