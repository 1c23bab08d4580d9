//! Records as lines of text.

use ulplab::record::{Failure, Phase, Record, Worst};
use ulplab::run::lines::{read, write};

#[test]
fn records_survive() {
    let record = |metric: &str, value: f64, worst: Option<Worst>| Record {
        cell: "a/local/b@0".into(),
        recipe: "a".into(),
        phase: Phase::Local,
        window: "b@0".into(),
        layer: Some(3),
        site: "output".into(),
        metric: metric.into(),
        value,
        n: 7,
        nonfinite_want: 0,
        nonfinite_got: 2,
        worst,
        failure: None,
    };
    let worst = Worst {
        index: vec![1, 2],
        want: f64::NEG_INFINITY,
        got: 0.1,
    };
    let failure = Failure {
        message: "y[1, 2]: want -Infinity, got 0.1".into(),
        worst: Some(worst.clone()),
        bound: Some(0.0),
        why: "bits are defined".into(),
        pattern: String::new(),
    };
    let records = [
        Record {
            failure: Some(Box::new(failure)),
            ..record("sqnr", f64::INFINITY, None)
        },
        record("cosine", 0.1 + 0.2, None),
        record("max_abs", 5e-324, Some(worst)),
        Record {
            layer: None,
            ..record("sqnr", -0.0, None)
        },
        Record {
            layer: None,
            ..record("sqnr", 2.0, None)
        },
    ];
    let mut text = Vec::new();
    write(&records, &mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    assert_eq!(text.lines().count(), 3);
    assert_eq!(read(&text).unwrap(), records);

    let mut text = Vec::new();
    write(&[record("sqnr", f64::NAN, None)], &mut text).unwrap();
    assert!(read(&String::from_utf8(text).unwrap()).unwrap()[0].value.is_nan());
    assert!(read("{\"cell\": 1}").unwrap_err().starts_with("line 1: "));
}
