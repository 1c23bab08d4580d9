//! Theoretical values of measured metrics, and their differences from the measured values.

use super::nsr::nsr;
use super::round_trip::rho;
use super::{COSINE, Pair};

/// Returns the noise-to-signal ratio (NSR) of rounding to a float with M = `mantissa_bits`, for log-uniform significands without
/// overflow and underflow: 2^(−2M) ln 2 / 18, which is an SQNR of 6.02 M + 14.14 dB.
///
/// Derivation for x in the binade from 2^e to 2^(e+1): the error is uniform over a unit in the last place u = 2^(e−M) and has the
/// variance u²/12; the mean of x² is ∫ x² dx/x / ln 2 = 3/2 · 4^e / ln 2.
pub fn float_nsr(mantissa_bits: u32) -> f64 {
    0.25f64.powi(mantissa_bits as i32) * std::f64::consts::LN_2 / 18.0
}

metrics! {
    SQNR_THEORY "sqnr_theory" "dB" Higher Decibels [-DECIBELS, DECIBELS]
        RoundTrip(|trip| Some(-10.0 * trip.theory_nsr?.log10()));
        "SQNR in theory: 6.02 M + 14.14 dB for floats with M mantissa bits; noise of step²/12 for integers"

    SQNR_EXCESS "sqnr_excess" "dB" Higher DecibelsAbove [-2.0 * DECIBELS, 2.0 * DECIBELS] RoundTrip(|trip| {
        let theory = trip.theory_nsr?;
        trip.pair.judge(|pair| 10.0 * (theory / nsr(pair)).log10())
    });
        "measured SQNR above theory's"

    COSINE_THEORY "cosine_theory" "" Higher NearOne [-1.0, 1.0] RoundTrip(|trip| trip.pair.judge(cosine));
        "cosine that follows from measured rho and NSR: (1 + rho) / sqrt(1 + 2 rho + NSR)"

    COSINE_EXCESS "cosine_excess" "" Lower Significant [0.0, 2.0] RoundTrip(|trip| {
        let measured = COSINE.measure(trip.pair)?;
        trip.pair.judge(|pair| (measured - cosine(pair)).abs())
    });
        "difference between the measured cosine and cosine_theory; more than f64 rounding is a bug"

    /// Mean over contested rows (more than k items) of ε = σ(error of the scores) / σ(scores).
    SCORE_ERROR "score_error" "" Lower Significant [0.0, RATIO] Threshold(|threshold| threshold.mean(threshold.error));
        "standard deviation of the scores' error over that of the scores, mean over rows"

    /// Expected recall, as a mean over contested rows (more than k items). For a row with score error ε (see [`SCORE_ERROR`]) in
    /// which a fraction p of the items is selected, it is 1 − φ(z) ε / (√(2π) p) with z = Φ⁻¹(1 − p), where φ is the density and
    /// Φ the distribution function of N(0, 1). The formula is a first-order approximation, which may be far below 0.
    RECALL_THEORY "recall_theory" "" Higher Share [-RATIO, 1.0] Threshold(|threshold| threshold.mean(threshold.expected));
        "recall of normal scores with an independent error of the measured size, to first order"

    RECALL_EXCESS "recall_excess" "" Higher Signed [-1.0, RATIO] Threshold(|threshold| {
        threshold.judge(|threshold| Some(threshold.recall? - threshold.expected / threshold.rows as f64))
    });
        "measured recall above theory's"
}

/// Returns the cosine of x and y: (1 + ρ) / √(1 + 2ρ + NSR), where NSR is the relative energy of the error y − x, and ρ is the
/// part of this error along x.
fn cosine(pair: &Pair) -> f64 {
    let (rho, nsr) = (rho(pair), nsr(pair));
    (1.0 + rho) / (1.0 + 2.0 * rho + nsr).sqrt()
}
