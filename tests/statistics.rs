//! Tests and limits keep their rates of error: seeded simulations, and values from published tables.

#[path = "statistics/median.rs"]
mod median;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use rand_distr::{Distribution, Exp1, StandardNormal};
use ulplab::statistics::{
    CONFIDENCE, Decision, Flips, Scale, decide, draws_for, holm, limits, net, rate_above, rate_below, same_share,
    threshold,
};

/// A value from a stream.
type Draw = fn(&mut ChaCha8Rng) -> f64;

fn normal(rng: &mut ChaCha8Rng) -> f64 {
    StandardNormal.sample(rng)
}

/// Numbers of mean 0, skewed to the right.
fn skewed(rng: &mut ChaCha8Rng) -> f64 {
    let x: f64 = Exp1.sample(rng);
    x - 1.0
}

fn skewed_left(rng: &mut ChaCha8Rng) -> f64 {
    -skewed(rng)
}

fn uniform(rng: &mut ChaCha8Rng) -> f64 {
    rng.next_u64() as f64 / u64::MAX as f64
}

/// Symmetric with heavy tails, of Student with 2 degrees of freedom, which has no variance.
fn heavy(rng: &mut ChaCha8Rng) -> f64 {
    let x: f64 = Exp1.sample(rng);
    normal(rng) / x.sqrt()
}

/// How often `happens` is true in so many trials.
fn count(trials: usize, seed: u64, mut happens: impl FnMut(&mut ChaCha8Rng) -> bool) -> usize {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    (0..trials).filter(|_| happens(&mut rng)).count()
}

fn sample(rng: &mut ChaCha8Rng, n: usize, draw: Draw) -> Vec<f64> {
    (0..n).map(|_| draw(rng)).collect()
}

/// Fails if so many errors of so many trials show a rate above the nominal one: less likely than 1 in 1000 at that rate.
#[track_caller]
fn at_most(errors: usize, trials: usize, nominal: f64) {
    let least = rate_below(errors, trials, 0.999);
    assert!(
        least <= nominal,
        "{errors} of {trials}: a rate of {least:.4} or more, nominal {nominal}"
    );
}

/// Fails unless a rate is at least that, with the same confidence.
#[track_caller]
fn at_least(hits: usize, trials: usize, rate: f64) {
    let most = rate_above(hits, trials, 0.999);
    assert!(
        most >= rate,
        "{hits} of {trials}: a rate of {most:.4} at most, expected {rate}"
    );
}

#[test]
fn rates_are_those_of_clopper_and_pearson() {
    // Rule of three, and the interval of 10 of 100 with 95 % two-sided: 0.0490 … 0.1762.
    assert!((rate_above(0, 60, 0.95) - (1.0 - 0.05_f64.powf(1.0 / 60.0))).abs() < 1e-9);
    assert!((rate_below(10, 100, 0.975) - 0.049005).abs() < 1e-5);
    assert!((rate_above(10, 100, 0.975) - 0.176223).abs() < 1e-5);
    assert_eq!((rate_below(0, 9, 0.95), rate_above(9, 9, 0.95)), (0.0, 1.0));
    assert_eq!((draws_for(1e-2, 0.95), draws_for(1e-6, 0.95)), (299, 2_995_731));
}

/// 6 of 22 flips: two-sided exact p of a fair coin, by hand.
#[test]
fn mcnemar_is_the_sign_test_of_flips() {
    let flips = Flips { lost: 16, gained: 6 };
    let sum: f64 = [1.0, 22.0, 231.0, 1540.0, 7315.0, 26334.0, 74613.0].iter().sum();
    assert!((flips.exact() - 2.0 * sum / 2f64.powi(22)).abs() < 1e-12);
    let swapped = Flips { lost: 6, gained: 16 };
    assert_eq!(swapped.exact(), flips.exact());
    assert!(swapped.evidence_of_loss() < 1.0 && flips.evidence_of_loss() > 1.0);
    let none = Flips::default();
    assert_eq!(none.exact(), 1.0);
    assert!((none.evidence_of_loss() - 1.0).abs() < 1e-12);
}

fn flip(flips: &mut Flips, lost: bool) {
    *(if lost { &mut flips.lost } else { &mut flips.gained }) += 1;
}

fn flips(rng: &mut ChaCha8Rng, n: usize, lost: f64) -> Flips {
    let lost = (0..n).filter(|_| uniform(rng) < lost).count() as u64;
    Flips {
        lost,
        gained: n as u64 - lost,
    }
}

