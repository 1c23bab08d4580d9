//! The exponent of errors that grow with steps.

use ulplab::metrics::{Growth, Metric};

fn growth(points: &[[f64; 2]]) -> Option<f64> {
    let growth = Growth {
        points: points.to_vec(),
    };
    Metric::find("growth").unwrap().measure(&growth)
}

#[test]
fn power_laws_have_their_exponent() {
    for exponent in [-0.3, 0.0, 0.5, 1.0] {
        for checkpoints in [2, 11] {
            let points: Vec<[f64; 2]> = (0..checkpoints)
                .map(|i| 64.0 * 2f64.powi(i))
                .map(|steps| [steps, 3e-6 * steps.powf(exponent)])
                .collect();
            let found = growth(&points).unwrap();
            assert!((found - exponent).abs() <= 1e-12, "{found}, not {exponent}");
        }
    }
}

/// A point off the line counts as much as in least squares: ln 2 at the end of three changes the slope by ln 2 / (2 ln 2).
#[test]
fn all_points_count() {
    let found = growth(&[[64.0, 0.1], [128.0, 0.1], [256.0, 0.2]]).unwrap();
    assert!((found - 0.5).abs() <= 1e-12, "{found}");
}

#[test]
fn errors_with_nowhere_to_grow_do_not_count() {
    let found = growth(&[[64.0, 0.2], [128.0, 0.4], [256.0, 0.8], [512.0, 1.0]]).unwrap();
    assert!((found - 1.0).abs() <= 1e-12, "{found}");
    assert_eq!(growth(&[[64.0, 0.4], [128.0, 0.6], [256.0, 0.7]]), None);
}

#[test]
fn what_is_no_power_law_has_none() {
    assert!(
        growth(&[[64.0, 0.1], [128.0, f64::NAN], [256.0, 0.0]])
            .unwrap()
            .is_nan()
    );
    assert!(growth(&[[64.0, 0.1], [128.0, f64::INFINITY]]).unwrap().is_nan());
    assert_eq!(growth(&[[64.0, 0.1], [128.0, 0.0]]), None);
    assert_eq!(growth(&[[64.0, 0.1]]), None);
}
