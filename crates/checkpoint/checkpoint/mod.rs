//! Checks that a quantized checkpoint is complete and plausible: its files, names, types, shapes, scales and codes. If a source
//! is given, also measures the distance from the source.
//!
//! The convention of a checkpoint (AWQ, GPTQ, …) follows from its configuration and from its tensor names, which must agree. A
//! tensor or key that cannot be interpreted is listed, and never counts as correct.

mod checks;
mod compared;
pub mod config;
mod conventions;
pub mod counterpart;
mod markdown;
mod matrix;
mod measure;
pub mod parts;
mod shortfall;
mod stated;
mod subject;
pub mod words;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

pub use checks::{CHECKS, Check, Finding, Severity};
use checks::{files, fused, names, promises, source, values, whole};
use compared::Folding;
use config::Section;
pub use conventions::{CHECKPOINTS, Convention, Packing};
use counterpart::{Counterpart, Sources};
pub use markdown::markdown;
pub use measure::Measured;
pub use parts::kin;
use parts::{Matrices, Parts, gather, module};
use stated::Stated;

use crate::packed::in_batches;
use ulplab_core::error::Result;
use ulplab_core::pattern;
use ulplab_core::tensorfile::{Flaw, Tensor, TensorFile};

/// A checkpoint whose files are open.
#[derive(Debug)]
pub struct Checkpoint {
    file: TensorFile,
    flaws: Vec<Flaw>,
    sections: Vec<Section>,
    /// `model_type` as the configuration states it.
    model: Option<String>,
}

/// Selects the tensors to check, and the source to compare them with.
#[derive(Clone, Copy, Debug, Default)]
pub struct Selection<'a> {
    /// Patterns of names of tensors or matrices to check; empty selects all.
    pub only: &'a [String],
    /// Patterns of names of tensors or matrices to leave out.
    pub skip: &'a [String],
    /// The checkpoint before quantization.
    pub source: Option<&'a Checkpoint>,
}

/// Result of checking a checkpoint: facts about its contents, and findings.
#[derive(Debug, Default)]
pub struct Report {
    /// The naming convention of the tensors; `None` if no tensor is quantized.
    pub convention: Option<&'static Convention>,
    /// Each file that states a quantization method, and the method.
    pub stated: Vec<(&'static str, String)>,
    /// The quantized matrices whose values were read, in the order of their names.
    pub matrices: Vec<Judged>,
    /// All findings, in the order of the names of the matrices.
    pub findings: Vec<Finding>,
    /// Number of tensors that are not quantized.
    pub plain: usize,
    /// Tensors that could not be interpreted.
    pub unread: Vec<Unread>,
}

/// Results for a quantized matrix, or for a stack of matrices.
#[derive(Debug, Default)]
pub struct Judged {
    /// Name of the matrix.
    pub name: String,
    /// Format of the matrix as text.
    pub format: String,
    /// Shape of the matrix, output channels before input channels.
    pub shape: Vec<usize>,
    /// Statistics over all matrices of the stack; `None` if the values could not be read.
    pub measured: Option<Measured>,
    /// SQNR against the source, in dB; for a stack, the least SQNR of its matrices.
    pub sqnr: Option<f64>,
    /// Names of the source tensors that the matrix was compared with; a tensor with the name of the matrix itself is left out.
    pub through: Vec<String>,
    /// Sentence about the quantization rule that made the bytes from the source.
    pub rule: Option<String>,
}

/// A tensor that could not be interpreted.
#[derive(Debug)]
pub struct Unread {
    /// Name of the tensor.
    pub tensor: String,
    /// The reason that the tensor was not read.
    pub why: String,
}

impl Checkpoint {
    /// Opens a folder with `config.json` and shards, or a single file of tensors. A single file has no configuration.
    ///
    /// # Errors
    /// Returns an error if there are no tensors, or if the configuration cannot be read.
    pub fn open(path: &Path) -> Result<Self> {
        let (file, flaws) = TensorFile::survey(path)?;
        Self::new(path, file, flaws)
    }

    /// Opens the source of another checkpoint. All of its files must exist.
    ///
    /// # Errors
    /// Returns an error if there are no tensors, if a file is missing or broken, or if the configuration cannot be read.
    pub fn source(path: &Path) -> Result<Self> {
        Self::new(path, TensorFile::open(path)?, Vec::new())
    }

    fn new(path: &Path, file: TensorFile, flaws: Vec<Flaw>) -> Result<Self> {
        let (sections, model) = match path.is_dir() {
            true => config::read(path)?,
            false => (Vec::new(), None),
        };
        Ok(Self {
            file,
            flaws,
            sections,
            model,
        })
    }

