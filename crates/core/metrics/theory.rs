//! Theoretical values of measured metrics, and the differences from them.

use super::nsr::nsr;
use super::round_trip::{rho, trip};
use super::{Better, COSINE, Eval, Metric, Pair, Show, Threshold};

/// NSR of a float with this many mantissa bits, for log-uniform significands without overflow and underflow: 2^(−2M) ln 2 /
/// 18, which is an SQNR of 6.02 M + 14.14 dB.
///
/// Derivation: the error is uniform over a unit in the last place u = 2^(e−M) and has the variance u²/12; the mean of x² in
/// a binade is ∫ x² dx/x / ln 2 = 3/2 · 4^e / ln 2.
pub fn float_nsr(mantissa_bits: u32) -> f64 {
    0.25f64.powi(mantissa_bits as i32) * std::f64::consts::LN_2 / 18.0
}

/// The SQNR that theory expects.
pub const SQNR_THEORY: Metric = trip(
    "sqnr_theory",
    "SQNR in theory: 6.02 M + 14.14 dB for floats with M mantissa bits; noise of step²/12 for integers",
    "dB",
    Better::Higher,
    Show::Decibels,
    |trip| Some(-10.0 * trip.theory_nsr?.log10()),
);

pub const SQNR_EXCESS: Metric = trip(
    "sqnr_excess",
    "measured SQNR above theory's",
    "dB",
    Better::Higher,
    Show::DecibelsAbove,
    |trip| {
        let theory = trip.theory_nsr?;
        trip.pair.judge(|pair| 10.0 * (theory / nsr(pair)).log10())
    },
);

/// (1 + ρ) / √(1 + 2ρ + NSR): the cosine that follows from the size of the error and its share along x.
pub const COSINE_THEORY: Metric = trip(
    "cosine_theory",
    "cosine that follows from measured rho and NSR: (1 + rho) / sqrt(1 + 2 rho + NSR)",
    "",
    Better::Higher,
    Show::NearOne,
    |trip| trip.pair.judge(cosine),
);

/// The distance of the cosine from its theory.
pub const COSINE_EXCESS: Metric = trip(
    "cosine_excess",
    "difference between the measured cosine and cosine_theory; more than f64 rounding is a bug",
    "",
    Better::Lower,
    Show::Significant,
    |trip| {
        let measured = COSINE.measure(trip.pair)?;
        trip.pair.judge(|pair| (measured - cosine(pair)).abs())
    },
);

fn cosine(pair: &Pair) -> f64 {
    let (rho, nsr) = (rho(pair), nsr(pair));
    (1.0 + rho) / (1.0 + 2.0 * rho + nsr).sqrt()
}

const fn threshold(
    name: &'static str,
    doc: &'static str,
    better: Better,
    show: Show,
    eval: fn(&Threshold) -> Option<f64>,
) -> Metric {
    Metric::new(name, doc, better, show, Eval::Threshold(eval))
}

/// ε, mean over contested rows.
pub const SCORE_ERROR: Metric = threshold(
    "score_error",
    "standard deviation of the scores' error over that of the scores, mean over rows",
    Better::Lower,
    Show::Significant,
    |threshold| threshold.judge(|threshold| Some(threshold.error / threshold.rows as f64)),
);

/// 1 − φ(z) ε / (√(2π) p) with z = Φ⁻¹(1 − p), for each row's own ε and kept share p; mean over contested rows.
pub const RECALL_THEORY: Metric = threshold(
    "recall_theory",
    "recall of normal scores with an independent error of the measured size, to first order",
    Better::Higher,
    Show::Share,
    |threshold| threshold.judge(|threshold| Some(threshold.expected / threshold.rows as f64)),
);

pub const RECALL_EXCESS: Metric = threshold(
    "recall_excess",
    "measured recall above theory's",
    Better::Higher,
    Show::Signed,
    |threshold| threshold.judge(|threshold| Some(threshold.recall? - threshold.expected / threshold.rows as f64)),
);
