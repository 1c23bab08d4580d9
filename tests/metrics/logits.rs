use proptest::prelude::*;
use ulplab::metrics::{Logits, METRICS, flips};

use super::{assert_close, value};

/// Logits of a row with these probabilities, shifted, since a constant does not count.
fn logits(probabilities: &[f64], shift: f64) -> Vec<f64> {
    probabilities.iter().map(|p| p.ln() + shift).collect()
}

#[test]
fn hand_values() {
    let want = [logits(&[0.5, 0.25, 0.25], 3.0), logits(&[0.2, 0.2, 0.6], -1.0)].concat();
    let got = [logits(&[0.25, 0.5, 0.25], 0.0), logits(&[0.2, 0.2, 0.6], 7.0)].concat();
    let logits = Logits::new(&want, &got, 3, &[1]);
    let of = |name| value(name, &logits).unwrap();
    let kl = 0.5 * 2f64.ln() - 0.25 * 2f64.ln();
    assert_close(of("kl"), kl / 2.0, 1e-15);
    assert_close(of("kl_max"), kl, 1e-15);
    assert_eq!(logits.kl_worst, 0);
    assert_eq!(of("top1"), 0.5);
    assert_close(of("flip_gap"), 2f64.ln(), 1e-15);
    // The candidate gives the target, token 1, twice the probability.
    assert_close(of("delta_nats"), -2f64.ln(), 1e-15);
    assert_eq!((logits.rows, logits.targets), (2, 1));
}

#[test]
fn the_reference_may_tie_the_candidate_may_not() {
    let top1 = |want: [f32; 3], got: [f32; 3]| {
        let logits = Logits::new(&want, &got, 3, &[]);
        (value("top1", &logits).unwrap(), value("flip_gap", &logits).unwrap())
    };
    assert_eq!(
        top1([2.0, 2.0, 1.0], [0.0, 5.0, 1.0]),
        (1.0, 0.0),
        "both are first choices"
    );
    assert_eq!(top1([2.0, 2.0, 1.0], [0.0, 1.0, 5.0]), (0.0, 1.0));
    assert_eq!(
        top1([1.0, 2.0, 0.0], [5.0, 5.0, 0.0]),
        (0.0, 1.0),
        "greedy decoding takes the first"
    );
}

#[test]
fn without_rows_or_targets_there_is_nothing_to_say() {
    let empty = Logits::new::<f32, f32>(&[], &[], 5, &[]);
    assert!(METRICS.iter().all(|metric| metric.measure(&empty).is_none()));
    let logits = Logits::new(&[0.0f32, 1.0], &[0.0f32, 1.0], 2, &[]);
    assert_eq!(value("delta_nats", &logits), None);
    assert_eq!(value("kl", &logits), Some(0.0));
}

#[test]
fn a_logit_that_is_not_finite_makes_every_metric_nan() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let logits = Logits::new(&[0.0f32, 1.0, 2.0, 3.0], &[0.0f32, 1.0, 2.0, bad], 2, &[1]);
        assert_eq!((logits.nonfinite_want, logits.nonfinite_got), (0, 1));
        for name in ["kl", "kl_max", "top1", "flip_gap", "delta_nats"] {
            assert!(value(name, &logits).unwrap().is_nan(), "{name}");
        }
    }
}

#[test]
#[should_panic(expected = "3 targets for 2 rows")]
fn more_targets_than_rows() {
    Logits::new(&[0.0f32; 4], &[0.0f32; 4], 2, &[0, 0, 0]);
}

/// Four positions: right in both, lost, gained, wrong in both; and a fifth without a target.
#[test]
fn flips_have_a_direction() {
    let want = [1.0f32, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 1.0, 1.0, 0.0];
    let got = [1.0f32, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 0.0, 1.0];
    let of = |got: &[f32], targets: &[u32]| {
        let found = flips::of_logits(&want, got, 2, targets);
        found
            .into_iter()
            .map(|(metric, value)| (metric.name, value))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        of(&got, &[0, 0, 0, 0]),
        [("lost", 1.0), ("gained", 1.0), ("net_lost", 0.0)]
    );
    assert_eq!(of(&got, &[0, 0]), [("lost", 1.0), ("gained", 0.0), ("net_lost", 0.5)]);
    assert_eq!(of(&got, &[]), []);
    let mut broken = got;
    broken[9] = f32::NAN;
    assert!(of(&broken, &[0]).iter().all(|(_, value)| value.is_nan()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn agrees_with_the_definition(
        rows in prop::collection::vec(prop::collection::vec((-20.0..20.0f32, -20.0..20.0f32), 7), 1..6),
        targets in prop::collection::vec(0..7u32, 5),
    ) {
        let (want, got): (Vec<f32>, Vec<f32>) = rows.iter().flatten().copied().unzip();
        let targets = &targets[..rows.len() - 1];
        let logits = Logits::new(&want, &got, 7, targets);
        let softmax = |row: &[f32]| {
            let exp: Vec<f64> = row.iter().map(|&x| f64::from(x).exp()).collect();
            let sum: f64 = exp.iter().sum();
            exp.into_iter().map(|x| x / sum).collect::<Vec<_>>()
        };
        let (mut kl, mut delta, mut agree) = (Vec::new(), 0.0, 0);
        for (row, (x, y)) in want.chunks(7).zip(got.chunks(7)).enumerate() {
            let (p, q) = (softmax(x), softmax(y));
            kl.push(p.iter().zip(&q).map(|(p, q)| p * (p.ln() - q.ln())).sum::<f64>());
            if let Some(&target) = targets.get(row) {
                delta += p[target as usize].ln() - q[target as usize].ln();
            }
            let argmax = |p: &[f64]| (0..7).max_by(|&a, &b| p[a].total_cmp(&p[b]).then(b.cmp(&a))).unwrap();
            agree += usize::from(argmax(&p) == argmax(&q));
        }
        let n = kl.len() as f64;
        let of = |name| value(name, &logits).unwrap();
        // Logs of up to 40 nats, a few roundings each.
        assert_close(of("kl"), kl.iter().sum::<f64>() / n, 1e-13);
        assert_close(of("kl_max"), kl.iter().copied().fold(0.0, f64::max), 1e-13);
        prop_assert_eq!(of("top1"), agree as f64 / n);
        prop_assert_eq!(of("flip_gap") == 0.0, agree == rows.len());
        match targets.len() {
            0 => prop_assert_eq!(value("delta_nats", &logits), None),
            count => assert_close(of("delta_nats"), delta / count as f64, 1e-13),
        }
    }

    #[test]
    fn kl_is_never_negative_and_zero_for_the_same(
        x in prop::collection::vec(-30.0..30.0f32, 40),
        noise in prop::collection::vec(-1e-7..1e-7f64, 40),
    ) {
        let y: Vec<f64> = x.iter().zip(&noise).map(|(&x, noise)| f64::from(x) + noise).collect();
        prop_assert!(value("kl", &Logits::new(&x, &y, 40, &[])).unwrap() >= 0.0);
        prop_assert_eq!(value("kl", &Logits::new(&x, &x, 40, &[])), Some(0.0));
    }
}
