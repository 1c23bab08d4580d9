//! The recall that is to be expected of scores with an error.

use ulplab::metrics::{Choice, Threshold};

use super::value;

/// The recall that theory expects of the best of `candidates` scores, whose errors are ε times as far apart as they are.
fn recall(error: f64, candidates: usize) -> f64 {
    let want: Vec<f64> = (0..candidates).map(|at| at as f64).collect();
    let got: Vec<f64> = want.iter().map(|score| score * (1.0 + error)).collect();
    let choice = Choice::new(&[0], &[0], 1, &want, candidates, None);
    value("recall_theory", &Threshold::new(&want, &got, candidates, 1, &choice)).unwrap()
}

/// 0.99 needs ε ≤ 0.0127 where 1 in 16 is kept, and ≤ 0.0100 where 1 in 64 is.
#[test]
fn recall_of_99_percent() {
    assert!((recall(0.0127, 16) - 0.99).abs() < 5e-5);
    assert!((recall(0.0100, 64) - 0.99).abs() < 2e-4);
    assert_eq!(recall(0.0, 4), 1.0);
}
