//! Finds the rule that made the bytes of a quantized tensor, or, if no rule did, what went wrong.
//!
//! First a sample shows which rules may have made the bytes, and these are compared with all bytes. If none matches, every
//! combination of rule, order of codes and scales, encoding, global scale and input is compared with a sample; the simplest
//! that explains it becomes the reference. The remaining differences are examined for their place, and every cause that can
//! be computed is tested on what differs and on what does not. A cause is named only if it predicts the stored bytes;
//! causes with the same predictions are named together, and what no cause predicts is called unknown.

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
use search::{MakerFit, Storage, StorageForm};
use verify::View;

use crate::packed::reads_as;
use ulplab_core::formats::{Encoded, Format, Global, Half, Scale};
use ulplab_core::layouts::Layout;

/// The bytes of a quantized tensor, in the order of its buffers.
#[derive(Clone, Debug, Default)]
pub struct StoredBytes<'a> {
    /// The codes; exactly as many bytes as they take.
    pub data: &'a [u8],
    /// The scales; at least as many bytes as they take.
    pub scale: &'a [u8],
    /// The global scales: one, one per row, or none.
    pub global: Vec<f32>,
    /// The declared layout of the scales; `None` is row-major.
    pub layout: Option<&'static Layout>,
}

/// Mismatches of one cause.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The most likely cause.
    pub cause: Cause,
    /// The cause in words, with the values that differ.
    pub detail: String,
    /// Other causes that explain the same mismatches as well.
    pub others: Vec<String>,
    /// Rows and columns, as words that follow "in"; `None` if the mismatches are everywhere.
    pub place: Option<String>,
    /// The number of items at that place.
    pub region: usize,
    /// Number of mismatches that the cause explains.
    pub count: usize,
    /// Number of items compared, in `unit`.
    pub of: usize,
    /// The name of the items that are counted.
    pub unit: &'static str,
    /// The first mismatch; `None` if a single element does not show the cause.
    pub example: Option<Example>,
}

/// The first mismatch of a finding.
#[derive(Clone, Debug)]
pub struct Example {
    /// Row and column, of the element or of the block among the blocks.
    pub place: Vec<usize>,
    /// The element, or the first 16 of the block.
    pub source: Vec<f32>,
    /// The stored bits, in words or hexadecimal.
    pub stored: String,
    /// The bits that the reference rule gives, in the same form.
    pub expected: String,
}

/// The result for one tensor.
#[derive(Clone, Debug)]
pub struct Diagnosis {
    /// The format with the rule that findings are relative to.
    pub reference: Candidate,
    /// Order of the codes.
    pub data_order: String,
    /// Order of the scales: `row-major` or a layout.
    pub scale_order: String,
    /// All rules that explain every byte in this order of storage.
    pub exact: Vec<Candidate>,
    /// Rules that the user gave, whose kernels take approximate reciprocals, which explain every difference.
    pub tolerated: Vec<Candidate>,
    /// Number of global scales that do not match the largest magnitude of their elements.
    pub foreign_globals: usize,
    /// The differences from the reference: first those of storage, then by number.
    pub findings: Vec<Finding>,
    /// True if the reference was named by the user.
    pub named: bool,
}

impl Diagnosis {
    /// Adds to findings about global scales how these are read.
    pub fn say_why(&mut self, said: Option<&str>) {
        let of_global = |finding: &&mut Finding| finding.cause == Cause::GlobalScale;
        for (finding, said) in self.findings.iter_mut().filter(of_global).zip(said) {
            let says = format!("{said} says that it is");
            finding.detail = finding.detail.replace("it is read as", &says);
        }
    }

    /// The result as one sentence.
    pub fn conclusion(&self) -> String {
        output::conclusion(self)
    }

    /// True if the storage is as declared, and the requested rule, or any rule, explains the bytes.
    pub fn explained(&self) -> bool {
        self.findings.is_empty() || !self.tolerated.is_empty()
    }

    /// The cause of most of the mismatches.
    pub fn cause(&self) -> Option<Cause> {
        self.findings.first().map(|finding| finding.cause)
    }
}

/// The items that a finding counts.
struct Scope {
    /// As in [`Finding`].
    place: Option<String>,
    /// The number of items at that place.
    region: usize,
    /// The number of all items.
    of: usize,
    unit: &'static str,
}

impl Scope {
    /// All items of a unit.
    fn everywhere(of: usize, unit: &'static str) -> Self {
        let (place, region) = (None, of);
        Self {
            place,
            region,
            of,
            unit,
        }
    }

