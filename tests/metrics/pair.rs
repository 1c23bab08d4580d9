//! Two tensors: definitions and axioms.

use half::{bf16, f16};
use proptest::prelude::*;
use ulplab::metrics::{Bits, METRICS, Pair, Ulps, Worst, cosine_distance, measure_all, ordered};

use super::{assert_close, value};

/// Unit roundoff of f64.
const U: f64 = f64::EPSILON / 2.0;

#[test]
fn hand_values() {
    let pair = Pair::new(&[1.0f32, 2.0, 2.0], &[1.0f32, 2.0, 4.0]);
    let of = |name| value(name, &pair).unwrap();
    assert_close(of("cosine"), 13.0 / 189f64.sqrt(), 2.0 * U);
    assert_close(of("diff"), 4.0 / 30.0, U);
    assert_close(of("nsr"), 4.0 / 9.0, U);
    assert_close(of("relative_l2"), 2.0 / 3.0, U);
    assert_close(of("sqnr"), 10.0 * (9.0f64 / 4.0).log10(), 4.0 * U);
    assert_eq!(of("max_abs"), 2.0);
    assert_eq!(of("nonfinite"), 0.0);
    assert_eq!(
        pair.worst,
        Some(Worst {
            index: 2,
            want: 2.0,
            got: 4.0
        })
    );
    assert_eq!(value("ulp_max", &pair), None, "not asked for");
    assert_eq!(value("kl", &pair), None, "needs logits");
}

#[test]
fn zero_tensors() {
    let zero = [0.0f32; 3];
    let some = [1.0f32, -2.0, 0.5];
    let expected = |cosine: f64, diff: f64, nsr: f64, sqnr: f64| [cosine, diff, nsr, nsr.sqrt(), sqnr];
    let measured = |x: &[f32], y: &[f32]| {
        let pair = Pair::new(x, y);
        ["cosine", "diff", "nsr", "relative_l2", "sqnr"].map(|name| value(name, &pair).unwrap())
    };
    assert_eq!(measured(&zero, &zero), expected(1.0, 0.0, 0.0, f64::INFINITY));
    assert_eq!(measured(&some, &zero), expected(0.0, 1.0, 1.0, 0.0));
    assert_eq!(
        measured(&zero, &some),
        expected(0.0, 1.0, f64::INFINITY, f64::NEG_INFINITY)
    );
}

#[test]
fn empty_tensors_have_no_metrics() {
    let pair = Pair::new::<f32, f32>(&[], &[]).with_ulps::<f32>(&[], &[]);
    assert_eq!(
        measure_all(&pair)
            .map(|(metric, value)| (metric.name, value))
            .collect::<Vec<_>>(),
        [("nonfinite", 0.0)]
    );
    assert_eq!((pair.n, pair.worst), (0, None));
}

#[test]
fn one_element_that_is_not_finite_makes_every_metric_nan() {
    for (x, y, same) in [
        ([1.0, 2.0], [1.0, f32::NAN], false),
        ([1.0, f32::INFINITY], [1.0, 2.0], false),
        ([1.0, f32::INFINITY], [1.0, f32::NEG_INFINITY], false),
        ([1.0, f32::NAN], [1.0, f32::INFINITY], false),
        ([1.0, f32::INFINITY], [1.0, f32::INFINITY], true),
        ([1.0, f32::NAN], [1.0, f32::NAN], true),
    ] {
        let pair = Pair::new(&x, &y).with_ulps(&x, &y);
        assert_eq!(pair.same_nonfinite, same, "{x:?} {y:?}");
        assert_eq!(pair.nonfinite_want, u64::from(!x[1].is_finite()));
        assert_eq!(pair.nonfinite_got, u64::from(!y[1].is_finite()));
        assert_eq!(pair.worst.unwrap().index, 1);
        for (metric, value) in measure_all(&pair) {
            let count = (pair.nonfinite_want + pair.nonfinite_got) as f64;
            assert!(
                if metric.name == "nonfinite" {
                    value == count
                } else {
                    value.is_nan()
                },
                "{}",
                metric.name
            );
        }
        assert_eq!(measure_all(&pair).count(), 10);
    }
    // The worst element is the first where the sides differ in what is not finite.
    let (x, y) = ([f32::NAN, 0.0, f32::INFINITY, 3.0], [f32::NAN, 9.0, 1.0, f32::NAN]);
    assert_eq!(Pair::new(&x, &y).worst.unwrap().index, 2);
}

