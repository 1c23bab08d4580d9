//! What goes wrong in other people's metrics must not go wrong here.

use ulplab::metrics::{Pair, cosine_distance};

use super::{assert_close, value};

const U: f64 = f64::EPSILON / 2.0;

/// Sums in f32, one after the other, as a test harness might.
fn naive_f32_cosine(x: &[f32], y: &[f32]) -> f32 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).fold(0.0, |sum, (a, b)| sum + a * b);
    dot(x, y) / (dot(x, x).sqrt() * dot(y, y).sqrt())
}

#[test]
fn a_cosine_summed_in_f32_exceeds_one() {
    let n = 1 << 24;
    let (x, y) = (vec![1.0f32; n], vec![0.75f32; n]);
    assert!(naive_f32_cosine(&x, &y) > 1.05, "the pitfall is real");
    let pair = Pair::new(&x, &y);
    assert_eq!(value("cosine", &pair), Some(1.0));
    assert_close(value("diff", &pair).unwrap(), 0.0625 / 1.5625, U);
}

#[test]
fn long_sums_keep_their_digits() {
    let n = (1 << 22) + 5;
    let (x, y) = (vec![0.1f32; n], vec![0.3f32; n]);
    let naive = x.iter().fold(0.0f32, |sum, x| sum + x * x);
    let exact = n as f64 * f64::from(0.1f32).powi(2);
    assert!((f64::from(naive) / exact - 1.0).abs() > 1e-3, "the pitfall is real");
    let relative = (f64::from(0.1f32) - f64::from(0.3f32)).abs() / f64::from(0.1f32);
    // All elements alike: a chain of 4096/16 additions, then a tree of 4 + 11 levels, each off by u at most.
    assert_close(
        value("relative_l2", &Pair::new(&x, &y)).unwrap(),
        relative,
        relative * 272.0 * U,
    );
}

#[test]
fn small_errors_do_not_drown_in_a_cosine_near_one() {
    // At a right angle, and beside a gain error: 1 - cos is far below the grain of the cosine, or just above it.
    let distance = |x: [f64; 2], y: [f64; 2]| cosine_distance(&Pair::new(&x, &y)).unwrap();
    assert_close(distance([1.0, 0.0], [1.0, 1e-9]), 5e-19, 1e-27);
    assert_close(distance([3.0, 4.0], [3.0 - 4e-6, 4.0 + 3e-6]), 5e-13, 1e-20);
    assert_close(distance([1.0, 0.0], [1.2, 1.2e-5]), 0.5e-10, 1e-15);
    assert_close(distance([1.0, 0.0], [0.0, 2.0]), 1.0, U);
    assert_close(distance([1.0, 0.0], [-1.0, 1e-3]), 2.0 - 0.5e-6, 1e-12);
    // diff, too, is a quotient of sums and not 1 minus something near 1.
    let pair = Pair::new(&[1.0f64, 0.0], &[1.0, 1e-9]);
    assert_close(value("diff", &pair).unwrap(), 0.5e-18, 1e-27);
}

#[test]
fn a_much_shorter_vector_has_a_direction_too() {
    for scale in [1e-10, 1e-3, 1e3, 1e10] {
        let (x, y) = ([3.0f64, 4.0, 0.0], [3.0 * scale, 4.0 * scale, 0.0]);
        assert_close(value("cosine", &Pair::new(&x, &y)).unwrap(), 1.0, 4.0 * U);
        let across = [-4.0 * scale, 3.0 * scale, 0.0];
        assert_close(value("cosine", &Pair::new(&x, &across)).unwrap(), 0.0, 4.0 * U);
    }
}

#[test]
fn squares_out_of_range_are_scaled() {
    for exponent in [-1060, -700, -300, 0, 300, 600, 1020] {
        let scale = 2f64.powi(exponent.max(-1000)) * 2f64.powi((exponent + 1000).min(0));
        let (x, y) = ([3.0 * scale, 4.0 * scale], [3.0 * scale, 5.0 * scale]);
        let pair = Pair::new(&x, &y);
        let of = |name| value(name, &pair).unwrap();
        assert!(pair.finite());
        assert_close(of("nsr"), 1.0 / 25.0, U);
        assert_close(of("diff"), 1.0 / 59.0, U);
        assert_close(of("cosine"), 29.0 / 850f64.sqrt(), 4.0 * U);
        assert_eq!(of("max_abs"), scale);
        assert_eq!(pair.worst.unwrap().index, 1);
    }
    // f32, subnormal ones included, never leaves the range of f64.
    let tiny = [f32::from_bits(3), f32::from_bits(4)];
    assert_close(
        value("nsr", &Pair::new(&tiny, &[f32::from_bits(3), f32::from_bits(5)])).unwrap(),
        0.04,
        U,
    );
}
