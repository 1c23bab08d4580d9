//! The values of matrices, against their source if it is known.

use std::collections::BTreeMap;

use super::checks::{Finding, scales, source, values};
use super::compared::{Compared, Folding, Pair};
use super::counterpart::{Counterpart, Found};
use super::matrix::Reading;
use super::measure::Measured;
use super::parts::{Parts, kin};
use super::{Judged, Report};
use crate::packed::{Opened, in_batches};
use ulplab_core::error::Result;

/// A matrix whose values will be read.
pub struct Subject<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its tensors.
    pub parts: &'a Parts<'a>,
    /// The way in which they are read.
    pub reading: Reading<'a>,
    /// The result of [`Reading::open`].
    pub opened: Option<Opened<'a>>,
}

/// The facts about a stack: all that is counted, and the worst of its matrices.
#[derive(Default)]
struct Known {
    measured: Option<Measured>,
    sqnr: Option<f64>,
    rule: Option<String>,
    /// The SQNR and the noise above rounding, in dB, of each matrix that may be held against its kin.
    noise: Vec<(usize, f64, f64)>,
    /// True if every matrix has the values of a source that is quantized itself.
    is_same: bool,
}

/// Reads the values of all matrices. `sources` are their counterparts in a file of that name, if there is a source.
pub fn measure(
    subjects: Vec<Subject>,
    sources: Option<(Found, &str)>,
    folding: Folding,
    report: &mut Report,
    total: &mut dyn FnMut(usize),
    progress: &mut dyn FnMut(usize, &str),
) -> Result<()> {
    let (found, file) = sources.map_or((Vec::new(), ""), |(found, file)| (found, file));
    for (subject, found) in subjects.iter().zip(&found) {
        if let Err(found) = found {
            report.findings.push(subject.without(format!("{found} in {file}")));
        }
    }
    let source = |at: usize| found.get(at).and_then(|found| found.as_ref().ok());
    let pieces = |at: usize| subjects[at].reading.stack().matrices().map(move |expert| (at, expert));
    let pieces: Vec<(usize, usize)> = (0..subjects.len()).flat_map(pieces).collect();
    let size = |(at, _): &(usize, usize)| subjects[*at].reading.stack().matrix();
    total(pieces.iter().map(size).sum());
    let mut known: Vec<Known> = subjects.iter().map(|_| Known::default()).collect();
    let work = |(at, expert): &(usize, usize)| Ok(subjects[*at].piece(*expert, source(*at), folding));
    in_batches(&pieces, size, work, |(at, expert), piece| -> Result<()> {
        let (subject, known) = (&subjects[*at], &mut known[*at]);
        let (measured, compared) = piece;
        report.findings.extend(compared.findings);
        known.is_same = compared.is_same && (*expert == 0 || known.is_same);
        if let Some((sqnr, noise)) = compared.sqnr.zip(compared.noise) {
            known.noise.push((*expert, sqnr, noise));
        }
        known.measured = Some(match known.measured.take() {
            None => measured,
            Some(before) => before.joined(measured),
        });
        known.sqnr = match (known.sqnr, compared.sqnr) {
            (Some(before), Some(now)) => Some(before.min(now)),
            (before, now) => before.or(now),
        };
        known.rule = known.rule.take().or(compared.rule);
        progress(size(&(*at, *expert)), subject.name);
        Ok(())
    })?;
    if !found.is_empty() && known.iter().all(|known| known.is_same) {
        let all = subjects
            .iter()
            .map(|subject| subject.without(format!("the same values, quantized already, in {file}")));
        report.findings.extend(all);
    }
    let lagging = kinds(&subjects, &known)
        .into_iter()
        .flat_map(|members| above(&subjects, &known, &members));
    for (at, expert, limit, finding) in lagging {
        let pair = source(at).map(|source| Pair::new(&subjects[at], source, expert, folding));
        let folded = pair.and_then(|pair| pair.folded(&finding, limit));
        report.findings.push(folded.unwrap_or(finding));
    }
    for (at, (subject, known)) in subjects.iter().zip(known).enumerate() {
        let names = source(at).map_or(Vec::new(), Counterpart::names).into_iter();
        report.matrices.push(Judged {
            name: subject.name.into(),
            format: subject.reading.format(),
            shape: subject.reading.shape(),
            measured: known.measured,
            sqnr: known.sqnr,
            through: names.filter(|name| *name != subject.name).map(String::from).collect(),
            rule: known.rule,
        });
    }
    Ok(())
}

