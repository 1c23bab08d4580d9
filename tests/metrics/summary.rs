use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use ulplab::record::{Phase, Record};
use ulplab::run::summary::{Summary, summarize};

fn record(recipe: &str, layer: Option<u32>, site: &str, metric: &str, window: usize, value: f64) -> Record {
    Record {
        cell: format!("{recipe}/local/{window}"),
        recipe: recipe.into(),
        phase: Phase::Local,
        window: window.to_string(),
        layer,
        site: site.into(),
        metric: metric.into(),
        value,
        n: 1,
        nonfinite_want: 0,
        nonfinite_got: 0,
        worst: None,
        failure: None,
    }
}

fn one(values: &[f64]) -> Summary {
    let records: Vec<_> = values
        .iter()
        .enumerate()
        .map(|(w, &value)| record("r", None, "s", "m", w, value))
        .collect();
    let [summary] = summarize(&records).try_into().unwrap();
    summary
}

#[test]
fn statistics_of_one_group() {
    let summary = one(&[1.0, 2.0, 6.0]);
    assert_eq!(
        (summary.windows, summary.mean, summary.min, summary.max),
        (3, 3.0, 1.0, 6.0)
    );
    assert!(1.0 <= summary.ci_low && summary.ci_low < 3.0 && 3.0 < summary.ci_high && summary.ci_high <= 6.0);
    assert!(summarize(&[]).is_empty());
}

#[test]
fn equal_windows_have_no_spread() {
    for values in [&[0.1; 2][..], &[0.1; 3], &[f64::INFINITY; 4]] {
        let s = one(values);
        assert_eq!([s.mean, s.min, s.max, s.ci_low, s.ci_high], [values[0]; 5]);
    }
}

/// Nothing is known of how windows differ from one alone.
#[test]
fn one_window_has_no_interval() {
    let s = one(&[0.1]);
    assert_eq!([s.mean, s.min, s.max], [0.1; 3]);
    assert!(s.ci_low.is_nan() && s.ci_high.is_nan());
    // That of two is their range.
    let s = one(&[0.1, 0.3]);
    assert_eq!((s.ci_low, s.ci_high), (0.1, 0.3));
}

#[test]
fn nan_is_never_dropped() {
    let s = one(&[1.0, f64::NAN, 3.0]);
    assert_eq!(s.windows, 3);
    assert!(
        [s.mean, s.min, s.max, s.ci_low, s.ci_high]
            .iter()
            .all(|value| value.is_nan())
    );
    let s = one(&[1.0, f64::INFINITY]);
    assert_eq!((s.mean, s.min, s.max), (f64::INFINITY, 1.0, f64::INFINITY));
}

#[test]
fn groups_keep_the_order_of_first_appearance() {
    let mut records = Vec::new();
    for window in 0..2 {
        for recipe in ["zeta", "alpha"] {
            for layer in [1, 0] {
                for metric in ["nsr", "cosine"] {
                    records.push(record(recipe, Some(layer), "output", metric, window, f64::from(layer)));
                }
            }
            records.push(record(recipe, None, "logits", "kl", window, 0.5));
        }
    }
    let mut cumulative = record("zeta", Some(0), "output", "nsr", 0, 7.0);
    cumulative.phase = Phase::Cumulative;
    records.insert(0, cumulative);
    let found: Vec<String> = summarize(&records)
        .iter()
        .map(|s| {
            format!(
                "{} {} {} {:?} {} {}",
                s.recipe, s.phase, s.site, s.layer, s.metric, s.windows
            )
        })
        .collect();
    let of = |recipe: &str| {
        [
            format!("{recipe} local output Some(0) nsr 2"),
            format!("{recipe} local output Some(0) cosine 2"),
            format!("{recipe} local output Some(1) nsr 2"),
            format!("{recipe} local output Some(1) cosine 2"),
            format!("{recipe} local logits None kl 2"),
        ]
    };
    let mut expected = of("zeta").to_vec();
    expected.push("zeta cumulative output Some(0) nsr 1".into());
    expected.extend(of("alpha"));
    assert_eq!(found, expected);
}

#[test]
fn intervals_can_be_made_again() {
    let values = [3.0, 1.0, 4.0, 1.5, 9.0, 2.6];
    let (a, b) = (one(&values), one(&values));
    assert_eq!(a, b);
    // Another group resamples differently, and other groups do not disturb this one.
    let mut records: Vec<_> = values
        .iter()
        .enumerate()
        .map(|(w, &v)| record("q", None, "s", "m", w, v))
        .collect();
    records.extend(
        values
            .iter()
            .enumerate()
            .map(|(w, &v)| record("r", None, "s", "m", w, v)),
    );
    let both = summarize(&records);
    assert_eq!(both[1], a);
    assert_ne!((both[0].ci_low, both[0].ci_high), (a.ci_low, a.ci_high));
}

/// The percentile bootstrap covers the mean of 20 uniform windows a little less often than 95 %, about 93 %.
#[test]
fn intervals_cover_the_mean() {
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    let trials = 600;
    let mut records = Vec::new();
    for trial in 0..trials {
        for window in 0..20 {
            let uniform = f64::from(rng.next_u32()) / 2f64.powi(32);
            records.push(record("r", Some(trial), "s", "m", window, uniform));
        }
    }
    let covered = summarize(&records)
        .iter()
        .filter(|s| s.ci_low <= 0.5 && 0.5 <= s.ci_high)
        .count();
    let share = covered as f64 / f64::from(trials);
    // Four standard errors of a share of 0.93 in 600 trials are 0.042.
    assert!((share - 0.93).abs() < 0.042, "{share}");
}

/// No flip among few predictions is no proof that none is ever lost.
#[test]
fn limits_of_net_lost_follow_from_the_predictions() {
    let at = |metric: &str, w: usize, value: f64| Record {
        n: 15,
        ..record("r", None, "logits", metric, w, value)
    };
    let of = |lost: [f64; 8], metrics: &[&str]| {
        let value = |metric: &str, w: usize| match metric {
            "lost" => lost[w],
            "gained" => 0.0,
            _ => lost[w] / 15.0,
        };
        let each = metrics
            .iter()
            .flat_map(|metric| (0..8).map(|w| at(metric, w, value(metric, w))));
        let summaries = summarize(&each.collect::<Vec<_>>());
        let net = summaries.into_iter().find(|summary| summary.metric == "net_lost");
        net.unwrap().limits()
    };
    let all = ["lost", "gained", "net_lost"];
    let none = of([0.0; 8], &all).unwrap();
    assert!(
        (0.030..0.031).contains(&none.high) && none.low == -none.high,
        "{none:?}"
    );
    // One flip sets limits, too, and they hold both signs.
    let one = of([0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0], &all).unwrap();
    assert!(one.low < 0.0 && one.high > none.high, "{one:?}");
    // Where flips are many, windows decide.
    let many = of([3.0, 4.0, 3.0, 5.0, 4.0, 3.0, 4.0, 4.0], &all).unwrap();
    assert!(
        (0.2..0.25).contains(&many.low) && (0.25..0.3).contains(&many.high),
        "{many:?}"
    );
    assert_eq!(of([0.0; 8], &["net_lost"]), None, "without counts");
}