    /// A finding that explains so many of the items.
    fn finding(&self, cause: Cause, detail: impl Into<String>, count: usize) -> Finding {
        Finding {
            cause,
            detail: detail.into(),
            others: Vec::new(),
            place: self.place.clone(),
            region: self.region,
            count,
            of: self.of,
            unit: self.unit,
            example: None,
        }
    }
}

impl Finding {
    fn share(&self) -> f64 {
        self.count as f64 / self.of.max(1) as f64
    }
}

/// The rules that may explain the bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rules {
    /// Any rule of the format's table.
    #[default]
    Any,
    /// Rules whose scales are read like the format's own: the meaning of the stored scales is known.
    ReadAlike,
    /// Only the format's own rule.
    Own,
}

/// Options of a diagnosis, in addition to the format.
#[derive(Clone, Copy, Debug, Default)]
pub struct DiagnosisOptions {
    /// The rules that are tried.
    pub rules: Rules,
    /// The type of the scales in the file, if it is narrower than the rules' f32.
    pub narrow: Option<Half>,
}

/// Diagnoses stored bytes, given the `[rows, cols]` source values. If `named`, the bytes are compared with the format's own
/// rule, otherwise with all rules.
///
/// # Panics
/// If the format does not support `cols`, or the buffers are too small.
pub fn diagnose(x: &[f32], cols: usize, stored: &StoredBytes, format: &Format, named: bool) -> Diagnosis {
    let rules = if named { Rules::Own } else { Rules::Any };
    let asked = DiagnosisOptions { rules, narrow: None };
    diagnose_from(Source::slice(x), cols, stored, format, asked, &AtomicUsize::new(0))
}

