use super::{Pair, Ulps};

// The number of representable numbers between two elements: defined only if both tensors have the same floating-point type.
// The two zeros count as one number.
metrics! {
    ULP_P50 "ulp_p50" "ulp" Lower Count [0.0, COUNT] Pair(|pair| quantile(pair, |ulps| ulps.p50));
        "median distance in units in the last place"

    ULP_P99 "ulp_p99" "ulp" Lower Count [0.0, COUNT] Pair(|pair| quantile(pair, |ulps| ulps.p99));
        "99th percentile of the distance in units in the last place"

    ULP_MAX "ulp_max" "ulp" Lower Count [0.0, COUNT] Pair(|pair| quantile(pair, |ulps| ulps.max));
        "largest distance in units in the last place"
}

fn quantile(pair: &Pair, select: fn(&Ulps) -> u64) -> Option<f64> {
    match (pair.finite(), &pair.ulps) {
        (false, _) => Some(f64::NAN),
        (true, ulps) => ulps.as_ref().map(|ulps| select(ulps) as f64),
    }
}
