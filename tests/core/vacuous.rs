//! Bounds that nothing can break.

use safetensors::Dtype;
use ulplab_core::metrics::{Better, Bound, METRICS};
use ulplab_core::vacuous::{range, vacuous, vacuous_between, vacuous_change};

#[test]
fn every_metric_has_a_range() {
    for metric in METRICS {
        let [least, most] = range(metric.name).unwrap_or_else(|| panic!("{}: give it a range", metric.name));
        assert!(least.is_finite() && most.is_finite() && least < most, "{}", metric.name);
    }
}

/// Also of this kind: bounds of controls (`cosine <= 1`), which point the other way, and tolerances.
#[test]
fn bounds_at_the_end_of_the_range_are_vacuous() {
    for (metric, bounds) in [
        ("cosine", &[">= -1", ">= -5", "<= 1", "<= 1e300"][..]),
        ("top1", &[">= 0", ">= -0.0", ">= -1e-300", "<= 1"]),
        ("recall_min", &[">= 0", ">= -1"]),
        ("relative_l2", &["<= 1e300", "<= 1e200", ">= 0", ">= -3"]),
        ("nsr", &["<= 1e300", ">= 0"]),
        ("diff", &["<= 2", "<= 1e9"]),
        ("kl", &["<= 1e39", "<= 1e300", ">= 0"]),
        ("max_abs", &["<= 7e38", "<= 1e308"]),
        ("sqnr", &[">= -1e5", ">= -1e308"]),
        ("delta_nats", &["<= 1e39", ">= -1e39"]),
        ("violations", &["<= 1e20", ">= 0"]),
        ("us_cold", &["<= 1e17"]),
        ("atol", &["<= 1e39"]),
        ("rtol", &["<= 1e300"]),
    ] {
        for text in bounds {
            let why = vacuous(metric, text.parse().unwrap());
            assert!(why.is_some_and(|why| why.contains("no measurement")), "{metric} {text}");
        }
    }
}

#[test]
fn bounds_within_the_range_are_not() {
    for (metric, text) in [
        ("cosine", ">= -0.999"),
        ("cosine", "<= 0.999"),
        ("top1", ">= 1e-9"),
        ("top1", "<= 0.99"),
        ("relative_l2", "<= 1"),
        ("max_abs", "<= 1e38"),
        ("max_abs", "<= 0"),
        ("violations", "<= 0"),
        ("violations", ">= 1"),
        ("delta_nats", "<= 0"),
        ("delta_nats", ">= 0"),
        ("sqnr", ">= -20"),
        ("unknown", "<= 1e300"),
    ] {
        assert_eq!(vacuous(metric, text.parse().unwrap()), None, "{metric} {text}");
    }
}

#[test]
fn infinite_bounds_are_vacuous_on_one_side_and_nan_on_both() {
    for name in METRICS
        .iter()
        .map(|metric| metric.name)
        .chain(["atol", "rtol", "ulp", "unknown"])
    {
        for (better, idle) in [(Better::Higher, f64::NEG_INFINITY), (Better::Lower, f64::INFINITY)] {
            let with = |value| vacuous(name, Bound { better, value });
            assert!(
                with(idle).is_some() && with(f64::NAN).is_some() && with(-idle).is_none(),
                "{name}"
            );
        }
    }
}

/// The bound just below the largest difference can be broken. Also of this kind: types of other widths, and pairs of two types.
#[test]
fn bounds_that_no_numbers_of_a_type_can_break() {
    for (dtype, max_abs, ulp) in [
        (Dtype::F32, 2.0 * f64::from(f32::MAX), 2.0 * f64::from(0x7f7f_ffffu32)),
        (Dtype::BF16, 2.0 * f64::from(half::bf16::MAX), 65278.0),
        (Dtype::F16, 131_008.0, 63486.0),
        (Dtype::F8_E4M3, 896.0, 252.0),
        (Dtype::F8_E5M2, 114_688.0, 246.0),
        (Dtype::BOOL, 1.0, 1.0),
        (Dtype::I8, 255.0, 255.0),
        (Dtype::U16, 65535.0, 65535.0),
        (Dtype::I32, f64::from(u32::MAX), f64::from(u32::MAX)),
    ] {
        for (metric, most) in [
            ("max_abs", max_abs),
            ("atol", max_abs),
            ("ulp_max", ulp),
            ("ulp_p50", ulp),
        ] {
            let at = |value: f64| {
                let bound = Bound {
                    better: Better::Lower,
                    value,
                };
                vacuous_between(metric, bound, [dtype; 2]).is_some()
            };
            assert!(at(most) && at(2.0 * most) && !at(most.next_down()), "{metric} {dtype}");
        }
    }
    let mixed = [Dtype::F8_E4M3, Dtype::F16];
    assert!(vacuous_between("max_abs", "<= 65952".parse().unwrap(), mixed).is_some());
    assert!(vacuous_between("max_abs", "<= 65951".parse().unwrap(), mixed).is_none());
    assert!(
        vacuous_between("ulp_max", "<= 1e9".parse().unwrap(), mixed).is_none(),
        "not defined"
    );
    assert!(vacuous_between("max_abs", ">= 1e9".parse().unwrap(), [Dtype::F16; 2]).is_none());
    assert!(vacuous_between("cosine", "<= 1e9".parse().unwrap(), [Dtype::F16; 2]).is_none());
}

#[test]
fn changes_beyond_the_width_of_the_range_are_vacuous() {
    for (metric, better, most, relative, idle) in [
        ("cosine", Better::Higher, 2.0, false, true),
        ("cosine", Better::Higher, 1.9, false, false),
        ("top1", Better::Higher, 1.0, false, true),
        ("top1", Better::Higher, 1.0, true, true),
        ("top1", Better::Higher, 0.99, true, false),
        ("kl", Better::Lower, 10.0, true, false),
        ("kl", Better::Lower, 1e300, true, true),
        ("kl", Better::Lower, 1e300, false, true),
        ("us_cold", Better::Lower, 0.03, true, false),
        ("kl", Better::Lower, f64::NAN, false, true),
    ] {
        let found = vacuous_change(metric, better, most, relative);
        assert_eq!(found.is_some(), idle, "{metric} {most}");
    }
}