#[test]
fn mcnemar_keeps_its_level_and_has_power() {
    for n in [5, 20, 61] {
        let wrong = count(20_000, n as u64, |rng| flips(rng, n, 0.5).exact() <= 0.05);
        at_most(wrong, 20_000, 0.05);
    }
    // Exact power at 80 % losses of 40 flips: P(X >= 27) + P(X <= 13) = 0.9806.
    at_least(count(2_000, 7, |rng| flips(rng, 40, 0.8).exact() <= 0.05), 2_000, 0.975);
}

/// Looking after every flip, and stopping at the first 1/α.
#[test]
fn evidence_of_loss_may_be_looked_at_any_time() {
    let ever = |rng: &mut ChaCha8Rng, lost: f64| {
        let mut flips = Flips::default();
        (0..300).any(|_| {
            flip(&mut flips, uniform(rng) < lost);
            flips.evidence_of_loss() >= 20.0
        })
    };
    for (seed, lost) in [(1, 0.5), (2, 0.4)] {
        at_most(count(4_000, seed, |rng| ever(rng, lost)), 4_000, 0.05);
    }
    at_least(count(1_000, 3, |rng| ever(rng, 0.7)), 1_000, 0.98);
    // The exact test, looked at as often, fails far more often than its level: so it must be looked at once.
    let peeked = count(2_000, 4, |rng| {
        let mut flips = Flips::default();
        (0..300).any(|_| {
            flip(&mut flips, uniform(rng) < 0.5);
            flips.exact() <= 0.05
        })
    });
    assert!(peeked > 400, "{peeked}");
}

fn of(values: &[f64]) -> Option<ulplab::statistics::Limits> {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    limits(values, *blake3::hash(&bytes).as_bytes())
}

