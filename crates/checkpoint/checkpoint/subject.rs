//! Reads the values of matrices. If a source (the weights before quantization) is given, compares the values with it.

use std::collections::BTreeMap;

use super::checks::{Finding, scales, source, values};
use super::compared::{Compared, Folding, Pair};
use super::counterpart::{Counterpart, Found};
use super::matrix::Reading;
use super::measure::Measured;
use super::parts::{Parts, kin};
use super::{Judged, Report};
use crate::packed::{Stack, in_matrices};
use ulplab_core::error::Result;

/// A matrix, or a stack of matrices, whose values can be read.
pub struct Subject<'a> {
    /// Name of the matrix.
    pub name: &'a str,
    /// Tensors of the matrix.
    pub parts: &'a Parts<'a>,
    /// Storage format of the tensors.
    pub reading: Reading<'a>,
}

/// Results for a stack of matrices.
#[derive(Default)]
struct Known {
    judged: Judged,
    /// Index in the stack, SQNR, and noise relative to rounding (both in dB) of each matrix that is compared with other layers.
    noise: Vec<(usize, f64, f64)>,
    /// True if the source is quantized itself and every matrix has the same values as the source.
    is_same: bool,
}

/// Reads the values of all matrices, and adds their results and findings to the report. `sources` holds the source of each matrix
/// (or the reason that the matrix has none), and the path of the source file.
pub fn measure(
    subjects: Vec<Subject>,
    sources: Option<(Found, &str)>,
    folding: Folding,
    report: &mut Report,
    total: &mut dyn FnMut(usize),
    progress: &mut dyn FnMut(usize, &str),
) -> Result<()> {
    let (found, file) = sources.unwrap_or_default();
    for (subject, found) in subjects.iter().zip(&found) {
        if let Err(found) = found {
            report.findings.push(subject.without(format!("{found} in {file}")));
        }
    }
    let source = |at: usize| found.get(at).and_then(|found| found.as_ref().ok());
    let stacks: Vec<Stack> = subjects.iter().map(|subject| subject.reading.stack()).collect();
    total(stacks.iter().map(Stack::elements).sum());
    let unmeasured = |(at, subject): (usize, &Subject)| {
        let names = source(at).map_or(Vec::new(), Counterpart::names).into_iter();
        Known {
            judged: Judged {
                name: subject.name.into(),
                format: subject.reading.format(),
                shape: subject.reading.shape(),
                through: names.filter(|name| *name != subject.name).map(String::from).collect(),
                ..Judged::default()
            },
            ..Known::default()
        }
    };
    let mut known: Vec<Known> = subjects.iter().enumerate().map(unmeasured).collect();
    let work = |at: usize, expert| subjects[at].piece(expert, source(at), folding);
    in_matrices(&stacks, work, |at, expert, (measured, compared)| -> Result<()> {
        let known = &mut known[at];
        report.findings.extend(compared.findings);
        known.is_same = compared.is_same && (expert == 0 || known.is_same);
        if let Some((sqnr, noise)) = compared.sqnr.zip(compared.noise) {
            known.noise.push((expert, sqnr, noise));
        }
        let judged = &mut known.judged;
        judged.measured = Some(match judged.measured.take() {
            None => measured,
            Some(before) => before.joined(measured),
        });
        judged.sqnr = judged.sqnr.into_iter().chain(compared.sqnr).reduce(f64::min);
        judged.rule = judged.rule.take().or(compared.rule);
        progress(stacks[at].matrix(), subjects[at].name);
        Ok(())
    })?;
    if !found.is_empty() && known.iter().all(|known| known.is_same) {
        let found = format!("the same values, quantized already, in {file}");
        let all = subjects.iter().map(|subject| subject.without(found.clone()));
        report.findings.extend(all);
    }
    let kinds = kinds(&known).into_iter();
    for (at, expert, limit, finding) in kinds.flat_map(|members| above(&subjects, &known, &members)) {
        let pair = source(at).map(|source| Pair::new(&subjects[at], source, expert, folding));
        let folded = pair.and_then(|pair| pair.folded(&finding, limit));
        report.findings.push(folded.unwrap_or(finding));
    }
    report.matrices.extend(known.into_iter().map(|known| known.judged));
    Ok(())
}

