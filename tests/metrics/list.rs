use std::collections::HashSet;

use ulplab::metrics::{Better, Bound, METRICS, Metric, Show};

#[test]
fn every_metric_of_the_folder_is_listed_once() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/crates/core/metrics");
    let mut defined = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            // A row of `metrics!` begins with the constant and its quoted name.
            let row = |line: &&str| {
                let (constant, rest) = line.trim_start().split_once(' ').unwrap_or_default();
                rest.starts_with('"') && constant.chars().all(|c| matches!(c, 'A'..='Z' | '0'..='9' | '_'))
            };
            let text = std::fs::read_to_string(path).unwrap();
            defined += text.lines().filter(row).count();
        }
    }
    assert_eq!(METRICS.len(), defined);
    let names: HashSet<_> = METRICS.iter().map(|metric| metric.name).collect();
    assert_eq!(names.len(), METRICS.len());
    assert!(METRICS.iter().all(|metric| !metric.doc.is_empty()));
}

/// All that is measured of a kernel's time can be gated, listed and shown by its own rule.
#[test]
fn times_of_kernels_are_metrics() {
    for (name, show) in [
        ("us_cold", Show::Tenths),
        ("us_rotated", Show::Tenths),
        ("of_copy_rotated", Show::Share),
        ("of_matmul", Show::Share),
    ] {
        assert_eq!(Metric::find(name).unwrap().show, show, "{name}");
    }
    assert_eq!(Show::of("recall_min"), Show::Share);
    assert_eq!(Show::of("not a metric"), Show::Significant);
}

#[test]
fn an_unknown_name_is_told_the_nearest() {
    assert_eq!(Metric::find("sqnr").unwrap().name, "sqnr");
    let error = Metric::find("cosin").unwrap_err().to_string();
    assert_eq!(error, "no metric 'cosin'; did you mean 'cosine'?");
}

#[test]
fn bounds_print_as_they_parse_and_nan_meets_none() {
    for (text, better, number) in [(">= 0.999", Better::Higher, 0.999), ("<= 0.001", Better::Lower, 1e-3)] {
        let bound: Bound = text.parse().unwrap();
        assert_eq!(bound, Bound { better, value: number });
        assert_eq!(bound.to_string(), text);
        assert!(bound.admits(number) && !bound.admits(f64::NAN));
    }
    assert_eq!("<=1e-3".parse::<Bound>(), "  <=  1e-3 ".parse());
    let at_least: Bound = ">=1".parse().unwrap();
    assert!(at_least.admits(1.5) && !at_least.admits(0.5));
    for bad in [
        "",
        "0.9",
        "> 0.9",
        "== 1",
        ">= ",
        ">= x",
        "<= nan",
        ">= inf",
        "<= -inf",
        "<= 1e400",
        ">= 1e-400",
        "<= -0.01e-999",
    ] {
        assert!(bad.parse::<Bound>().is_err(), "{bad}");
    }
    for zero in ["<= 0", "<= -0.0", "<= 0e5", "<= 0.00"] {
        assert_eq!(zero.parse::<Bound>().unwrap().value, 0.0, "{zero}");
    }
}
