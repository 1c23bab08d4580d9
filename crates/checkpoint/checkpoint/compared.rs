//! Compares a quantized matrix with its source, the matrix before quantization.

use std::sync::atomic::AtomicUsize;

use super::checks::{Finding, source};
use super::config::Section;
use super::conventions::Convention;
use super::counterpart::{Arrangement, Counterpart, place};
use super::matrix::{Matrix, Reading};
use super::measure::Against;
use super::shortfall::Shortfall;
use super::subject::Subject;
use crate::parity::{DiagnosisOptions, Rules, Source, StoredBytes, diagnose_from};
use ulplab_core::metrics::upper_median;

/// Transformation that was multiplied into a matrix before quantization, so that the matrix differs from the source even without
/// rounding: channel factors or a rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Folding {
    /// The configuration states no folding.
    Unstated,
    /// Input channels were multiplied by factors that no file stores (AWQ), so the stored matrix differs from the source matrix.
    Channels,
    /// The inputs were rotated.
    Rotated,
}

impl Folding {
    /// Returns the transformation that the configuration states. Without a configuration, returns the usual transformation of the
    /// convention (AWQ: channel factors).
    pub fn new(sections: &[Section], convention: Option<&Convention>) -> Self {
        if Self::rotation(sections).is_some() {
            return Self::Rotated;
        }
        let awq = |text: Option<&str>| text.is_some_and(|text| text.to_lowercase().contains("awq"));
        let stated = |section: &Section| awq(Some(&section.method)) || awq(section.text("quant_algo"));
        let silent = sections.is_empty() && convention.is_some_and(|convention| convention.folds);
        match silent || sections.iter().any(stated) {
            true => Self::Channels,
            false => Self::Unstated,
        }
    }

    /// Returns the first section of a configuration that states a rotation.
    pub fn rotation(sections: &[Section]) -> Option<&Section> {
        let stated = |section: &&Section| {
            let value = section.value.get("transform_config");
            value.is_some_and(|value| !value.is_null() && value.as_object().is_none_or(|value| !value.is_empty()))
        };
        sections.iter().find(stated)
    }
}

/// Fitted channel factors explain the noise of a matrix if they reduce it by at least 3 dB (a factor of 2).
const HALF: f64 = 3.0;

/// A matrix and its source.
pub struct Pair<'a> {
    subject: &'a Subject<'a>,
    counterpart: &'a Counterpart<'a>,
    expert: usize,
    folding: Folding,
    /// The stored matrix.
    pub matrix: Matrix,
    /// Values of the source, row by row.
    source: Vec<f32>,
}

/// Result of the comparison of a matrix with its source.
#[derive(Default)]
pub struct Compared {
    /// Findings about the matrix.
    pub findings: Vec<Finding>,
    /// SQNR against the source, in dB; `None` if the source has NaN or infinities.
    pub sqnr: Option<f64>,
    /// Squared error of the matrix divided by the expected squared error of rounding, in dB. Layers are compared by this number;
    /// `None` excludes this matrix from the comparison.
    pub noise: Option<f64>,
    /// Sentence about the quantization rule that made the bytes.
    pub rule: Option<String>,
    /// True if the source is quantized itself and decodes to the same values.
    pub is_same: bool,
}

/// Distances of the matrix from a source, and a finding about them.
struct Distance {
    against: Against,
    noise: Option<f64>,
    finding: Option<Finding>,
}

/// Projections with no nonlinear function between their outputs and the next matrix. The input factors of the next matrix may be
/// folded into the rows of such a projection.
const PRODUCERS: &[&str] = &["up_proj", "v_proj", "gate_up_proj", "qkv_proj", "fc1", "c_fc"];

impl<'a> Pair<'a> {
    /// Reads matrix number `expert` of a quantized tensor (0 if it is not a stack), and the source matrix that it was made from.
    pub fn new(subject: &'a Subject<'a>, counterpart: &'a Counterpart<'a>, expert: usize, folding: Folding) -> Self {
        let scaled = |name: &str| name.ends_with(".pre_quant_scale");
        let scaled = subject.parts.activations.iter().any(|tensor| scaled(tensor.name));
        Self {
            matrix: subject.reading.matrix(expert, false),
            source: counterpart
                .matrix(expert, Arrangement::Likely)
                .expect("every matrix has a likely arrangement"),
            folding: match folding {
                Folding::Unstated if scaled => Folding::Channels,
                folding => folding,
            },
            subject,
            counterpart,
            expert,
        }
    }

