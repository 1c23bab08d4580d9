//! Next-token logits of two models at the same positions.

use super::{Evidence, Number};

/// Sums from which the metrics of a reference's and a candidate's logits are computed. All softmaxes are in f64.
///
/// If any logit is NaN or infinite, every metric is NaN.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Logits {
    /// Number of compared positions.
    pub rows: u64,
    /// Number of NaN and infinite logits of the reference.
    pub nonfinite_want: u64,
    /// Number of NaN and infinite logits of the candidate.
    pub nonfinite_got: u64,
    /// Sum over positions of KL(want ‖ got), in nats.
    pub(in crate::metrics) kl: f64,
    /// Largest KL(want ‖ got) of a position, in nats.
    pub(in crate::metrics) kl_max: f64,
    /// Index of the position with the largest KL divergence.
    pub kl_worst: usize,
    /// Number of positions at which the candidate's top choice is also a top choice of the reference. The reference has several
    /// top choices if its largest logits tie.
    pub(in crate::metrics) agree: u64,
    /// Largest difference, in the reference's logits, between the reference's top choice and the candidate's top choice.
    pub(in crate::metrics) flip_gap: f64,
    /// Number of positions with a target, the text's next token.
    pub targets: u64,
    /// Sum over targets of the candidate's minus the reference's negative log-likelihood, in nats.
    pub(in crate::metrics) delta_nats: f64,
}

impl Logits {
    /// Compares the logits `want` and `got`, which are `[rows, vocabulary]`, row-major. `targets` holds the next token of the
    /// text for each of the first rows; the last row of a text has no target.
    ///
    /// # Panics
    /// If the lengths do not match, or a target is not in the vocabulary.
    pub fn new<X: Number, Y: Number>(want: &[X], got: &[Y], vocabulary: usize, targets: &[u32]) -> Self {
        assert_eq!(want.len(), got.len(), "logits of the two models");
        assert!(
            vocabulary > 0 && want.len().is_multiple_of(vocabulary),
            "{} logits, rows of {vocabulary}",
            want.len()
        );
        let rows = want.len() / vocabulary;
        assert!(targets.len() <= rows, "{} targets for {rows} rows", targets.len());
        let mut logits = Self {
            rows: rows as u64,
            nonfinite_want: count_nonfinite(want),
            nonfinite_got: count_nonfinite(got),
            targets: targets.len() as u64,
            ..Self::default()
        };
        if logits.nonfinite() == (0, 0) {
            let (mut x, mut y) = (Row::default(), Row::default());
            let rows = want.chunks_exact(vocabulary).zip(got.chunks_exact(vocabulary));
            for (row, (want, got)) in rows.enumerate() {
                x.read(want);
                y.read(got);
                logits.add(row, &x, &y, targets.get(row).map(|&target| target as usize));
            }
        }
        logits
    }

    fn add(&mut self, row: usize, want: &Row, got: &Row, target: Option<usize>) {
        // Σ p (log p − log q) is never negative, but rounding can give about −1e-16.
        let terms = want.exp.iter().zip(want.shifted.iter().zip(&got.shifted));
        let cross: f64 = terms.map(|(exp, (x, y))| exp * (x - y)).sum();
        let kl = (cross / want.sum - (want.sum.ln() - got.sum.ln())).max(0.0);
        self.kl += kl;
        if kl > self.kl_max {
            (self.kl_max, self.kl_worst) = (kl, row);
        }
        let gap = -want.shifted[got.argmax];
        self.agree += u64::from(gap == 0.0);
        self.flip_gap = self.flip_gap.max(gap);
        if let Some(target) = target {
            self.delta_nats += got.loss(target) - want.loss(target);
        }
    }
}

fn count_nonfinite<X: Number>(logits: &[X]) -> u64 {
    logits.iter().filter(|&&x| !x.into().is_finite()).count() as u64
}

/// Logits of one model at one position.
#[derive(Default)]
pub(in crate::metrics) struct Row {
    /// Logits minus the largest logit, and their exponentials (`exp`).
    shifted: Vec<f64>,
    exp: Vec<f64>,
    /// Sum of `exp`.
    sum: f64,
    /// Index of the token that greedy decoding selects: the first with the largest logit.
    argmax: usize,
}

impl Row {
    pub fn read<X: Number>(&mut self, logits: &[X]) {
        let max;
        (max, self.argmax) = largest(logits);
        self.shifted.clear();
        self.shifted.extend(logits.iter().map(|&x| x.into() - max));
        self.exp.clear();
        self.exp.extend(self.shifted.iter().map(|x| x.exp()));
        self.sum = self.exp.iter().sum();
    }

    /// Returns the negative log-likelihood of a token.
    pub fn loss(&self, token: usize) -> f64 {
        self.sum.ln() - self.shifted[token]
    }
}

/// Returns the largest logit and its first index.
pub(in crate::metrics) fn largest<X: Number>(logits: &[X]) -> (f64, usize) {
    let mut best = (f64::NEG_INFINITY, 0);
    for (index, &x) in logits.iter().enumerate() {
        if x.into() > best.0 {
            best = (x.into(), index);
        }
    }
    best
}