/// The matrices that are held against each other: those of one format and one name in all layers, or of one format if those are fewer
/// than four.
fn kinds(subjects: &[Subject], known: &[Known]) -> Vec<Vec<usize>> {
    let matrices = |members: &[usize]| members.iter().map(|at| known[*at].noise.len()).sum::<usize>();
    let mut formats: BTreeMap<String, BTreeMap<String, Vec<usize>>> = BTreeMap::new();
    for (at, subject) in subjects.iter().enumerate() {
        let names = formats.entry(subject.reading.format()).or_default();
        names.entry(kin(subject.name)).or_default().push(at);
    }
    let of = |names: BTreeMap<String, Vec<usize>>| match names.values().all(|members| matrices(members) >= 4) {
        true => names.into_values().collect(),
        false => vec![names.into_values().flatten().collect()],
    };
    let kinds: Vec<Vec<usize>> = formats.into_values().flat_map(of).collect();
    kinds.into_iter().filter(|members| matrices(members) >= 3).collect()
}

/// The matrices of a kind that have far more noise than the others, with the limit and a finding each.
fn above(subjects: &[Subject], known: &[Known], members: &[usize]) -> Vec<(usize, usize, f64, Finding)> {
    let all = || {
        members
            .iter()
            .flat_map(|at| known[*at].noise.iter().map(move |noise| (*at, *noise)))
    };
    let noise: Vec<f64> = all().map(|(_, (.., noise))| noise).collect();
    let Some(limit) = source::limit_of_kin(&noise) else {
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
    /// The counts of one matrix, its comparison with a source if there is one, and the findings of both.
    fn piece(&self, expert: usize, source: Option<&Counterpart>, folding: Folding) -> (Measured, Compared) {
        let pair = source.map(|source| Pair::new(self, source, expert, folding));
        let matrix = match &pair {
            Some(pair) => &pair.matrix,
            None => &self.reading.matrix(self.opened.as_ref(), expert, false),
        };
        let measured = Measured::new(matrix, self.reading.top());
        let mut compared = pair.as_ref().map(Pair::compared).unwrap_or_default();
        compared
            .findings
            .splice(..0, self.findings(&self.which(expert), &measured));
        (measured, compared)
    }

    /// A finding that it has no source.
    pub fn without(&self, found: String) -> Finding {
        let expected = format!("a tensor of finite numbers of shape {:?}", self.reading.shape());
        Finding::new(&source::NO_SOURCE, self.names(), found, expected)
    }

    /// The names of its codes and of itself.
    pub fn names(&self) -> (&str, &str) {
        (self.parts.codes.map_or("", |codes| codes.name), self.name)
    }

    /// The number of a matrix of a stack, for findings.
    pub fn which(&self, expert: usize) -> String {
        match self.reading.stack().experts {
            0 | 1 => String::new(),
            _ => format!("matrix {expert}: "),
        }
    }

    /// Findings from the counts of one matrix.
    fn findings(&self, which: &str, measured: &Measured) -> Vec<Finding> {
        let (Some(codes), Some(scale)) = (self.parts.codes, self.parts.scale) else {
            return Vec::new();
        };
        let mut findings = values::counts(self.name, which, &codes, &self.reading, measured);
        findings.extend(values::lost(self.name, which, &scale, measured));
        findings.extend(scales::size(self.name, which, self.parts, measured));
        findings
    }
}