#[test]
fn limits_need_windows_that_are_finite() {
    assert_eq!(of(&[1.0, 2.0, 3.0, 4.0, 5.0]), None);
    assert_eq!(of(&[1.0, 2.0, 3.0, 4.0, 5.0, f64::NAN]), None);
    let equal = of(&[2.5; 6]).unwrap();
    assert_eq!((equal.low, equal.high), (2.5, 2.5));
    let some = of(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap();
    assert!(some.low < 2.5 && some.high > 4.5, "{some:?}");
}

/// How often the upper limit of a mean of 0 is below it.
fn missed(draw: Draw, n: usize, trials: usize) -> usize {
    count(trials, n as u64, |rng| {
        of(&sample(rng, n, draw)).is_some_and(|limits| limits.high < 0.0)
    })
}

#[test]
fn limits_of_normal_windows_miss_the_mean_as_often_as_stated() {
    for n in [6, 8, 16] {
        at_most(missed(normal, n, 1_000), 1_000, 1.0 - CONFIDENCE);
    }
}

/// Few windows that are skewed: `docs/gates.md` states the rates, which fall to the nominal one.
#[test]
fn limits_of_skewed_windows_come_near_their_level() {
    for (draw, n, stated) in [
        (skewed as Draw, 8, 0.08),
        (skewed, 16, 0.07),
        (skewed_left, 8, 0.05),
        (skewed_left, 16, 0.05),
    ] {
        at_most(missed(draw, n, 1_000), 1_000, stated);
    }
}

/// Non-inferiority of a mean of 0 against a margin of 1.5 standard deviations.
#[test]
fn limits_have_power() {
    let passes = |rng: &mut ChaCha8Rng| of(&sample(rng, 8, normal)).is_some_and(|limits| limits.high <= 1.5);
    let hits = count(1_000, 6, passes);
    at_least(hits, 1_000, 0.9);
}

#[test]
fn a_sequential_decision_is_seldom_wrong_however_long_it_is_looked_at() {
    for (draw, seed) in [
        (normal as Draw, 1),
        (heavy, 2),
        (|rng| uniform(rng) - 0.5, 3),
        (|rng| uniform(rng).round() - 0.5, 8),
    ] {
        for shift in [0.0, 0.3, 3.0] {
            let wrong = |rng: &mut ChaCha8Rng| {
                let values: Vec<f64> = sample(rng, 200, draw).iter().map(|x| x + shift).collect();
                decide(&values, &[], 0.0, true).0 == Decision::Right
            };
            let n = count(3_000, seed, wrong);
            at_most(n, 3_000, 1.0 - CONFIDENCE);
        }
    }
    // Deviations that are not symmetric: as often as `docs/gates.md` states.
    for (draw, stated) in [(skewed as Draw, 0.065), (skewed_left, 0.01)] {
        let wrong = |rng: &mut ChaCha8Rng| decide(&sample(rng, 200, draw), &[], 0.0, true).0 == Decision::Right;
        at_most(count(3_000, 4, wrong), 3_000, stated);
    }
}

#[test]
fn a_sequential_decision_comes_soon_where_the_bound_is_far() {
    for (margin, median) in [(0.5, 50), (1.0, 20), (2.0, 11)] {
        let mut rng = ChaCha8Rng::seed_from_u64(9);
        let mut taken: Vec<usize> = (0..500)
            .map(|_| decide(&sample(&mut rng, 400, normal), &[], margin, true))
            .map(|(decision, taken, _)| if decision == Decision::Right { taken } else { usize::MAX })
            .collect();
        taken.sort_unstable();
        assert!(taken[250] <= median, "{margin}: {}", taken[250]);
    }
    let (decision, taken, evidence) = decide(&[0.5; 20], &[], 1.0, true);
    assert_eq!((decision, taken), (Decision::Right, 7));
    assert!(evidence.against_above >= 20.0 && evidence.against_below == 1.0);
    assert_eq!(decide(&[0.5; 20], &[], 1.0, false).0, Decision::Wrong);
    assert_eq!(decide(&[0.5; 6], &[], 1.0, true).0, Decision::Undecided);
    let broken = [vec![0.5; 4], vec![f64::NAN], vec![0.5; 20]].concat();
    assert_eq!(decide(&broken, &[], 1.0, true).0, Decision::Undecided);
}

/// Windows of 15 predictions each, which are lost and gained at these rates.
fn flipped(rng: &mut ChaCha8Rng, windows: usize, [lost, gained]: [f64; 2]) -> Vec<net::Window> {
    let mut window = || {
        let mut flips = Flips::default();
        for _ in 0..15 {
            let at = uniform(rng);
            if at < lost + gained {
                flip(&mut flips, at < lost);
            }
        }
        net::Window { flips, predictions: 15 }
    };
    (0..windows).map(|_| window()).collect()
}

/// What `net_lost` is in windows.
fn net_lost(windows: &[net::Window]) -> Vec<f64> {
    let of = |window: &net::Window| (window.flips.lost as f64 - window.flips.gained as f64) / window.predictions as f64;
    windows.iter().map(of).collect()
}

#[test]
fn limits_of_rare_flips_miss_the_mean_seldom() {
    for (seed, rates) in [
        (1, [0.005, 0.0]),
        (2, [0.01, 0.01]),
        (3, [0.03, 0.001]),
        (4, [0.0, 0.02]),
    ] {
        let missed = |rng: &mut ChaCha8Rng| {
            let (limits, mean) = (net::limits(&flipped(rng, 8, rates)), rates[0] - rates[1]);
            mean < limits.low || limits.high < mean
        };
        at_most(count(4_000, seed, missed), 4_000, 2.0 * (1.0 - CONFIDENCE));
        let above = |rng: &mut ChaCha8Rng| net::limits(&flipped(rng, 8, rates)).high < rates[0] - rates[1];
        at_most(count(4_000, seed, above), 4_000, 1.0 - CONFIDENCE);
    }
    let none = net::limits(
        &[net::Window {
            flips: Flips::default(),
            predictions: 15,
        }; 8],
    );
    assert!(
        (none.high - (1.0 - 0.025_f64.powf(1.0 / 120.0))).abs() < 1e-12 && none.low == -none.high,
        "{none:?}"
    );
}

#[test]
fn a_sequential_decision_on_rare_flips_is_seldom_wrong() {
    for (seed, rates) in [(1, [0.005, 0.0]), (2, [0.02, 0.01]), (3, [0.2, 0.15])] {
        let wrong = |rng: &mut ChaCha8Rng| {
            let windows = flipped(rng, 200, rates);
            decide(&net_lost(&windows), &windows, rates[0] - rates[1], true).0 == Decision::Right
        };
        at_most(count(2_000, seed, wrong), 2_000, 1.0 - CONFIDENCE);
    }
    let none = [net::Window {
        flips: Flips::default(),
        predictions: 15,
    }; 200];
    let decided = |margin| decide(&[0.0; 200], &none, margin, true);
    // 307 predictions with bets of a half, after a window that tells what to bet.
    assert_eq!((decided(0.02).0, decided(0.02).1), (Decision::Right, 22));
    assert_eq!(decided(1e-6).0, Decision::Undecided);
    let windows = vec![
        net::Window {
            flips: Flips { lost: 3, gained: 0 },
            predictions: 15
        };
        40
    ];
    assert_eq!(decide(&net_lost(&windows), &windows, 0.02, true).0, Decision::Wrong);
}

#[test]
fn many_draws_are_their_own_threshold() {
    let draws: Vec<f64> = (0..299).map(f64::from).collect();
    let found = threshold(&draws, 1e-2, 0.95, Scale::Linear).unwrap();
    assert_eq!((found.value, found.excesses), (298.0, None));
    assert!(
        threshold(&draws[..298], 1e-2, 0.95, Scale::Linear)
            .unwrap()
            .excesses
            .is_some()
    );
}

/// Standard normal, exponential, uniform and Weibull (shape 2) draws, whose share above a threshold is known.
#[test]
fn an_extrapolated_threshold_keeps_its_rate() {
    fn weibull(rng: &mut ChaCha8Rng) -> f64 {
        let x: f64 = Exp1.sample(rng);
        x.sqrt()
    }
    fn exponential(rng: &mut ChaCha8Rng) -> f64 {
        Exp1.sample(rng)
    }
    let above_normal: fn(f64) -> f64 = |t| 0.5 * statrs::function::erf::erfc(t / std::f64::consts::SQRT_2);
    let cases: [(Draw, fn(f64) -> f64); 4] = [
        (normal, above_normal),
        (exponential, |t| (-t).exp()),
        (uniform, |t| (1.0 - t).max(0.0)),
        (weibull, |t| (-t * t).exp()),
    ];
    for (at, (draw, above)) in cases.into_iter().enumerate() {
        for (n, flake) in [(20, 1e-3), (60, 1e-3), (60, 1e-6), (200, 1e-9)] {
            let (mut wrong, mut given) = (0, 0);
            let mut rng = ChaCha8Rng::seed_from_u64(at as u64);
            for _ in 0..1_000 {
                if let Ok(found) = threshold(&sample(&mut rng, n, draw), flake, 0.95, Scale::Linear) {
                    given += 1;
                    wrong += usize::from(above(found.value) > flake);
                }
            }
            at_most(wrong, given, 0.05);
            at_least(given, 1_000, 0.9);
        }
    }
}

#[test]
fn draws_that_support_no_threshold_are_refused() {
    let refused = |draws: &[f64], scale| threshold(draws, 1e-6, 0.95, scale).unwrap_err();
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let normals = sample(&mut rng, 60, normal);
    assert_eq!(
        refused(&normals[..19], Scale::Linear),
        "19 draws support no threshold for 1e-6 false alarms: a tail takes at least 20 draws; 2995731 draws need no tail"
    );
    assert!(refused(&normals, Scale::Log).contains("has no logarithm"));
    let mut broken = normals.clone();
    broken[3] = f64::NAN;
    assert!(refused(&broken, Scale::Linear).contains("one of them is NaN"));
    let counts: Vec<f64> = normals.iter().map(|x| x.round()).collect();
    assert!(refused(&counts, Scale::Linear).contains("mostly equal"));
    // Errors of two kinds: mostly small, some a thousandfold.
    let two = |rng: &mut ChaCha8Rng| {
        let draws: Vec<f64> = (0..200)
            .map(|at| (0.2 * normal(rng) + if at % 50 == 0 { 7.0 } else { 0.0 }).exp())
            .collect();
        threshold(&draws, 1e-6, 0.95, Scale::Log).is_err()
    };
    let n = count(200, 2, two);
    assert!(n > 190);
}

#[test]
fn holm_bounds_the_error_of_a_family() {
    let adjusted = holm(&[0.01, 0.04, 0.03, 0.005]);
    for (got, want) in adjusted.iter().zip([0.03, 0.06, 0.06, 0.02]) {
        assert!((got - want).abs() < 1e-12, "{adjusted:?}");
    }
    assert!(holm(&[f64::NAN, 0.01])[0].is_nan() && holm(&[f64::NAN, 0.01])[1] == 0.02);
    let wrong = count(4_000, 5, |rng| {
        let p: Vec<f64> = (0..20).map(|_| flips(rng, 60, 0.5).exact()).collect();
        holm(&p).iter().any(|p| *p <= 0.05)
    });
    at_most(wrong, 4_000, 0.05);
}

#[test]
fn flips_that_cluster_are_seen() {
    let even = [Flips { lost: 5, gained: 5 }; 8];
    assert!((same_share(&even) - 1.0).abs() < 1e-9);
    let clustered = [[Flips { lost: 10, gained: 0 }; 4], [Flips { lost: 0, gained: 10 }; 4]].concat();
    assert!(same_share(&clustered) < 1e-9);
    assert_eq!(same_share(&[]), 1.0);
    assert_eq!(same_share(&[Flips { lost: 3, gained: 0 }; 5]), 1.0);
    let wrong = count(2_000, 11, |rng| {
        let windows: Vec<Flips> = (0..12).map(|_| flips(rng, 12, 0.5)).collect();
        same_share(&windows) < 0.01
    });
    at_most(wrong, 2_000, 0.01);
}
