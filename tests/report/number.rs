//! Numbers as reports show them.

use ulplab::report::number::{error, interval, near_one, of_metric, of_metric_within, share, signed, tenths, tick};

#[test]
fn nothing_but_one_reads_one() {
    assert_eq!(near_one(1.0), "1");
    assert_eq!(near_one(0.99965), "0.99965");
    assert_eq!(near_one(0.999999), "0.9999990");
    assert_eq!(near_one(1.0 - 4e-9), "1\u{a0}−\u{a0}4e-9");
    assert_eq!(near_one(1.0 + 2f64.powi(-52)), "1\u{a0}+\u{a0}2e-16");
    assert_eq!(near_one(0.5), "0.500");
    assert_eq!(near_one(-1.0), "-1.000");
    assert_eq!(near_one(f64::NAN), "NaN");
    for exponent in 1..=15 {
        for mantissa in [1.0, 1.4, 5.0, 9.96] {
            let x = 1.0 - mantissa * 10f64.powi(-exponent);
            assert!(
                x == 1.0 || near_one(x).trim_end_matches('0') != "1.",
                "{x}: {}",
                near_one(x)
            );
        }
    }
}

#[test]
fn a_share_reads_one_only_if_it_is() {
    assert_eq!(
        [1.0, 0.99999, 0.99985, 0.9991, 0.9989, 0.5].map(share),
        ["1", ">0.9999", "0.9998", "0.9991", "0.999", "0.500"]
    );
    assert_eq!([f64::NAN, 0.0, 0.99996].map(share), ["NaN", "0.000", ">0.9999"]);
}

#[test]
fn errors_have_three_digits() {
    assert_eq!(error(0.0), "0");
    assert_eq!(error(0.012345), "0.0123");
    assert_eq!(error(12.345), "12.3");
    assert_eq!(error(1.2345e-5), "1.23e-5");
    assert_eq!(error(f64::INFINITY), "inf");
    assert_eq!(signed(-0.00213), "-0.00213");
    assert_eq!(interval(0.00213, 0.0017, 0.0025), "+0.0021 ±4.3e-4");
    assert_eq!((tenths(584.0), tenths(390.5)), ("584".into(), "390.5".into()));
}

#[test]
fn intervals_are_never_narrower_than_they_are() {
    assert_eq!(of_metric_within("sqnr", 31.524, 31.521, 31.526), "31.52 ±0.01");
    assert_eq!(of_metric_within("sqnr", 31.524, 31.524, 31.524), "31.52");
    assert_eq!(of_metric_within("sqnr_gain", -0.001, -0.04, 0.012), "+0.00 ±0.04");
    assert_eq!(of_metric_within("sqnr_excess", -0.694, -0.7, -0.69), "-0.69 ±0.01");
    assert_eq!(of_metric_within("growth", -0.001, -0.012, 0.01), "0.00 ±0.02");
    assert_eq!(of_metric_within("recall", 0.9781, 0.9776, 0.9785), "0.978 ±5e-4");
    assert_eq!(
        of_metric_within("delta_nats", 0.00213, 0.0017, 0.0025),
        "+0.0021 ±4.3e-4"
    );
    assert_eq!(of_metric_within("sqnr", f64::NAN, f64::NAN, f64::NAN), "NaN");
}

#[test]
fn every_metric_is_written_by_its_own_rule() {
    let written = [
        of_metric("us_rotated", 12.345),
        of_metric("of_matmul", 0.98765),
        of_metric("violations", 123_456.0),
        of_metric("recall_min", 0.99999),
        of_metric("sqnr_bits", 5.1234),
        of_metric("of another version", 0.012345),
    ];
    assert_eq!(written, ["12.3", "0.988", "123456", ">0.9999", "5.12", "0.0123"]);
}

#[test]
fn where_there_is_no_interval_none_is_shown() {
    assert_eq!(interval(0.00213, f64::NAN, f64::NAN), "+0.0021");
    assert_eq!(interval(0.00213, 0.002, f64::NAN), "+0.0021");
    assert_eq!(interval(0.00213, 0.00213, 0.00213), "+0.0021");
    assert_eq!(of_metric_within("sqnr", 31.524, f64::NAN, f64::NAN), "31.52");
    assert_eq!(of_metric_within("recall", 0.9781, f64::NAN, f64::NAN), "0.978");
}

#[test]
fn ticks_are_short() {
    let ticks = [0.0, 1.0, 0.05, 0.001, 1e-5, 2e-7, 1e6].map(tick);
    assert_eq!(ticks, ["0", "1", "0.05", "0.001", "1e-5", "2e-7", "1e6"]);
}