/// Partitions matrices into sets whose noise is compared: one set for each format and name (without the layer number). If any
/// name has fewer than four matrices of a format, all matrices of this format form one set. Sets of fewer than three matrices are
/// left out.
fn kinds(known: &[Known]) -> Vec<Vec<usize>> {
    let matrices = |members: &[usize]| members.iter().map(|at| known[*at].noise.len()).sum::<usize>();
    let mut formats: BTreeMap<&str, BTreeMap<String, Vec<usize>>> = BTreeMap::new();
    for (at, Known { judged, .. }) in known.iter().enumerate() {
        let names = formats.entry(&judged.format).or_default();
        names.entry(kin(&judged.name)).or_default().push(at);
    }
    let of = |names: BTreeMap<String, Vec<usize>>| match names.values().all(|members| matrices(members) >= 4) {
        true => names.into_values().collect(),
        false => vec![names.into_values().flatten().collect()],
    };
    let kinds: Vec<Vec<usize>> = formats.into_values().flat_map(of).collect();
    kinds.into_iter().filter(|members| matrices(members) >= 3).collect()
}

/// Returns the matrices of the stacks `members` that have far more noise than the others. For each: index of its stack, index in
/// the stack, noise limit in dB, and a finding.
fn above(subjects: &[Subject], known: &[Known], members: &[usize]) -> Vec<(usize, usize, f64, Finding)> {
    let of = |at: usize| known[at].noise.iter().map(move |noise| (at, *noise));
    let all = || members.iter().copied().flat_map(of);
    let noise: Vec<f64> = all().map(|(_, (.., noise))| noise).collect();
    let Some(limit) = source::limit(&noise, source::KIN) else {
        return Vec::new();
    };
    let over = all().filter(|(_, (.., noise))| *noise > limit);
    over.map(|(at, (expert, sqnr, found))| {
        let (names, which) = (subjects[at].names(), subjects[at].which(expert));
        let finding = source::above_kin(names, &which, (sqnr, found), limit, noise.len());
        (at, expert, limit, finding)
    })
    .collect()
}

impl Subject<'_> {
    /// Measures one matrix, compares it with its source if there is one, and collects the findings.
    fn piece(&self, expert: usize, source: Option<&Counterpart>, folding: Folding) -> (Measured, Compared) {
        let pair = source.map(|source| Pair::new(self, source, expert, folding));
        let matrix = match &pair {
            Some(pair) => &pair.matrix,
            None => &self.reading.matrix(expert, false),
        };
        let measured = Measured::new(matrix, self.reading.of_bytes().map(|format| format.element.max()));
        let mut compared = pair.as_ref().map(Pair::compared).unwrap_or_default();
        let which = self.which(expert);
        let mut findings = values::counts(self, &which, &measured);
        findings.extend(scales::size(self, &which, &measured));
        compared.findings.splice(..0, findings);
        (measured, compared)
    }

    /// Returns a finding that the matrix has no usable source. `found` describes the source that was found instead.
    pub fn without(&self, found: String) -> Finding {
        let expected = format!("a tensor of finite numbers of shape {:?}", self.reading.shape());
        Finding::new(&source::NO_SOURCE, self.names(), found, expected)
    }

    /// Returns the name of the tensor of codes, and the name of the matrix.
    pub fn names(&self) -> (&str, &str) {
        (self.parts.codes.map_or("", |codes| codes.name), self.name)
    }

    /// Returns the beginning of a message, e.g. `matrix 3: `, for a matrix of a stack; empty for a single matrix.
    pub fn which(&self, expert: usize) -> String {
        match self.reading.stack().experts {
            0 | 1 => String::new(),
            _ => format!("matrix {expert}: "),
        }
    }
}
