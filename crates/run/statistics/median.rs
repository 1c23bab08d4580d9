//! Medians, and how well they are known: by order statistics alone, for any distribution.

/// How many of `n` sorted values lie outside, at each end, of an interval that contains the median of their distribution
/// with a probability of at least 95 %: the binomial distribution of ½ has 2.5 % below, at most.
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

/// Half of the 95 % interval of the median of values, over the median; NaN without values.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_of_medians_are_those_of_the_tables() {
        // Ranks of the ends, from 1, of the sign test's 95 % interval.
        for (n, rank) in [(6, 1), (10, 2), (20, 6), (30, 10), (40, 14), (50, 18), (100, 40)] {
            assert_eq!(outside(n) + 1, rank, "{n}");
        }
    }

    #[test]
    fn half_of_the_interval_is_relative_to_the_median() {
        let values: Vec<f64> = (0..20).rev().map(|at| 100.0 + f64::from(at)).collect();
        // From rank 6 to rank 15, about 109.5.
        assert!((half_interval(&values) - 4.5 / 109.5).abs() < 1e-12);
        assert_eq!(half_interval(&[3.0; 7]), 0.0);
        assert!(half_interval(&[]).is_nan());
    }
}
