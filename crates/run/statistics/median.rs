//! Medians and their confidence intervals, from order statistics alone, for any distribution.

/// Returns the number of values to leave out at each end of `n` sorted values. The remaining values span a confidence interval of
/// the median. With at least six values, the confidence of the interval is at least 95 %: by the binomial distribution with
/// probability ½, the median lies beyond each end with a probability of at most 2.5 %.
pub fn outside(n: usize) -> usize {
    let (mut below, mut term) = (0.0, 0.5f64.powi(n as i32));
    for count in 0..n {
        below += term;
        if below > 0.025 {
            return count.saturating_sub(1);
        }
        term *= (n - count) as f64 / (count + 1) as f64;
    }
    0
}

/// Returns half the width of the 95 % interval of the median, relative to the median; NaN without values.
pub fn half_interval(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len();
    if n == 0 {
        return f64::NAN;
    }
    let outside = outside(n);
    (sorted[n - 1 - outside] - sorted[outside]) / 2.0 / f64::midpoint(sorted[(n - 1) / 2], sorted[n / 2])
}