#[test]
fn the_worst_element_is_the_first_of_the_largest_errors() {
    let x = vec![0.0f32; 20_000];
    for places in [
        &[0usize][..],
        &[19_999],
        &[4095, 4096],
        &[7, 9000],
        &[12_345, 19_999],
        &[4100, 4101],
    ] {
        let mut y = x.clone();
        for &place in places {
            y[place] = -2.0;
        }
        let pair = Pair::new(&x, &y);
        assert_eq!(
            pair.worst,
            Some(Worst {
                index: places[0],
                want: 0.0,
                got: -2.0
            })
        );
        assert_eq!(pair.max_abs, 2.0);
    }
}

#[test]
fn types_may_differ() {
    let want = [1.0f64, 1.0 + 1e-9];
    let got = [bf16::from_f32(1.0), bf16::from_f32(1.5)];
    assert_close(value("max_abs", &Pair::new(&want, &got)).unwrap(), 0.5 - 1e-9, U);
}

#[test]
#[should_panic(expected = "elements of the two tensors")]
fn lengths_must_agree() {
    Pair::new(&[1.0f32], &[1.0f32, 2.0]);
}

#[test]
fn ulp_ranks_follow_the_values() {
    // All finite f16: the rank orders as the value does, and neighbours differ by one.
    let mut values: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).filter(|x| x.is_finite()).collect();
    values.sort_by(|x, y| x.partial_cmp(y).unwrap());
    values.dedup_by(|x, y| x == y);
    let ranks: Vec<i64> = values.iter().map(|x| ordered(x.code(), f16::WIDTH)).collect();
    assert!(ranks.windows(2).all(|pair| pair[1] - pair[0] == 1));
    assert_eq!(ordered((-0.0f32).code(), 32), 0);
    assert_eq!(ordered(f64::MIN.code(), 64), -ordered(f64::MAX.code(), 64));
}

#[test]
fn ulp_distances_cross_zero_and_binades() {
    let ulps = |x: f32, y: f32| value("ulp_max", &Pair::new(&[x], &[y]).with_ulps(&[x], &[y])).unwrap();
    assert_eq!(ulps(0.0, -0.0), 0.0);
    assert_eq!(ulps(1.0, 1.0f32.next_up()), 1.0);
    assert_eq!(ulps(2.0, 2.0f32.next_down()), 1.0);
    assert_eq!(ulps(f32::from_bits(1), -f32::from_bits(2)), 3.0);
    let pair = Pair::new(&[f64::MAX], &[f64::MIN]).with_ulps(&[f64::MAX], &[f64::MIN]);
    assert_eq!(pair.ulps.unwrap().max, 2 * f64::MAX.to_bits());
}

#[test]
fn ulp_quantiles_are_nearest_ranks() {
    let want = vec![0u64; 200];
    let got: Vec<u64> = (1..=200).rev().collect();
    let ulps = Ulps::new(32, want.into_iter(), got.into_iter()).unwrap();
    assert_eq!(
        ulps,
        Ulps {
            p50: 100,
            p99: 198,
            max: 200
        }
    );
    assert_eq!(
        Ulps::new(32, [0].into_iter(), [7].into_iter()),
        Some(Ulps { p50: 7, p99: 7, max: 7 })
    );
    assert_eq!(Ulps::new(32, std::iter::empty(), std::iter::empty()), None);
}

/// Sums of squares by the textbook, with Kahan's correction: relative error 2u, whatever the length.
fn exact_sum(terms: impl Iterator<Item = f64>) -> f64 {
    let (mut sum, mut rest) = (0.0, 0.0);
    for term in terms {
        let corrected: f64 = term - rest;
        let next: f64 = sum + corrected;
        rest = (next - sum) - corrected;
        sum = next;
    }
    sum
}