    /// Compares the matrix with its source.
    pub fn compared(&self) -> Compared {
        let lost = self.source.iter().filter(|value| !value.is_finite()).count();
        if lost > 0 {
            let (which, all, names) = (self.which(), self.source.len(), self.counterpart.names().join("', '"));
            let found = format!("{which}{lost} of {all} values of '{names}' are NaN or infinite");
            return Compared {
                findings: vec![self.subject.without(found)],
                ..Compared::default()
            };
        }
        let distance = match self.folding {
            Folding::Channels => self.fitted(),
            _ => self.distance(&self.source),
        };
        let sqnr = distance.against.db(distance.against.noise);
        let rotated = self.folding == Folding::Rotated;
        let finding = distance.finding.filter(|_| !rotated).map(|finding| self.cause(finding));
        let judged = finding.is_none() && !rotated;
        Compared {
            findings: finding.into_iter().collect(),
            sqnr: Some(sqnr),
            noise: distance.noise.filter(|_| judged),
            rule: self.rule(),
            is_same: self.counterpart.is_quantized() && self.matrix.values() == self.source,
        }
    }

    fn which(&self) -> String {
        self.subject.which(self.expert)
    }

    /// Measures the distance of the matrix from the source `x`: for the whole matrix, for rows, columns and parts of rows.
    fn distance(&self, x: &[f32]) -> Distance {
        let against = Against::new(&self.matrix, x);
        if against.db(against.noise) < source::least(self.subject.reading.bits()) || against.noise.is_nan() {
            return Distance {
                noise: None,
                finding: source::low(self.subject, &self.which(), &against, [None; 2]),
                against,
            };
        }
        let shortfall = Shortfall::new(&self.matrix, x, against.noise, self.folding == Folding::Channels);
        let off = source::parts(&shortfall).map(|(found, expected)| {
            let found = format!("{}SQNR {:.2} dB, and {found}", self.which(), against.db(against.noise));
            Finding::new(&source::PART_OFF, self.subject.names(), found, expected)
        });
        Distance {
            against,
            noise: Some(shortfall.whole.db()),
            finding: off,
        }
    }

    /// Compares the matrix with the source times a fitted factor for each input channel. If the noise is still too high, also
    /// fits a factor for each output channel. If both factors together explain the noise, the finding becomes "not judged". For
    /// [`PRODUCERS`] there is then no finding, because their rows may hold the input factors of the next matrix.
    fn fitted(&self) -> Distance {
        let (_, x) = fit(&self.matrix, &self.source, false);
        let distance = self.distance(&x);
        if distance.finding.is_none() {
            return distance;
        }
        let (_, x) = fit(&self.matrix, &self.source, true);
        let both = self.distance(&x);
        if both.finding.is_some() {
            return distance;
        }
        let (_, place) = place(self.subject.name);
        if PRODUCERS.contains(&place.leaf.as_str()) {
            return both;
        }
        Distance {
            finding: Some(self.not_judged(both.against, "one factor for each input and output channel")),
            ..both
        }
    }

    /// Replaces a finding about the distance from the source by one that names its cause, if that cause can be measured.
    fn cause(&self, finding: Finding) -> Finding {
        // Only channel factors can explain these two kinds of findings. [`Self::folded`] returns `None` if the configuration
        // states channel factors or a rotation; then the finding stays.
        if finding.is_of(&[&source::PART_OFF, &source::FOLDED]) {
            return self.folded(&finding, f64::INFINITY).unwrap_or(finding);
        }
        let reading = &self.subject.reading;
        let from = |matrix: &Matrix, x: &[f32]| match self.folding {
            Folding::Channels => Against::new(matrix, &fit(matrix, x, false).1),
            _ => Against::new(matrix, x),
        };
        let least = source::least(reading.bits());
        let against = from(&self.matrix, &self.source);
        let other = reading.is_packed().then(|| {
            let matrix = reading.matrix(self.expert, true);
            from(&matrix, &self.source)
        });
        let arranged = |how| Some(from(&self.matrix, &self.counterpart.matrix(self.expert, how)?));
        let turned = arranged(Arrangement::Turned);
        let named = source::low(self.subject, &self.which(), &against, [other, turned]);
        let finding = named.unwrap_or(finding);
        if finding.check.name != source::LOW_SQNR.name {
            return finding;
        }
        let by_turns = arranged(Arrangement::Interleaved).map(|against| against.db(against.noise));
        if let Some(db) = by_turns.filter(|db| *db >= least) {
            let with = format!("{db:.2} dB with the rows of gate and up in another order of the stack");
            return self.subject.without(format!("{}, and {with}", finding.found));
        }
        self.folded(&finding, f64::INFINITY).unwrap_or(finding)
    }

