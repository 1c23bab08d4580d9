//! Intervals of medians.

use ulplab::statistics::{half_interval, outside};

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
