//! Scales of charts.

use ulplab::report::chart::Scale;

fn labels(values: [f64; 2], log: bool) -> Vec<String> {
    let scale = Scale::over(values.into_iter(), log).expect("finite values");
    scale.ticks().into_iter().map(|(_, label)| label).collect()
}

#[test]
fn ticks_are_round_and_few() {
    assert_eq!(labels([0.0, 1.0], false), ["0", "0.2", "0.4", "0.6", "0.8", "1"]);
    assert_eq!(labels([0.001, 1.0], true), ["0.001", "0.01", "0.1", "1"]);
    assert_eq!(labels([0.01, 0.2], true), ["0.01", "0.03", "0.1"]);
    assert_eq!(
        labels([1e-9, 1.0], true),
        ["1e-8", "1e-6", "1e-4", "0.01", "1"].map(String::from)
    );
    for (low, high) in [
        (0.5, 0.5),
        (1e-12, 2e-12),
        (368.0, 1024.0),
        (0.98, 1.0),
        (0.011, 0.012),
        (1e-300, 1e300),
    ] {
        for log in [false, true] {
            let ticks = labels([low, high], log);
            assert!((2..=12).contains(&ticks.len()), "{low}..{high} log {log}: {ticks:?}");
        }
    }
}

#[test]
fn what_cannot_be_drawn_is_left_out() {
    assert!(Scale::over([f64::NAN, f64::INFINITY].into_iter(), false).is_none());
    assert!(Scale::over([0.0, -1.0].into_iter(), true).is_none());
    let scale = Scale::over([f64::NAN, 1.0, 3.0].into_iter(), false)
        .expect("two values")
        .between(100.0, 0.0);
    assert!((scale.at(2.0) - 50.0).abs() < 1e-9 && scale.at(99.0) == 0.0);
}