    /// Returns a "not judged" finding that replaces `finding` if fitted channel factors explain the noise: after the fit, the
    /// matrix must have at most `limit` dB more noise than rounding gives.
    pub fn folded(&self, finding: &Finding, limit: f64) -> Option<Finding> {
        if self.folding != Folding::Unstated {
            return None;
        }
        let before = Against::new(&self.matrix, &self.source);
        let before = before.db(before.noise);
        [(false, "input channel"), (true, "input and output channel")]
            .into_iter()
            .find_map(|(outputs, each)| {
                let (inputs, x) = fit(&self.matrix, &self.source, outputs);
                let fitted = self.distance(&x);
                let (against, low) = (fitted.against, fitted.noise.is_some_and(|noise| noise <= limit));
                let mended = against.db(against.noise) >= before + HALF;
                let right = low && mended && fitted.finding.is_none() && varies(&inputs, &against, self.matrix.rows);
                right.then(|| self.not_judged(against, &format!("one factor for each {each} ({})", finding.found)))
            })
    }

    fn not_judged(&self, against: Against, with: &str) -> Finding {
        let found = format!("{}SQNR {:.2} dB with {with}", self.which(), against.db(against.noise));
        let expected = "a source without factors of channels, or a configuration that says AWQ";
        Finding::new(&source::FOLDED, self.subject.names(), found, expected)
    }

    /// Finds the quantization rule that made the bytes of the matrix, and returns a sentence about it. `None` for codes in 32-bit
    /// words. In a stack, only the first matrix is examined, because one rule made them all.
    fn rule(&self) -> Option<String> {
        let (Reading::Bytes { buffers, opened, .. }, 0) = (&self.subject.reading, self.expert) else {
            return None;
        };
        let (rules, narrow) = (Rules::ReadAlike, buffers.narrow());
        let asked = DiagnosisOptions { rules, narrow };
        let encoded = opened.matrix(0);
        let (source, stored) = (Source::slice(&self.source), StoredBytes::from(&encoded));
        let diagnosis = diagnose_from(
            source,
            self.matrix.cols,
            &stored,
            &opened.format,
            asked,
            &AtomicUsize::new(0),
        );
        Some(diagnosis.conclusion())
    }
}

/// Fits y = f[col] · x by least squares, where y are the stored elements and x the source. With `outputs`, fits y = g[row] ·
/// f[col] · x: the fit alternates between row and column factors, which converges within a few iterations if such factors exist.
/// All factors are positive. Returns f, and the source times all factors.
fn fit(matrix: &Matrix, source: &[f32], outputs: bool) -> (Vec<f64>, Vec<f32>) {
    let (rows, cols) = (matrix.rows, matrix.cols);
    let stored = matrix.values();
    let (mut down, mut across) = (vec![1.0f64; rows], vec![1.0f64; cols]);
    let turn = |known: &[f64], of: &mut [f64], columns: bool| {
        let mut sums = vec![(0.0f64, 0.0f64); of.len()];
        for (at, (x, y)) in source.iter().zip(&stored).enumerate() {
            let (row, col) = (at / cols, at % cols);
            let (own, other) = if columns { (col, row) } else { (row, col) };
            let x = f64::from(*x) * known[other];
            sums[own].0 += x * f64::from(*y);
            sums[own].1 += x * x;
        }
        // A channel without a positive least-squares factor gets the median factor of the other channels.
        let factor = |(xy, xx): &(f64, f64)| Some(xy / xx).filter(|factor| *factor > 0.0);
        let fitted: Vec<Option<f64>> = sums.iter().map(factor).collect();
        let middle = upper_median(fitted.iter().copied().flatten().collect()).unwrap_or(1.0);
        let pairs = of.iter_mut().zip(fitted);
        pairs.for_each(|(factor, fitted)| *factor = fitted.unwrap_or(middle));
    };
    turn(&down, &mut across, true);
    for _ in 0..if outputs { 8 } else { 0 } {
        turn(&across, &mut down, false);
        turn(&down, &mut across, true);
    }
    let value = |(at, x): (usize, &f32)| (f64::from(*x) * down[at / cols] * across[at % cols]) as f32;
    let scaled = source.iter().enumerate().map(value).collect();
    (across, scaled)
}

/// Number of neighbouring columns whose factors are compared with their common median.
const NEAR: usize = 16;

/// True if fitted column factors vary more between neighbouring columns than noise explains: more than an eighth of them differ
/// from the median of their 16 neighbours by more than four times the error that `fitted`, the noise of the fitted matrix,
/// causes. A single wrong scale does not count: it changes all factors of its group equally.
fn varies(factors: &[f64], fitted: &Against, rows: usize) -> bool {
    let error = 4.0 * (fitted.noise / fitted.signal / rows.max(1) as f64).sqrt();
    let apart = |near: &[f64]| {
        let middle = upper_median(near.to_vec()).unwrap_or(0.0);
        let far = |factor: &&f64| (*factor - middle).abs() > error * middle;
        near.iter().filter(far).count()
    };
    factors.chunks(NEAR).map(apart).sum::<usize>() > factors.len() / 8
}
