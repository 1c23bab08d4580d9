use super::{Better, Eval, Metric, Pair, Show, Ulps};

/// The number of representable numbers between two elements: defined only if both tensors have the same floating-point
/// type. The two zeros count as one number.
const fn ulp(name: &'static str, doc: &'static str, eval: fn(&Pair) -> Option<f64>) -> Metric {
    Metric {
        name,
        doc,
        unit: "ulp",
        better: Better::Lower,
        show: Show::Count,
        eval: Eval::Pair(eval),
    }
}

pub const ULP_P50: Metric = ulp("ulp_p50", "median distance in units in the last place", |pair| {
    quantile(pair, |ulps| ulps.p50)
});

pub const ULP_P99: Metric = ulp(
    "ulp_p99",
    "99th percentile of the distance in units in the last place",
    |pair| quantile(pair, |ulps| ulps.p99),
);

/// The largest distance in units in the last place.
pub const ULP_MAX: Metric = ulp("ulp_max", "largest distance in units in the last place", |pair| {
    quantile(pair, |ulps| ulps.max)
});

fn quantile(pair: &Pair, select: fn(&Ulps) -> u64) -> Option<f64> {
    match (pair.finite(), &pair.ulps) {
        (false, _) => Some(f64::NAN),
        (true, ulps) => ulps.as_ref().map(|ulps| select(ulps) as f64),
    }
}
