//! Metrics: measures of the distance between a candidate and its reference. Each file has one metric, or a family of metrics with
//! a common definition.
//!
//! One pass over the data gathers sums and counts ([`Pair`], [`Logits`], [`Choice`]); metrics are formulas of these numbers. To
//! add a metric, write a file with `metrics!` and a line in [`METRICS`].

/// Declares metrics. An entry is: constant, name, unit, better direction, number format in reports, range, kind of evidence with
/// a formula; description.
macro_rules! metrics {
    ($(
        $(#[$more:meta])*
        $metric:ident $name:literal $unit:literal $better:ident $show:ident $range:tt
            $evidence:ident $(($formula:expr))?;
        $doc:literal
    )*) => {$(
        #[doc = $doc]
        #[doc = ""]
        $(#[$more])*
        pub const $metric: $crate::metrics::Metric = $crate::metrics::Metric {
            name: $name,
            doc: $doc,
            unit: $unit,
            better: $crate::metrics::Better::$better,
            show: $crate::metrics::Show::$show,
            range: {
                #[allow(unused_imports, reason = "some ranges are numbers")]
                use $crate::metrics::range::*;
                $range
            },
            eval: {
                #[allow(unused_imports, reason = "some formulas have a value in any case")]
                use $crate::metrics::Evidence as _;
                $crate::metrics::Eval::$evidence $(($formula))?
            },
        };
    )*};
}

mod bound;
mod cosine;
mod decisions;
mod evidence;
pub mod flips;
mod growth;
mod history;
mod kernel;
mod kl;
pub mod nats;
mod nsr;
pub(crate) mod range;
mod recall;
mod round_trip;
mod theory;
mod top1;
mod ulp;
mod weights;

pub use bound::Bound;
pub use cosine::cosine_distance;
pub use evidence::{
    Bits, Choice, Decided, Decisions, Eval, Evidence, Logits, Pair, RoundTrip, Threshold, Ulps, Worst, ordered, unravel,
};
pub use growth::{Gain, Growth};
pub use history::History;
pub use kl::divergence;
pub use theory::float_nsr;
pub use ulp::most_apart;

use crate::error::{Error, Result, did_you_mean};

/// A number that measures how well a candidate agrees with its reference.
#[derive(Debug)]
pub struct Metric {
    /// Name in experiment files and reports, e.g. `relative_l2`.
    pub name: &'static str,
    /// A one-line description.
    pub doc: &'static str,
    /// The unit; empty for pure numbers.
    pub unit: &'static str,
    /// Direction in which values are better.
    pub better: Better,
    /// The number format in reports.
    pub show: Show,
    /// Smallest and largest value that the metric can take, apart from NaN and infinities.
    pub range: [f64; 2],
    /// The metric's formula, and the kind of evidence (sums and counts over the data) that the formula reads.
    pub eval: Eval,
}

/// Metrics with the same name are equal; names in [`METRICS`] are unique.
impl PartialEq for Metric {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

/// Direction in which values are better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// Larger values are better, as for a cosine.
    Higher,
    /// Smaller values are better, as for an error.
    Lower,
}

/// Number format of a metric in reports; `report::number` implements it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Show {
    /// For metrics whose best value is 1: all leading nines and two more digits.
    NearOne,
    /// A fraction: three or four decimals; shown as 1 only if it is exactly 1.
    Share,
    /// A ratio in dB: two decimals.
    Decibels,
    /// A difference of ratios in dB: sign and two decimals.
    DecibelsAbove,
    /// A value of either sign: sign and three significant digits.
    Signed,
    /// An exponent: two decimals.
    Exponent,
    /// A count, or the mean of counts: a whole number, or one decimal.
    Count,
    /// A time in microseconds or a size in megabytes: a whole number, or one decimal.
    Tenths,
    /// Three significant digits.
    #[default]
    Significant,
}

impl Show {
    /// Returns the number format of a metric. A metric that is not in [`METRICS`], from another version of ulplab, gets three
    /// significant digits.
    pub fn of(metric: &str) -> Self {
        let found = METRICS.iter().find(|known| known.name == metric);
        found.map_or_else(Self::default, |known| known.show)
    }
}

/// Exports the metrics of each module, and lists all metrics in `METRICS`.
macro_rules! modules {
    ($($module:ident: $($metric:ident)+;)+) => {
        $(pub use $module::{$($metric),+};)+

        /// All metrics.
        pub const METRICS: &[&Metric] = &[$($(&$metric),+),+];
    };
}
modules! {
    cosine: COSINE;
    nsr: DIFF RELATIVE_L2 NSR SQNR;
    ulp: MAX_ABS ULP_P50 ULP_P99 ULP_MAX NONFINITE;
    growth: GAIN GROWTH;
    kl: KL KL_MAX;
    top1: TOP1 FLIP_GAP;
    flips: LOST GAINED NET_LOST;
    nats: NATS NATS_PER_BYTE PERPLEXITY DELTA_NATS DELTA_NATS_PER_BYTE;
    recall: RECALL RECALL_MIN RECALL_MASS AGREEMENT;
    decisions: GATE_AGREEMENT BANK_AGREEMENT FLIP_MARGIN FLIP_MARGIN_MAX FLIPS_OUTSIDE;
    history: SAME_HISTORY LANE_DISTANCE;
    round_trip: RHO ROW_SQNR_P05 ROW_SQNR_P50 SQNR_GAIN ZEROED STORED_BITS SQNR_BITS;
    theory: SQNR_THEORY SQNR_EXCESS COSINE_THEORY COSINE_EXCESS SCORE_ERROR RECALL_THEORY RECALL_EXCESS;
    weights: WEIGHT_BITS WEIGHT_MEGABYTES;
    kernel: VIOLATIONS UNEQUAL BOUND_RATIO US_COLD US_COLD_P10 US_COLD_P90 US_HOT US_GRAPH US_ROTATED US_CACHED
        MEGABYTES OF_COPY OF_COPY_ROTATED OF_MATMUL US_CLAIMED US_LIMIT OF_LIMIT US_PEER TIMES_PEER;
}

impl Metric {
    /// Returns the metric called `name`. The error is a usage error, and suggests the most similar name.
    pub fn find(name: &str) -> Result<&'static Self> {
        let found = METRICS.iter().copied().find(|metric| metric.name == name);
        found.ok_or_else(|| {
            let hint = did_you_mean(name, METRICS.iter().map(|metric| metric.name));
            Error::Usage(format!("no metric '{name}'{hint}"))
        })
    }

    /// Returns the metric's value; `None` if the metric is not computed from this kind of evidence (e.g. [`Pair`]), or is
    /// undefined for these data.
    pub fn measure<E: Evidence>(&self, evidence: &E) -> Option<f64> {
        E::formula(self.eval).and_then(|formula| formula(evidence))
    }
}

/// Returns all metrics that can be computed from `evidence`, with their values, in the order of [`METRICS`].
pub fn measure_all<E: Evidence>(evidence: &E) -> impl Iterator<Item = (&'static Metric, f64)> {
    let metrics = METRICS.iter().copied();
    metrics.filter_map(|metric| metric.measure(evidence).map(|value| (metric, value)))
}

/// Returns the median; `None` for an empty list. For an even number of values, it is the larger of the two middle values.
pub fn upper_median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}
