//! The values of matrices, beside their source if it is known.

use std::sync::atomic::AtomicUsize;

use safetensors::Dtype;

use super::checks::{Finding, scales, source, values};
use super::matrix::Reading;
use super::measure::{Against, Measured};
use super::parts::Parts;
use super::{Judged, Report};
use crate::error::Result;
use crate::formats::Half;
use crate::packed::{Opened, in_batches};
use crate::parity::{DiagnosisOptions, Rules, Source, StoredBytes, diagnose_from};
use crate::tensorfile::{Tensor, TensorFile};

/// A matrix whose values will be read.
pub struct Subject<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its tensors.
    pub parts: &'a Parts<'a>,
    /// How they are read.
    pub reading: Reading<'a>,
    /// What [`Reading::open`] gave.
    pub opened: Option<Opened<'a>>,
}

/// What is known of one matrix of a stack.
struct Piece {
    measured: Measured,
    findings: Vec<Finding>,
    /// The SQNR against its source, in dB.
    sqnr: Option<f64>,
    rule: Option<String>,
}

/// What is known of a stack: all that is counted, and the worst of its matrices.
#[derive(Default)]
struct Known {
    measured: Option<Measured>,
    sqnr: Option<f64>,
    rule: Option<String>,
}

/// Reads the values of all matrices.
pub fn measure(
    subjects: Vec<Subject>,
    source: Option<&TensorFile>,
    report: &mut Report,
    total: &mut dyn FnMut(usize),
    progress: &mut dyn FnMut(usize, &str),
) -> Result<()> {
    let beside: Vec<Option<(Tensor, bool)>> = subjects
        .iter()
        .map(|subject| {
            let found = subject.beside(source?);
            if found.is_none() {
                let expected = format!("a floating-point tensor of shape {:?}", subject.reading.shape());
                let codes = subject.parts.codes.map_or("", |codes| codes.name);
                let found = format!("none in {}", source?.path().display());
                report
                    .findings
                    .push(Finding::new(&source::NO_SOURCE, (codes, subject.name), found, expected));
            }
            found
        })
        .collect();
    let pieces = |at: usize| subjects[at].reading.stack().matrices().map(move |expert| (at, expert));
    let pieces: Vec<(usize, usize)> = (0..subjects.len()).flat_map(pieces).collect();
    let size = |(at, _): &(usize, usize)| subjects[*at].reading.stack().matrix();
    total(pieces.iter().map(size).sum());
    let folds = report.convention.is_some_and(|convention| convention.folds);
    let mut known: Vec<Known> = subjects.iter().map(|_| Known::default()).collect();
    let work = |(at, expert): &(usize, usize)| Ok(subjects[*at].piece(*expert, beside[*at], folds));
    in_batches(&pieces, size, work, |(at, expert), piece| -> Result<()> {
        let (subject, known) = (&subjects[*at], &mut known[*at]);
        report.findings.extend(piece.findings);
        known.measured = Some(match known.measured.take() {
            None => piece.measured,
            Some(before) => before.and(piece.measured),
        });
        known.sqnr = match (known.sqnr, piece.sqnr) {
            (Some(before), Some(now)) => Some(before.min(now)),
            (before, now) => before.or(now),
        };
        known.rule = known.rule.take().or(piece.rule);
        progress(size(&(*at, *expert)), subject.name);
        Ok(())
    })?;
    for (subject, Known { measured, sqnr, rule }) in subjects.iter().zip(known) {
        report.matrices.push(Judged {
            name: subject.name.into(),
            format: subject.reading.format(),
            shape: subject.reading.shape(),
            measured,
            sqnr,
            rule,
        });
    }
    Ok(())
}

impl<'a> Subject<'a> {
    /// The source of that name, and whether it is transposed.
    fn beside<'s>(&self, source: &'s TensorFile) -> Option<(Tensor<'s>, bool)> {
        let tensor = source.get(self.name).filter(Tensor::is_floating)?;
        let shape = self.reading.shape();
        let mut turned = shape.clone();
        if let [.., a, b] = turned.as_mut_slice() {
            std::mem::swap(a, b);
        }
        match tensor.shape {
            found if found == shape => Some((tensor, false)),
            found if found == turned => Some((tensor, true)),
            _ => None,
        }
    }

    /// What is known of one matrix. `folds` says that inputs are scaled by numbers that no file has, so that its distance from the
    /// source is not judged.
    fn piece(&self, expert: usize, source: Option<(Tensor, bool)>, folds: bool) -> Piece {
        let matrix = self.reading.matrix(self.opened.as_ref(), expert, false);
        let measured = Measured::new(&matrix, self.reading.top());
        let which = match self.reading.stack().experts {
            0 | 1 => String::new(),
            _ => format!("matrix {expert}: "),
        };
        let mut findings = self.findings(&which, &measured);
        let Some((tensor, transposed)) = source else {
            return Piece {
                measured,
                findings,
                sqnr: None,
                rule: None,
            };
        };
        let bytes = self.reading.stack().share(tensor.bytes, expert);
        let share = Tensor { bytes, ..tensor };
        let x = share.to_f32().expect("floating-point tensors are numbers");
        let against = Against::new(&matrix, &x, transposed);
        let low = against.db(against.noise) < source::least(self.reading.bits());
        let other = (low && self.reading.is_packed()).then(|| {
            let matrix = self.reading.matrix(self.opened.as_ref(), expert, true);
            Against::new(&matrix, &x, transposed)
        });
        if !folds {
            findings.extend(source::low(
                self.name,
                &which,
                self.parts,
                &self.reading,
                &against,
                other,
            ));
        }
        // The first matrix of a stack stands for all: they are made alike.
        let rule = match (&self.reading, &self.opened) {
            (Reading::Bytes { format, buffers, .. }, Some(opened)) if expert == 0 && !transposed => {
                let narrow = buffers.scale.and_then(|scale| match scale.dtype {
                    Dtype::BF16 => Some(Half::Bf16),
                    Dtype::F16 => Some(Half::F16),
                    _ => None,
                });
                let asked = DiagnosisOptions {
                    rules: Rules::ReadAlike,
                    narrow,
                };
                let encoded = opened.matrix(expert);
                let stored = StoredBytes::from(&encoded);
                let diagnosis = diagnose_from(
                    Source::slice(&x),
                    matrix.cols,
                    &stored,
                    format,
                    asked,
                    &AtomicUsize::new(0),
                );
                Some(diagnosis.conclusion())
            }
            _ => None,
        };
        Piece {
            measured,
            findings,
            sqnr: Some(against.db(against.noise)),
            rule,
        }
    }

    /// What the counts of one matrix say.
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