fn vectors(range: f32) -> impl Strategy<Value = (Vec<f32>, Vec<f32>)> {
    prop::collection::vec((-range..range, -range..range), 1..9000).prop_map(|pairs| pairs.into_iter().unzip())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn agrees_with_plain_loops((x, y) in vectors(10.0)) {
        let pair = Pair::new(&x, &y);
        let f = |x: f32| f64::from(x);
        let sum = |term: &dyn Fn(f64, f64) -> f64| exact_sum(x.iter().zip(&y).map(|(&x, &y)| term(f(x), f(y))));
        let (xx, yy) = (sum(&|x, _| x * x), sum(&|_, y| y * y));
        let (xy, ee) = (sum(&|x, y| x * y), sum(&|x, y| (x - y) * (x - y)));
        // Each sum of squares is off by less than its longest chain of additions, 4096/16 + 4 + 2, and a rounding a term.
        let c = 270.0 * U;
        let of = |name| value(name, &pair).unwrap();
        assert_close(of("nsr"), ee / xx, 2.0 * c * ee / xx);
        assert_close(of("relative_l2"), (ee / xx).sqrt(), c * (ee / xx).sqrt() + U);
        assert_close(of("diff"), 1.0 - 2.0 * xy / (xx + yy), 3.0 * c);
        assert_close(of("cosine"), xy / (xx * yy).sqrt(), 3.0 * c);
        let max = x.iter().zip(&y).map(|(&x, &y)| (f(x) - f(y)).abs()).fold(0.0, f64::max);
        prop_assert_eq!(of("max_abs"), max);
        let worst = pair.worst.unwrap();
        prop_assert_eq!((worst.want - worst.got).abs(), max);
        prop_assert_eq!((worst.want, worst.got), (f(x[worst.index]), f(y[worst.index])));
    }

    #[test]
    fn without_error_all_is_perfect((x, _) in vectors(1e30)) {
        let pair = Pair::new(&x, &x).with_ulps(&x, &x);
        for (name, perfect) in [
            ("cosine", 1.0), ("diff", 0.0), ("nsr", 0.0), ("relative_l2", 0.0), ("sqnr", f64::INFINITY), ("max_abs", 0.0),
            ("ulp_p50", 0.0), ("ulp_p99", 0.0), ("ulp_max", 0.0), ("nonfinite", 0.0),
        ] {
            prop_assert_eq!(value(name, &pair), Some(perfect), "{}", name);
        }
    }

    #[test]
    fn symmetric_metrics_are_symmetric((x, y) in vectors(1.0)) {
        let (there, back) = (Pair::new(&x, &y).with_ulps(&x, &y), Pair::new(&y, &x).with_ulps(&y, &x));
        for name in ["diff", "max_abs", "ulp_p50", "ulp_p99", "ulp_max"] {
            prop_assert_eq!(value(name, &there), value(name, &back), "{}", name);
        }
        assert_close(value("cosine", &there).unwrap(), value("cosine", &back).unwrap(), 1000.0 * U);
    }

    /// Cosine is blind to a gain error, diff is not: y = s·x gives 1 − 2s / (1 + s²).
    #[test]
    fn a_gain_error_shows_in_diff_only((x, _) in vectors(1.0), s in 0.5..2.0f64) {
        prop_assume!(x.iter().any(|x| x.abs() > 1e-3));
        let y: Vec<f64> = x.iter().map(|&x| f64::from(x) * s).collect();
        let pair = Pair::new(&x, &y);
        assert_close(value("cosine", &pair).unwrap(), 1.0, 600.0 * U);
        // y is rounded, by u relative to its size.
        assert_close(value("diff", &pair).unwrap(), 1.0 - 2.0 * s / (1.0 + s * s), 600.0 * U);
        assert_close(value("relative_l2", &pair).unwrap(), (s - 1.0).abs(), 600.0 * U);
    }

    #[test]
    fn a_common_power_of_two_changes_no_relative_metric((x, y) in vectors(1.0), k in -60..60i32) {
        let scale = 2f32.powi(k);
        let scaled = |x: &[f32]| x.iter().map(|x| f64::from(*x) * f64::from(scale)).collect::<Vec<_>>();
        let (plain, pair) = (Pair::new(&x, &y), Pair::new(&scaled(&x), &scaled(&y)));
        for name in ["cosine", "diff", "nsr", "relative_l2", "sqnr"] {
            prop_assert_eq!(value(name, &plain), value(name, &pair), "{}", name);
        }
        prop_assert_eq!(value("max_abs", &plain).unwrap() * f64::from(scale), value("max_abs", &pair).unwrap());
    }

    #[test]
    fn metrics_stay_in_their_ranges(bits in prop::collection::vec(any::<(u32, u32)>(), 1..50)) {
        let (x, y): (Vec<f32>, Vec<f32>) = bits.iter().map(|&(x, y)| (f32::from_bits(x), f32::from_bits(y))).unzip();
        let pair = Pair::new(&x, &y).with_ulps(&x, &y);
        let finite = x.iter().chain(&y).all(|x| x.is_finite());
        prop_assert_eq!(pair.finite(), finite);
        for metric in METRICS {
            let Some(value) = metric.measure(&pair) else { continue };
            prop_assert_eq!(value.is_nan(), !finite && metric.name != "nonfinite", "{} {}", metric.name, value);
        }
        if finite {
            let cosine = value("cosine", &pair).unwrap();
            prop_assert!((-1.0..=1.0).contains(&cosine));
            prop_assert!((0.0..=2.0).contains(&cosine_distance(&pair).unwrap()));
            prop_assert!((0.0..=2.0).contains(&value("diff", &pair).unwrap()));
        }
    }
}