    /// Runs all checks on the selected tensors. Calls `total` first, with the number of elements of all matrices, and `progress`
    /// after each matrix, with its number of elements and its name.
    ///
    /// # Errors
    /// Returns an error if a pattern matches no tensor.
    pub fn judge(
        &self,
        selection: &Selection,
        mut total: impl FnMut(usize),
        mut progress: impl FnMut(usize, &str),
    ) -> Result<Report> {
        let convention = convention(&self.file, &self.sections);
        let methods = self.sections.iter();
        let of_file = |flaw| Finding::of_flaw(&files::FILES, flaw, "");
        let mut report = Report {
            convention,
            stated: methods.map(|section| (section.file, section.method.clone())).collect(),
            findings: self.flaws.iter().map(of_file).collect(),
            ..Report::default()
        };
        report.findings.extend(files::conventions(&self.sections, convention));
        let stated = Stated::new(&self.sections, convention, &mut report.findings);
        let matrices = gather(&self.file, stated.convention);
        let selected = selection.names(&matrices)?;
        let mut subjects = Vec::new();
        for name in &selected {
            subjects.extend(stated.subject(name, &matrices[*name], &mut report));
        }
        report.findings.extend(names::left_out(&matrices, &stated));
        report.findings.extend(whole::layers(&matrices));
        let quantized = matrices.iter().filter(|(_, parts)| parts.is_whole());
        let needs = quantized.map(|(name, _)| (name.as_str(), stated.inputs(module(name))));
        report.findings.extend(promises::inputs(&matrices, &needs.collect()));
        report.findings.extend(promises::cache(&matrices, &stated.sections));
        report.findings.extend(promises::indices(&matrices, &stated.sections));
        let with_one = subjects.iter().filter(|subject| subject.reading.has_one_scale());
        let with_one = with_one.map(|subject| subject.name).collect();
        report.findings.extend(fused::scales(&matrices, &with_one));
        let source = selection.source.map(|source| {
            let convention = self::convention(&source.file, &source.sections);
            let stated = Stated::new(&source.sections, convention, &mut Vec::new());
            (source, gather(&source.file, stated.convention), stated)
        });
        let sources = source.as_ref().map(|(source, matrices, stated)| {
            let interleaved = source.model.as_deref() == Some("gpt_oss");
            Sources::new(matrices, stated.subjects(matrices), interleaved)
        });
        let found = sources.as_ref().map(|sources| {
            let all = stated.subjects(&matrices);
            counterpart::found(&subjects, &all, &matrices, sources)
        });
        let path = |source: &Checkpoint| source.file.path().display().to_string();
        let file = selection.source.map_or(String::new(), path);
        let folding = Folding::new(&self.sections, convention);
        if let Some(section) = found.as_ref().and_then(|_| Folding::rotation(&self.sections)) {
            report.findings.push(source::rotated(section.file));
        }
        if let (Some(found), Some((_, source, _))) = (&found, &source) {
            let used = found.iter().flatten().flat_map(Counterpart::names).collect();
            let whole = selected.len() == matrices.len();
            let plain = whole::against(&matrices, source, &used, folding != Folding::Unstated);
            let counts = |finding: &Finding| whole || finding.check.name != whole::MISSING_TENSOR.name;
            report.findings.extend(plain.into_iter().filter(counts));
        }
        let found = found.map(|found| (found, file.as_str()));
        subject::measure(subjects, found, folding, &mut report, &mut total, &mut progress)?;
        // Look for NaN in all tensors. Skip a tensor for which another check has already reported NaN.
        let all = selected.iter().copied();
        let all = all.flat_map(|name| matrices[name].all().map(move |tensor| (name, tensor)));
        let all: Vec<(&str, Tensor)> = all.collect();
        let size = |(_, tensor): &(&str, Tensor)| tensor.bytes.len() / 4;
        let of_nan = |finding: &&Finding| ["nonfinite_scale", "nan_code"].contains(&finding.check.name);
        let named = report.findings.iter().filter(of_nan);
        let named: BTreeSet<String> = named.map(|finding| finding.subject.clone()).collect();
        let work = |(name, tensor): &(&str, Tensor)| values::plain(name, tensor);
        in_batches(&all, size, work, |_, found| -> Result<()> {
            let found = found.filter(|found| !named.contains(&found.subject));
            report.findings.extend(found);
            Ok(())
        })?;
        let is_selected = |finding: &Finding| finding.matrix.is_empty() || selected.contains(finding.matrix.as_str());
        report.findings.retain(is_selected);
        checks::leave_out_consequences(&mut report.findings);
        report.findings.sort_by(|a, b| a.matrix.cmp(&b.matrix));
        Ok(report)
    }
}

impl Selection<'_> {
    /// Returns the names of the selected matrices. A pattern fits a matrix if it matches the name of the matrix or of one of its
    /// tensors.
    fn names<'m>(&self, matrices: &'m Matrices<'m>) -> Result<BTreeSet<&'m str>> {
        let named = |name: &'m String, parts: &Parts<'m>| -> Vec<&'m str> {
            let others = parts.without_codes().map(|(_, tensor)| tensor);
            let tensors = parts.codes.into_iter().chain(others);
            let tensors = tensors.chain(parts.activations.iter().copied());
            let names = std::iter::once(name.as_str());
            names.chain(tensors.map(|tensor| tensor.name)).collect()
        };
        let all: Vec<&str> = matrices.iter().flat_map(|(name, parts)| named(name, parts)).collect();
        pattern::check("tensor", &[self.only, self.skip], &all)?;
        let has = |(name, parts): &(&'m String, &Parts<'m>)| {
            let names = named(name, parts);
            let wanted = names.iter().any(|name| pattern::selects(self.only, &[], name));
            wanted && names.iter().all(|name| pattern::selects(&[], self.skip, name))
        };
        let selected = matrices.iter().filter(has);
        Ok(selected.map(|(name, _)| name.as_str()).collect())
    }
}

