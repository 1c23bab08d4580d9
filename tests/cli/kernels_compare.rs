//! Kernels compared in pairs of runs.

use ulplab::commands::kernels::compare::Comparison;

#[test]
fn ratios_are_of_pairs() {
    // Clocks that drift by a half between pairs leave the ratio as it is.
    let pairs: Vec<[f64; 2]> = (0..30)
        .map(|at| [1.0, 1.02].map(|us| us * (1.0 + f64::from(at) / 60.0)))
        .collect();
    let measured = Comparison::new(String::new(), [&"a".to_string(), &"b".to_string()], &pairs);
    assert!((measured.ratio - 1.02).abs() < 1e-12);
    assert!(measured.interval[1] - measured.interval[0] < 1e-12);
}