/// Like [`diagnose`], with values that are read on demand; `done` counts the elements that were compared with a rule.
pub fn diagnose_from(
    source: Source,
    cols: usize,
    stored: &StoredBytes,
    format: &Format,
    asked: DiagnosisOptions,
    done: &AtomicUsize,
) -> Diagnosis {
    let problem = Problem::new(source, cols, stored, format);
    let storage = Storage::new(&problem);
    let formats = problem.format.by_rules();
    let named = asked.rules == Rules::Own;
    let view = |scales: StorageForm, under_stored| View {
        storage: &storage,
        scales,
        codes: StorageForm::default(),
        under_stored,
    };
    // Scales as the rules compute them, and rounded to the type in the file.
    let narrow = asked.narrow.and_then(|half| Some((half, storage.narrowed(half)?)));
    let held = |formats: &[Format]| {
        let mut all = rules::candidates(&problem, &view(StorageForm::default(), false), formats, done);
        if let Some((half, scales)) = narrow.filter(|_| !all.iter().any(Candidate::exact)) {
            let rounded = rules::candidates(&problem, &view(scales, true), formats, done);
            let narrow = Some(half);
            all.extend(rounded.into_iter().map(|candidate| Candidate { narrow, ..candidate }));
        }
        all
    };
    if named {
        let exact = |own: &Candidate| own.format == formats[0] && own.exact();
        if let Some(own) = held(&formats[..1]).into_iter().find(exact) {
            return Diagnosis::exact(&problem, &storage, own, Vec::new(), Vec::new(), named);
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
    if !named && let Some(first) = own_exact.first().cloned() {
        return Diagnosis::exact(&problem, &storage, first, own_exact, tolerated, named);
    }
    // Rules that explain every byte, but decode to other values.
    if asked.rules == Rules::ReadAlike && !exact.is_empty() {
        return Diagnosis::read_otherwise(&problem, &storage, exact, tolerated);
    }
    // A rule that explains the sample is nearly right, and its differences are too rare to show in it.
    let seldom = close.iter().filter(|candidate| allowed(&candidate.format));
    let seldom = seldom.min_by_key(|candidate| candidate.wrong_blocks);
    let fit = match seldom.filter(|candidate| candidate.wrong_blocks * 50 < problem.grid.len()) {
        Some(candidate) => {
            let mut fit = MakerFit::declared(&problem, &candidate.format);
            if let Some((_, scales)) = narrow.filter(|_| candidate.narrow.is_some()) {
                fit.scales = scales;
            }
            fit
        }
        None => {
            let some: Vec<Format> = formats.iter().copied().filter(allowed).collect();
            search::search(&problem, &storage, &some)
        }
    };
    let explained = (exact, tolerated);
    explain(&problem, &storage, &formats, &fit, explained, (named, narrow), done)
}

/// The differences from the best explanation.
fn explain(
    problem: &Problem,
    storage: &Storage,
    formats: &[Format],
    fit: &MakerFit,
    (mut exact, tolerated): (Vec<Candidate>, Vec<Candidate>),
    (named, narrow): (bool, Option<(Half, StorageForm)>),
    done: &AtomicUsize,
) -> Diagnosis {
    let mut view = View {
        storage,
        scales: fit.scales,
        codes: fit.codes,
        under_stored: false,
    };
    let mut tally = view.tally(problem, &fit.maker, done);
    if tally.wrong_scales > 0 || fit.scales.recode.is_some() {
        let stored = view.under_stored(true);
        let other = stored.tally(problem, &fit.maker, done);
        if other.wrong_codes < tally.wrong_codes {
            (view, tally) = (stored, other);
        }
    }
    let narrow = narrow.filter(|(_, scales)| *scales == fit.scales && view.under_stored);
    let mut findings = storage::findings(problem, &view, fit);
    // Scales that the file stores in a narrower type are rounded to that type first.
    if let Some(recode) = narrow.and_then(|(_, scales)| scales.recode) {
        let rounded = storage.scale_recodes[recode].finding();
        findings.retain(|finding| !finding.detail.starts_with(&rounded));
    }
    if !findings.is_empty() && exact.is_empty() && fit.maker.input.is_none() {
        exact = rules::candidates(problem, &view.under_stored(false), formats, done);
        exact.retain(Candidate::exact);
    }
    let mut rest = scales::classify(problem, &fit.maker, &view, &tally, view.under_stored);
    rest.extend(codes::classify(problem, &fit.maker, &view, &tally));
    rest.sort_by(|a, b| {
        let unknown = |finding: &Finding| finding.cause == Cause::Unknown;
        unknown(a).cmp(&unknown(b)).then(b.share().total_cmp(&a.share()))
    });
    findings.extend(rest);
    let as_stored = fit.level == Level::AsStored;
    let reference = Candidate {
        wrong_globals: if as_stored { 0 } else { fit.maker.globals.len() },
        narrow: narrow.map(|(half, _)| half),
        ..Candidate::new(fit.maker.format, &tally)
    };
    Diagnosis {
        data_order: storage.code_orders.0[fit.codes.order].name.clone(),
        scale_order: storage.scale_orders.0[fit.scales.order].name.clone(),
        exact,
        tolerated,
        foreign_globals: if as_stored {
            foreign(problem, &reference.format)
        } else {
            0
        },
        reference,
        findings,
        named,
    }
}

/// The global scales that do not match the largest magnitude of their elements: calibrated, or wrong.
fn foreign(problem: &Problem, format: &Format) -> usize {
    let globals = problem.stored.global.iter().enumerate();
    let own = |index: usize| format.global_of(problem.amax_under(index));
    // A quotient or its reciprocal, each rounded; a stored largest magnitude is exact.
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
    /// Every byte is as the rules in `exact` make it, but these read scales differently from the declared rule.
    fn read_otherwise(problem: &Problem, storage: &Storage, exact: Vec<Candidate>, tolerated: Vec<Candidate>) -> Self {
        let own = problem.format;
        let finding = storage::read_otherwise(problem, &exact[0].format, &own);
        let mut diagnosis = Self::exact(problem, storage, exact[0].clone(), exact, tolerated, false);
        diagnosis.foreign_globals = 0;
        diagnosis.reference.format = own;
        diagnosis.reference.wrong_globals = problem.stored.global.len();
        diagnosis.findings.push(finding);
        diagnosis
    }

    fn exact(
        problem: &Problem,
        storage: &Storage,
        reference: Candidate,
        exact: Vec<Candidate>,
        tolerated: Vec<Candidate>,
        named: bool,
    ) -> Self {
        Self {
            data_order: storage.code_orders.0[0].name.clone(),
            scale_order: storage.scale_orders.0[0].name.clone(),
            exact: match exact.is_empty() {
                true => vec![reference.clone()],
                false => exact,
            },
            tolerated,
            foreign_globals: foreign(problem, &reference.format),
            reference,
            findings: Vec::new(),
            named,
        }
    }
}

/// The bytes of an encoded tensor, for tests and for tensors in memory.
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

/// A maker with the rule of a format and the stored global scales.
fn as_stored(problem: &Problem, format: &Format) -> Maker {
    Maker {
        format: *format,
        globals: problem.stored.global.clone(),
        input: None,
    }
}