impl Report {
    /// Number of findings with this severity.
    pub fn count(&self, severity: Severity) -> usize {
        let of_severity = |finding: &&Finding| finding.check.severity == severity;
        self.findings.iter().filter(of_severity).count()
    }

    /// Groups the findings by matrix and sorts the matrices: first by the number of errors, then by the number of findings,
    /// then by the lowest SQNR. Findings about files and keys come before all others.
    pub fn worst(&self) -> Vec<(&str, Vec<&Finding>)> {
        let mut groups: BTreeMap<&str, Vec<&Finding>> = BTreeMap::new();
        for finding in &self.findings {
            groups.entry(&finding.matrix).or_default().push(finding);
        }
        let sqnrs = self.matrices.iter();
        let sqnrs = sqnrs.filter_map(|judged| Some((judged.name.as_str(), judged.sqnr?)));
        let sqnrs: HashMap<&str, f64> = sqnrs.collect();
        let sqnr = |name: &str| sqnrs.get(name).copied().unwrap_or(f64::INFINITY);
        let is_error = |finding: &&&Finding| finding.check.severity == Severity::Error;
        let errors = |findings: &[&Finding]| findings.iter().filter(is_error).count();
        let mut all: Vec<(&str, Vec<&Finding>)> = groups.into_iter().collect();
        for (_, findings) in &mut all {
            findings.sort_by_key(|finding| std::cmp::Reverse(finding.check.severity));
        }
        all.sort_by(|(a, x), (b, y)| {
            let first = b.is_empty().cmp(&a.is_empty());
            first
                .then(errors(y).cmp(&errors(x)))
                .then(y.len().cmp(&x.len()))
                .then(sqnr(a).total_cmp(&sqnr(b)))
        });
        all
    }

    fn leave_unread(&mut self, tensor: &Tensor, why: impl Into<String>) {
        let (tensor, why) = (tensor.name.into(), why.into());
        self.unread.push(Unread { tensor, why });
    }

    /// Returns the results of a matrix by its name.
    pub fn judged(&self, name: &str) -> Option<&Judged> {
        self.matrices.iter().find(|judged| judged.name == name)
    }
}

/// Picks the convention that fits the names, types and shapes of most matrices. A convention that the configuration names takes
/// precedence if at least one matrix fits it, or if no matrix fits any convention. `None` if the configuration names only unknown
/// methods: tensor names then have no meaning.
fn convention(file: &TensorFile, sections: &[Section]) -> Option<&'static Convention> {
    let known = |section: &Section| CHECKPOINTS.iter().any(|convention| convention.states(section));
    if !sections.is_empty() && !sections.iter().any(known) {
        return None;
    }
    let named = |convention: &Convention| sections.iter().any(|section| convention.states(section));
    let explained = |convention: &'static Convention| {
        let (mut whole, mut read) = (0usize, 0usize);
        for (name, parts) in &gather(file, convention) {
            whole += usize::from(parts.is_whole());
            let fits = parts.is_whole() && names::parts(name, parts, convention, None).is_empty();
            read += usize::from(fits && matrix::choose(parts, convention, None, 0).is_ok());
        }
        (read, whole)
    };
    let all = CHECKPOINTS.iter().map(|convention| (convention, explained(convention)));
    let all: Vec<(&'static Convention, (usize, usize))> = all.collect();
    let best = all.iter().rev().max_by_key(|(_, count)| *count);
    let best = best.filter(|(_, (_, whole))| *whole > 0);
    // Several conventions may have the same method: take the one that fits most matrices.
    let stated = all.iter().filter(|(convention, _)| named(convention));
    let stated = stated.rev().max_by_key(|(_, count)| *count);
    match (stated, best) {
        (Some((stated, (read, whole))), Some((_, (most, _)))) if *read > 0 || (*most == 0 && *whole > 0) => {
            Some(stated)
        }
        (_, best) => best.map(|(convention, _)| *convention),
    }
}
