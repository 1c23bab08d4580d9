//! Finds the rule (how scales are computed and values are rounded) that made the bytes of a quantized tensor. If no rule made
//! them, finds out what went wrong.
//!
//! First, the rules that reproduce the bytes of a sample are compared with all bytes. If no rule matches, every combination of
//! rule, order of codes and scales, encoding, global scale and input fault (e.g. negated values) is compared with a sample. The
//! simplest combination that reproduces the sample becomes the reference. Then the rows and columns with remaining differences
//! are described, and every cause that can be simulated is tested on differing and on matching bytes. A cause is reported only if
//! it predicts the stored bytes. Causes with the same predictions are reported together. Differences that no cause predicts are
//! called unknown.

pub mod bytes;
mod cause;
mod choose;
mod codes;
pub mod copies;
pub mod cost;
mod levels;
pub mod maker;
mod order;
pub mod output;
mod place;
mod problem;
mod recode;
mod rounded;
mod rules;
mod scales;
mod search;
mod storage;
mod verify;

use std::sync::atomic::AtomicUsize;

pub use cause::Cause;
use levels::Level;
use maker::Maker;
use problem::Problem;
pub use problem::Source;
pub use rules::Candidate;
use search::{Storage, StorageForm};
use verify::View;

use crate::packed::reads_as;
use ulplab_core::formats::{Encoded, Format, Global, Half, Scale};
use ulplab_core::layouts::Layout;

/// The bytes of a quantized tensor, as its buffers store them.
#[derive(Clone, Debug, Default)]
pub struct StoredBytes<'a> {
    /// Bytes of the codes; the length must fit exactly.
    pub data: &'a [u8],
    /// Bytes of the scales; the buffer may be longer than needed.
    pub scale: &'a [u8],
    /// The global scales: one, one per row, or none.
    pub global: Vec<f32>,
    /// Declared layout of the scales; `None` means row-major.
    pub layout: Option<&'static Layout>,
}

/// Mismatches between stored and expected bytes that have the same cause.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The most likely cause.
    pub cause: Cause,
    /// Description of the cause, with the values that differ.
    pub detail: String,
    /// Other causes that explain the same mismatches equally well.
    pub others: Vec<String>,
    /// Kind of the compared items (e.g. codes), their number, and the rows and columns of the mismatches.
    pub scope: Scope,
    /// Number of mismatches that the cause explains.
    pub count: usize,
    /// The first mismatch; `None` if the cause cannot be shown on a single element.
    pub example: Option<Example>,
}

/// The first mismatch of a finding.
#[derive(Clone, Debug)]
pub struct Example {
    /// Row and column of the element; for a scale, row and column of the block in the grid of blocks.
    pub place: Vec<usize>,
    /// Source value of the element, or the first 16 values of the block.
    pub source: Vec<f32>,
    /// The stored bits, as a value or in hexadecimal.
    pub stored: String,
    /// The bits that the reference rule gives, in the same notation.
    pub expected: String,
}

/// Result of the diagnosis of one tensor.
#[derive(Clone, Debug)]
pub struct Diagnosis {
    /// The format and rule whose bytes the stored bytes are compared with.
    pub reference: Candidate,
    /// Name of the order of the codes, e.g. `row-major`.
    pub data_order: String,
    /// Name of the order of the scales: `row-major`, a layout, or a faulty order.
    pub scale_order: String,
    /// All rules that reproduce every byte, given `data_order` and `scale_order`.
    pub exact: Vec<Candidate>,
    /// Rules whose bytes differ so little that the approximate reciprocals in their GPU kernels explain the differences.
    pub tolerated: Vec<Candidate>,
    /// Number of stored global scales that were not computed from the largest magnitude of their elements.
    pub foreign_globals: usize,
    /// Findings about differences from the reference: first wrong orders and encodings, then all others, by descending fraction
    /// of differing items.
    pub findings: Vec<Finding>,
}

impl Diagnosis {
    /// Replaces the words "it is read as" by "`said` says that it is" in findings about global scales. `said` names the tensor
    /// name or metadata that defines how to decode the global scale.
    pub fn say_why(&mut self, said: Option<&str>) {
        let of_global = |finding: &&mut Finding| finding.cause == Cause::GlobalScale;
        for (finding, said) in self.findings.iter_mut().filter(of_global).zip(said) {
            let says = format!("{said} says that it is");
            finding.detail = finding.detail.replace("it is read as", &says);
        }
    }

    /// True if there are no findings, or if a rule with approximate reciprocals explains all differences.
    pub fn explained(&self) -> bool {
        self.findings.is_empty() || !self.tolerated.is_empty()
    }

    /// Cause of the first finding; `None` if there are no findings.
    pub fn cause(&self) -> Option<Cause> {
        self.findings.first().map(|finding| finding.cause)
    }
}

/// The items that a finding is about, and the rows and columns where they differ.
#[derive(Clone, Debug)]
pub struct Scope {
    /// Rows and columns of the mismatches as text that follows the word "in", e.g. "rows 0 to 7"; `None` if the mismatches are
    /// everywhere.
    pub place: Option<String>,
    /// Number of items in the rows and columns of `place`.
    pub region: usize,
    /// Number of items compared, in `unit`.
    pub of: usize,
    /// Name of the items in the plural, e.g. "codes".
    pub unit: &'static str,
}

