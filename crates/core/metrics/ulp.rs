//! Errors of single elements.

use super::{Evidence, Pair, Ulps, ordered};

metrics! {
    /// max |x − y|. As a maximum, this metric tends to grow with the number of elements.
    MAX_ABS "max_abs" "" Lower Significant [0.0, DIFFERENCE] Pair(|pair| pair.judge(|pair| pair.max_abs));
        "largest absolute error of an element"

    // The distance is the number of steps between representable numbers from one element to the other. It is defined only if both
    // tensors have the same floating-point type. Both zeros count as one number.
    ULP_P50 "ulp_p50" "ulp" Lower Count [0.0, COUNT] Pair(|pair| quantile(pair, |ulps| ulps.p50));
        "median distance in units in the last place"

    ULP_P99 "ulp_p99" "ulp" Lower Count [0.0, COUNT] Pair(|pair| quantile(pair, |ulps| ulps.p99));
        "99th percentile of the distance in units in the last place"

    ULP_MAX "ulp_max" "ulp" Lower Count [0.0, COUNT] Pair(|pair| quantile(pair, |ulps| ulps.max));
        "largest distance in units in the last place"

    /// If a tensor has NaN or infinite elements, all other metrics of two tensors are NaN.
    NONFINITE "nonfinite" "" Lower Count [0.0, COUNT]
        Pair(|pair| Some((pair.nonfinite_want + pair.nonfinite_got) as f64));
        "number of NaN and infinite elements in both tensors"
}

fn quantile(pair: &Pair, select: fn(&Ulps) -> u64) -> Option<f64> {
    pair.judge(|pair| pair.ulps.as_ref().map(|ulps| select(ulps) as f64))
}

/// Returns the largest distance in ulp between elements of `got` and `want` at the same index, in a floating-point type of
/// `width` bits. The iterators give the code and the value of each element. The distance is infinite if the values differ and one
/// of them is not finite; two NaN match if `equal_nan`.
pub fn most_apart(
    width: u32,
    got: impl Iterator<Item = (u64, f64)>,
    want: impl Iterator<Item = (u64, f64)>,
    equal_nan: bool,
) -> f64 {
    let apart = got.zip(want).map(|((got_code, got), (want_code, want))| {
        match got == want || equal_nan && got.is_nan() && want.is_nan() {
            true => 0.0,
            false if !(got.is_finite() && want.is_finite()) => f64::INFINITY,
            false => ordered(got_code, width).abs_diff(ordered(want_code, width)) as f64,
        }
    });
    apart.fold(0.0, f64::max)
}
