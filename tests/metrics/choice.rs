use proptest::prelude::*;
use ulplab::metrics::{Choice, METRICS};

use super::{assert_close, value};

const NAMES: [&str; 4] = ["recall", "recall_min", "recall_mass", "agreement"];

/// One row of equal masses: recall and agreement.
fn row(want: &[i32], got: &[i32], scores: &[f32]) -> (f64, f64) {
    let mass = vec![1.0; want.len()];
    let choice = Choice::new(want, got, want.len(), scores, scores.len(), Some(&mass));
    let [recall, min, mass, agreement] = NAMES.map(|name| value(name, &choice).unwrap());
    assert_eq!(recall, min, "one row");
    assert_close(recall, mass, 1e-15);
    (recall, agreement)
}

#[test]
fn recall_of_a_row() {
    let scores = [9.0, 8.0, 7.0, 6.0, 5.0];
    assert_eq!(row(&[0, 1], &[1, 0], &scores), (1.0, 1.0), "order does not count");
    assert_eq!(row(&[0, 1], &[0, 2], &scores), (0.5, 0.0));
    assert_eq!(row(&[0, 1], &[3, 4], &scores), (0.0, 0.0));
    assert_eq!(row(&[0, 1], &[0, -1], &scores), (0.5, 0.0), "too few");
    assert_eq!(row(&[0, 1], &[0, 0], &scores), (0.5, 0.0), "twice is once");
    assert_eq!(row(&[0, 1], &[0, 77], &scores), (0.5, 0.0), "no such candidate");
}

#[test]
fn ties_at_the_threshold_are_interchangeable() {
    let scores = [9.0, 5.0, 5.0, 5.0, 1.0];
    assert_eq!(row(&[0, 1, 2], &[0, 3, 1], &scores), (1.0, 1.0));
    assert_eq!(row(&[0, 1, 2], &[0, 3, 4], &scores), (2.0 / 3.0, 0.0));
    // The tied item replaces another tied one, never the best.
    assert_eq!(row(&[0, 1, 2], &[1, 2, 3], &scores), (2.0 / 3.0, 0.0));
    // A tie above the threshold is none: both are selected.
    assert_eq!(row(&[0, 1], &[0, 2], &[5.0, 5.0, 4.0]), (0.5, 0.0));
    // The tied replacement named twice counts once.
    assert_eq!(row(&[0, 1, 2], &[0, 3, 3], &scores), (2.0 / 3.0, 0.0));
}

#[test]
fn only_contested_rows_count() {
    let inf = f32::NEG_INFINITY;
    let scores = [
        [1.0, inf, inf, inf],
        [2.0, 1.0, inf, inf],
        [3.0, 2.0, 1.0, inf],
        [4.0, 3.0, 2.0, 1.0],
    ]
    .concat();
    let want = [[0, -1], [0, 1], [0, 1], [0, 1]].concat();
    let got = [[3, -1], [2, 3], [0, 1], [0, 2]].concat();
    let choice = Choice::new(&want, &got, 2, &scores, 4, None);
    assert_eq!((choice.rows, choice.worst), (2, Some(3)));
    assert_eq!(
        NAMES.map(|name| value(name, &choice)),
        [Some(0.75), Some(0.5), None, Some(0.5)]
    );
    let none = Choice::new(&want[..4], &got[..4], 2, &scores[..8], 4, None);
    assert_eq!(none.rows, 0);
    assert!(METRICS.iter().all(|metric| metric.measure(&none).is_none()));
}

#[test]
fn mass_weighs_what_was_lost() {
    let mass = |got: &[i32], scores: &[f32]| {
        value(
            "recall_mass",
            &Choice::new(&[0, 1, 2], got, 3, scores, 5, Some(&[0.7, 0.2, 0.1])),
        )
        .unwrap()
    };
    let distinct = [9.0, 8.0, 7.0, 6.0, 5.0];
    assert_close(mass(&[0, 1, 3], &distinct), 0.9, 1e-7);
    assert_close(mass(&[3, 1, 2], &distinct), 0.3, 1e-7);
    let tied = [9.0, 5.0, 5.0, 5.0, 5.0];
    assert_eq!(mass(&[0, 3, 4], &tied), 1.0);
    // Two tied items are missing and one came for them: half of their mass.
    assert_close(mass(&[0, 3, -1], &tied), 0.7 + 0.15, 1e-7);
    assert_eq!(
        value("recall_mass", &Choice::new(&[0], &[1], 1, &[2.0, 1.0], 2, Some(&[0.0]))),
        Some(1.0)
    );
}

#[test]
fn a_reference_that_is_not_a_number_makes_every_metric_nan() {
    for scores in [[1.0, f32::NAN, 0.0], [1.0, f32::INFINITY, 0.0]] {
        let choice = Choice::new(&[0], &[0], 1, &scores, 3, Some(&[1.0]));
        assert_eq!(choice.nonfinite, 1);
        assert!(NAMES.iter().all(|name| value(name, &choice).unwrap().is_nan()));
    }
    let padded = Choice::new(&[0, -1], &[0, -1], 2, &[1.0f32, 0.0, -1.0], 3, Some(&[1.0, f32::NAN]));
    assert_eq!(padded.nonfinite, 0, "what is not selected has no mass");
    assert_eq!(
        Choice::new(&[0, 1], &[0, 1], 2, &[1.0f32, 0.0, -1.0], 3, Some(&[1.0, f32::NAN])).nonfinite,
        1
    );
}

/// The k best by score, the lower index first among equals.
fn top(scores: &[f32], k: usize) -> Vec<i32> {
    let mut order: Vec<i32> = (0..scores.len() as i32).collect();
    order.sort_by(|&a, &b| scores[b as usize].total_cmp(&scores[a as usize]).then(a.cmp(&b)));
    order.truncate(k);
    order
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whoever picks k of the best is right, however ties are broken: relabel the candidates, select, label back.
    #[test]
    fn recall_does_not_depend_on_how_ties_are_broken(
        levels in prop::collection::vec(0..4u8, 3..40),
        k in 1..12usize,
        order in Just((0..40usize).collect::<Vec<_>>()).prop_shuffle(),
    ) {
        prop_assume!(levels.len() > k);
        let scores: Vec<f32> = levels.iter().map(|&level| f32::from(level)).collect();
        let order: Vec<usize> = order.into_iter().filter(|&i| i < scores.len()).collect();
        let relabelled: Vec<f32> = order.iter().map(|&i| scores[i]).collect();
        let got: Vec<i32> = top(&relabelled, k).iter().map(|&i| order[i as usize] as i32).collect();
        let (recall, agreement) = row(&top(&scores, k), &got, &scores);
        prop_assert_eq!((recall, agreement), (1.0, 1.0));
    }

    /// Without ties, recall is the size of the intersection.
    #[test]
    fn agrees_with_sets(got in Just((0..20).collect::<Vec<i32>>()).prop_shuffle(), k in 1..19usize) {
        let scores: Vec<f32> = (0..20).map(|i| 20.0 - i as f32).collect();
        let want = top(&scores, k);
        let common = got[..k].iter().filter(|index| want.contains(index)).count();
        let (recall, agreement) = row(&want, &got[..k], &scores);
        prop_assert_eq!(recall, common as f64 / k as f64);
        prop_assert_eq!(agreement, f64::from(u8::from(common == k)));
    }
}