impl Scope {
    /// Creates the scope of a finding about a whole tensor of `of` compared items, without a range of rows or columns.
    fn everywhere(of: usize, unit: &'static str) -> Self {
        Self {
            place: None,
            region: of,
            of,
            unit,
        }
    }

    /// Creates a finding with a cause that explains `count` of the items.
    fn finding(&self, cause: Cause, detail: impl Into<String>, count: usize) -> Finding {
        Finding {
            cause,
            detail: detail.into(),
            others: Vec::new(),
            scope: self.clone(),
            count,
            example: None,
        }
    }
}

/// Selects the rules that a diagnosis accepts if they reproduce the bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rules {
    /// Any rule in the format's table of rules.
    #[default]
    Any,
    /// Any rule that decodes stored scales like the format does. For files whose names or metadata fix how scales are decoded.
    ReadAlike,
    /// Only the format's own rule.
    Own,
}

/// Options of a diagnosis, in addition to the format.
#[derive(Clone, Copy, Debug, Default)]
pub struct DiagnosisOptions {
    /// The rules that are accepted.
    pub rules: Rules,
    /// Type of the scales in the file if it is bf16 or f16 although the rules compute f32 scales; else `None`.
    pub narrow: Option<Half>,
}

/// Diagnoses stored bytes, given the source values of shape `[rows, cols]`. With `named`, accepts only the rule of `format`,
/// otherwise every rule in the table of the format.
///
/// # Panics
/// Panics if the format does not support `cols`, or if the buffers are too small.
pub fn diagnose(x: &[f32], cols: usize, stored: &StoredBytes, format: &Format, named: bool) -> Diagnosis {
    let rules = if named { Rules::Own } else { Rules::Any };
    let asked = DiagnosisOptions { rules, narrow: None };
    diagnose_from(Source::slice(x), cols, stored, format, asked, &AtomicUsize::new(0))
}

/// Same as [`diagnose`], but reads the source values on demand, and takes options. `done` counts the elements compared so far,
/// for a progress bar.
pub fn diagnose_from(
    source: Source,
    cols: usize,
    stored: &StoredBytes,
    format: &Format,
    asked: DiagnosisOptions,
    done: &AtomicUsize,
) -> Diagnosis {
    let problem = Problem::new(source, cols, stored, format, done);
    let storage = Storage::new(&problem);
    let formats = problem.format.by_rules();
    let declared = View {
        storage: &storage,
        scales: StorageForm::default(),
        codes: StorageForm::default(),
        under_stored: false,
    };
    // Compare with the f32 scales of the rules first, and if no rule matches, with these scales rounded to the type in the file.
    let narrow = asked.narrow.and_then(|half| Some((half, storage.narrowed(half)?)));
    let held = |formats: &[Format]| {
        let mut all = rules::candidates(&declared, formats);
        if let Some((half, scales)) = narrow.filter(|_| !all.iter().any(Candidate::exact)) {
            let under_stored = true;
            let view = View {
                scales,
                under_stored,
                ..declared
            };
            let rounded = rules::candidates(&view, formats);
            let narrow = Some(half);
            all.extend(rounded.into_iter().map(|candidate| Candidate { narrow, ..candidate }));
        }
        all
    };
    let named = asked.rules == Rules::Own;
    if named {
        let exact = |own: &Candidate| own.format == formats[0] && own.exact();
        if let Some(own) = held(&formats[..1]).into_iter().find(exact) {
            return Diagnosis::exact(&storage, vec![own], Vec::new());
        }
    }
    let allowed = |format: &Format| match asked.rules {
        Rules::Any => true,
        Rules::ReadAlike => reads_as(format, &formats[0]),
        Rules::Own => *format == formats[0],
    };
    let (exact, close): (Vec<Candidate>, Vec<Candidate>) = held(&formats).into_iter().partition(Candidate::exact);
    let own_exact: Vec<Candidate> = exact.iter().filter(|exact| allowed(&exact.format)).cloned().collect();
    let tolerated = |candidate: &&Candidate| candidate.tolerated() && allowed(&candidate.format);
    let tolerated: Vec<Candidate> = close.iter().filter(tolerated).cloned().collect();
    if !named && !own_exact.is_empty() {
        return Diagnosis::exact(&storage, own_exact, tolerated);
    }
    // Every rule that reproduces the bytes decodes scales otherwise than the declared format: report a wrong scale convention.
    if asked.rules == Rules::ReadAlike && !exact.is_empty() {
        let own = problem.format;
        let finding = storage::read_otherwise(&problem, &exact[0].format, &own);
        let mut diagnosis = Diagnosis::exact(&storage, exact, tolerated);
        diagnosis.foreign_globals = 0;
        diagnosis.reference.format = own;
        diagnosis.findings.push(finding);
        return diagnosis;
    }
    // If fewer than 2 % of the blocks differ from a rule that reproduces the sample, take this rule as the reference: the
    // differences are too rare to be in the sample.
    let seldom = close.iter().filter(|candidate| allowed(&candidate.format));
    let seldom = seldom.min_by_key(|candidate| candidate.wrong_blocks);
    let (maker, scales, codes) = match seldom.filter(|candidate| candidate.wrong_blocks * 50 < problem.grid.groups()) {
        Some(candidate) => {
            let scales = narrow.filter(|_| candidate.narrow.is_some());
            let scales = scales.map_or(declared.scales, |(_, scales)| scales);
            (Maker::as_stored(&problem, &candidate.format), scales, declared.codes)
        }
        None => {
            let some: Vec<Format> = formats.iter().copied().filter(allowed).collect();
            let fit = search::search(&storage, &some);
            (fit.maker, fit.scales, fit.codes)
        }
    };
    let in_form = View {
        scales,
        codes,
        ..declared
    };
    explain(in_form, &maker, (exact, tolerated), narrow)
}

