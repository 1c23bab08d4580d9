use super::nsr::nsr;
use super::{Pair, RoundTrip};

metrics! {
    /// The part of the error along x is ⟨x, y − x⟩ / ‖x‖². A negative part shrinks x, a positive part enlarges x, and it is 0 for
    /// noise that is independent of x.
    RHO "rho" "" Higher Signed [-RATIO, RATIO] RoundTrip(|trip| trip.pair.judge(rho));
        "share of the signal that the error removes (negative) or adds"

    ROW_SQNR_P05 "row_sqnr_p05" "dB" Higher Decibels [-DECIBELS, DECIBELS]
        RoundTrip(|trip| finite(trip, |trip| trip.row_sqnr(0.05)));
        "5th percentile over rows of the signal-to-quantization-noise ratio"

    /// Unlike `sqnr`, this metric is not dominated by the few rows with the most energy.
    ROW_SQNR_P50 "row_sqnr_p50" "dB" Higher Decibels [-DECIBELS, DECIBELS]
        RoundTrip(|trip| finite(trip, |trip| trip.row_sqnr(0.5)));
        "signal-to-quantization-noise ratio of the median row"

    /// The SQNR of a recipe minus the SQNR of another. Both round the same numbers, so the confidence interval of the difference
    /// is narrower than for two independent measurements.
    SQNR_GAIN "sqnr_gain" "dB" Higher DecibelsAbove [-2.0 * DECIBELS, 2.0 * DECIBELS] RoundTrip(|trip| {
        let rival = trip.rival_nsr?;
        trip.pair.judge(|pair| 10.0 * (rival / nsr(pair)).log10())
    });
        "SQNR minus that of the recipe in `against`, on the same numbers"

    ZEROED "zeroed" "" Lower Significant [0.0, 1.0]
        RoundTrip(|trip| finite(trip, |trip| Some(trip.zeroed as f64 / trip.nonzero.max(1) as f64)));
        "share of numbers other than zero that came back as zero"

    /// Scales that a whole tensor shares are not counted.
    STORED_BITS "stored_bits" "bit" Lower Significant [0.0, COUNT] RoundTrip(|trip| Some(trip.stored_bits));
        "stored bits per element, including its share of the scales"

    /// SQNR / 6.02 dB: the bits of a uniform quantizer with the same SQNR on a signal that fills its range.
    SQNR_BITS "sqnr_bits" "bit" Higher Significant [-DECIBELS, DECIBELS]
        RoundTrip(|trip| trip.pair.judge(|pair| -nsr(pair).log2() / 2.0));
        "signal-to-quantization-noise ratio in bits of 6.02 dB"
}

/// Returns ⟨x, e⟩ / ‖x‖² of the error e = y − x, from ‖y‖² = ‖x‖² + 2⟨x, e⟩ + ‖e‖².
pub(super) fn rho(pair: &Pair) -> f64 {
    let along = (pair.yy - pair.xx - pair.ee) / (2.0 * pair.xx);
    if pair.ee == 0.0 { 0.0 } else { along }
}

/// Returns a metric of a round trip; NaN if an element is not finite.
fn finite(trip: &RoundTrip, metric: impl FnOnce(&RoundTrip) -> Option<f64>) -> Option<f64> {
    if trip.pair.finite() {
        metric(trip)
    } else {
        Some(f64::NAN)
    }
}
