use super::nsr::nsr;
use super::{Better, Eval, Metric, Pair, RoundTrip, Show};

/// A metric of a round trip whose elements are all finite.
pub(super) const fn trip(
    name: &'static str,
    doc: &'static str,
    unit: &'static str,
    better: Better,
    show: Show,
    eval: fn(&RoundTrip) -> Option<f64>,
) -> Metric {
    Metric {
        unit,
        ..Metric::new(name, doc, better, show, Eval::RoundTrip(eval))
    }
}

/// ⟨x, y − x⟩ / ‖x‖²: the part of the error that only shrinks (negative) or enlarges x. 0 for noise that is independent of
/// x.
pub const RHO: Metric = trip(
    "rho",
    "share of the signal that the error removes (negative) or adds",
    "",
    Better::Higher,
    Show::Signed,
    |trip| trip.pair.judge(rho),
);

/// From ‖y‖² = ‖x‖² + 2⟨x, e⟩ + ‖e‖².
pub(super) fn rho(pair: &Pair) -> f64 {
    if pair.ee == 0.0 {
        0.0
    } else {
        (pair.yy - pair.xx - pair.ee) / (2.0 * pair.xx)
    }
}

/// SQNR at the 5th percentile of rows.
pub const ROW_SQNR_P05: Metric = trip(
    "row_sqnr_p05",
    "5th percentile over rows of the signal-to-quantization-noise ratio",
    "dB",
    Better::Higher,
    Show::Decibels,
    |trip| finite(trip, |trip| trip.row_sqnr(0.05)),
);

/// SQNR of the median row. Unlike `sqnr`, it is not dominated by the few rows with most energy.
pub const ROW_SQNR_P50: Metric = trip(
    "row_sqnr_p50",
    "signal-to-quantization-noise ratio of the median row",
    "dB",
    Better::Higher,
    Show::Decibels,
    |trip| finite(trip, |trip| trip.row_sqnr(0.5)),
);

/// SQNR above that of another format on the same numbers. Its confidence interval is narrower than the difference of two
/// intervals.
pub const SQNR_GAIN: Metric = trip(
    "sqnr_gain",
    "SQNR minus that of the recipe in `against`, on the same numbers",
    "dB",
    Better::Higher,
    Show::DecibelsAbove,
    |trip| {
        let rival = trip.rival_nsr?;
        trip.pair.judge(|pair| 10.0 * (rival / nsr(pair)).log10())
    },
);

/// Share of the numbers other than zero that came back as zero.
pub const ZEROED: Metric = trip(
    "zeroed",
    "share of numbers other than zero that came back as zero",
    "",
    Better::Lower,
    Show::Significant,
    |trip| finite(trip, |trip| Some(trip.zeroed as f64 / trip.nonzero.max(1) as f64)),
);

/// Bits per element in storage, scales included, scales per tensor excluded.
pub const STORED_BITS: Metric = trip(
    "stored_bits",
    "stored bits per element, including its share of the scales",
    "bit",
    Better::Lower,
    Show::Significant,
    |trip| Some(trip.stored_bits),
);

/// SQNR / 6.02 dB: the bits of a uniform quantizer with the same SQNR on a signal that fills its range.
pub const SQNR_BITS: Metric = trip(
    "sqnr_bits",
    "signal-to-quantization-noise ratio in bits of 6.02 dB",
    "bit",
    Better::Higher,
    Show::Significant,
    |trip| trip.pair.judge(|pair| -nsr(pair).log2() / 2.0),
);

fn finite(trip: &RoundTrip, metric: impl FnOnce(&RoundTrip) -> Option<f64>) -> Option<f64> {
    if trip.pair.finite() {
        metric(trip)
    } else {
        Some(f64::NAN)
    }
}