/// Finds the causes of all differences between the stored bytes and the bytes of `maker`, the quantizer that fits best. `in_form`
/// has the order and encoding in which codes and scales are stored.
fn explain(
    in_form: View,
    maker: &Maker,
    (mut exact, tolerated): (Vec<Candidate>, Vec<Candidate>),
    narrow: Option<(Half, StorageForm)>,
) -> Diagnosis {
    let (storage, problem) = (in_form.storage, in_form.storage.problem);
    let tallied = |view: &View| view.tallies(std::slice::from_ref(maker)).swap_remove(0);
    let mut view = in_form;
    let mut tally = tallied(&view);
    if !tally.groups.is_empty() || view.scales.recode.is_some() {
        let under_stored = true;
        let stored = View { under_stored, ..view };
        let other = tallied(&stored);
        if other.wrong_codes < tally.wrong_codes {
            (view, tally) = (stored, other);
        }
    }
    let narrow = narrow.filter(|(_, scales)| *scales == view.scales && view.under_stored);
    let mut findings = storage::findings(&view, maker);
    // Rounding to the narrower type of the file is not a fault: drop this finding.
    if let Some(recode) = narrow.and_then(|(_, scales)| storage.scales.recode(scales)) {
        let rounded = recode.finding();
        findings.retain(|finding| !finding.detail.starts_with(&rounded));
    }
    if !findings.is_empty() && exact.is_empty() && maker.input.is_none() {
        exact = rules::candidates(&in_form, &problem.format.by_rules());
        exact.retain(Candidate::exact);
    }
    let mut rest = scales::classify(maker, &view, &tally);
    rest.extend(codes::classify(maker, &view, &tally));
    rest.sort_by(|a, b| {
        let unknown = |finding: &Finding| finding.cause == Cause::Unknown;
        let share = |finding: &Finding| finding.count as f64 / finding.scope.of.max(1) as f64;
        unknown(a).cmp(&unknown(b)).then(share(b).total_cmp(&share(a)))
    });
    findings.extend(rest);
    let reference = Candidate {
        narrow: narrow.map(|(half, _)| half),
        ..Candidate::new(maker.format, &tally)
    };
    Diagnosis {
        data_order: storage.codes.orders[view.codes.order].name.clone(),
        scale_order: storage.scales.orders[view.scales.order].name.clone(),
        exact,
        tolerated,
        foreign_globals: match maker.level {
            Level::AsStored => foreign(problem, &reference.format),
            _ => 0,
        },
        reference,
        findings,
    }
}

/// Returns the number of stored global scales that were not computed from the largest magnitude of their elements: they were
/// calibrated, or are wrong.
fn foreign(problem: &Problem, format: &Format) -> usize {
    let globals = problem.stored.global.iter().enumerate();
    let own = |index: usize| format.global_of(problem.amax_under(index));
    // Accept 2 ulps: a global scale is a rounded quotient, or the rounded reciprocal of a quotient. A global scale that is an
    // amax must be exact.
    let ulps = match format.scaling.map(|scaling| scaling.scale) {
        Some(Scale::E4m3(rule)) if rule.stored == Global::Amax => 0,
        _ => 2,
    };
    let far = |own: f32, global: f32| own.to_bits().abs_diff(global.to_bits()) > ulps;
    globals
        .filter(|(index, global)| own(*index).is_some_and(|own| far(own, **global)))
        .count()
}

impl Diagnosis {
    /// Returns the diagnosis for bytes that all rules in `exact` reproduce. The first rule is the reference.
    fn exact(storage: &Storage, exact: Vec<Candidate>, tolerated: Vec<Candidate>) -> Self {
        Self {
            data_order: storage.codes.orders[0].name.clone(),
            scale_order: storage.scales.orders[0].name.clone(),
            tolerated,
            foreign_globals: foreign(storage.problem, &exact[0].format),
            reference: exact[0].clone(),
            exact,
            findings: Vec::new(),
        }
    }
}

/// Borrows the bytes of an encoded tensor, for tests and for tensors in memory.
impl<'a> From<&'a Encoded> for StoredBytes<'a> {
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
