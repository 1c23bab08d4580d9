//! Several draws of one cell.

use ulplab::metrics::{BOUND_RATIO, Metric, VIOLATIONS};
use ulplab::record::Phase::Local;
use ulplab::record::Record;
use ulplab::studies::kernels::draws::{DRAWS, Drawn};

fn record(site: &str, metric: &Metric, value: f64) -> Record {
    Record {
        site: site.into(),
        metric: metric.name.into(),
        value,
        n: 10,
        ..Record::blank("op.v/local/case", "op.v", Local, "case")
    }
}

#[test]
fn the_worst_of_all_draws_stands_and_wrong_ones_are_counted() {
    let mut drawn = Drawn::new(4);
    for (seed, wrong, ratio) in [(7, 0.0, 0.2), (8, 3.0, 1.5), (9, 0.0, 0.4), (10, f64::NAN, 0.1)] {
        let records = vec![record("y", &VIOLATIONS, wrong), record("y", &BOUND_RATIO, ratio)];
        drawn.add(seed, records).unwrap();
    }
    let records = drawn.records();
    let [wrong, ratio, draws] = &records[..] else {
        panic!("{records:?}")
    };
    assert!(wrong.value.is_nan() && wrong.n == 40);
    assert_eq!((ratio.value, ratio.n), (1.5, 40));
    assert_eq!((draws.site.as_str(), draws.value, draws.n), (DRAWS, 2.0, 4));
    let message = &draws.failure.as_ref().unwrap().message;
    assert_eq!(message, "2 of 4 draws are wrong, the first with seed 8");
}

#[test]
fn two_judgements_of_an_output_stay_two() {
    let two = |[first, second]: [f64; 2]| vec![record("y", &VIOLATIONS, first), record("y", &VIOLATIONS, second)];
    let drawn = |draws: &[[f64; 2]]| {
        let mut drawn = Drawn::default();
        for (seed, values) in (1..).zip(draws) {
            drawn.add(seed, two(*values)).unwrap();
        }
        drawn.records()
    };
    assert_eq!(drawn(&[[0.0, 2.0]]), two([0.0, 2.0]), "one draw is left as it is");
    let records = drawn(&[[0.0, 2.0], [1.0, 0.0]]);
    let values: Vec<_> = records
        .iter()
        .map(|record| (record.site.as_str(), record.value, record.n))
        .collect();
    assert_eq!(values, [("y", 1.0, 20), ("y", 2.0, 20), (DRAWS, 2.0, 2)]);
}
