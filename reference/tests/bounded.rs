//! Numbers with a bound of the error of their f32 computation.

use reference::Bounded;
use reference::Real;
use reference::ops::linear::Product;

#[test]
fn a_sum_is_bounded_in_any_order() {
    let terms: Vec<f32> = (0..200)
        .map(|i| ((i * 37 % 101) as f32 - 50.0) * 1.1f32.powi(i % 60))
        .collect();
    let sum = terms.iter().fold(Bounded::ZERO, |sum, &x| sum + Bounded::exact(x));
    let ahead = terms.iter().fold(0f32, |sum, x| sum + x);
    let back = terms.iter().rev().fold(0f32, |sum, x| sum + x);
    let error = |got: f32| (f64::from(got) - sum.value()).abs();
    assert!(
        error(ahead) > 0.0 && error(ahead) <= sum.error(),
        "{} of {}",
        error(ahead),
        sum.error()
    );
    assert!(error(back) > 0.0 && error(back) <= sum.error());
    let mut grouped = Bounded::ZERO;
    for group in terms.chunks(7) {
        grouped += group.iter().fold(Bounded::ZERO, |sum, &x| sum + Bounded::exact(x));
    }
    assert!(
        (grouped.error() / sum.error() - 1.0).abs() < 1e-9,
        "the order leaves the bound alone"
    );
}

#[test]
fn products_of_matrices_are_bounded_as_sums_of_products() {
    let number = |i: usize| Bounded::new((i * 37 % 101) as f64 - 50.0, (i % 3) as f64 * 1e-6);
    let (m, n, k) = (3, 2, 21);
    let (x, w): (Vec<_>, Vec<_>) = (
        (0..m * k).map(number).collect(),
        (0..n * k).map(|i| number(i + 7)).collect(),
    );
    let mut y = vec![Bounded::ONE; m * n];
    let product = Product {
        m,
        n,
        k,
        x: &x,
        x_stride: k,
        w: &w,
        w_strides: (1, n),
        y_stride: n,
        add: true,
    };
    product.run(&mut y);
    for (at, y) in y.iter().enumerate() {
        let (row, column) = (at / n, at % n);
        let terms = (0..k).map(|i| x[row * k + i] * w[i * n + column]);
        let want = terms.fold(Bounded::ONE, |sum, term| sum + term);
        assert_eq!(y.value(), want.value());
        assert!((y.error() / want.error() - 1.0).abs() < 1e-12, "{y:?}, {want:?}");
    }
}

#[test]
fn what_is_likely_of_a_sum_is_less_than_the_worst() {
    let terms = (0..4096).map(|i| Bounded::exact(if i * 37 % 101 < 50 { 1.0 } else { -1.0 }));
    let sum = terms.fold(Bounded::ZERO, |sum, term| sum + term);
    let u = 2f64.powi(-24);
    // The magnitudes of 4096 terms are 4096, and each is rounded as often.
    let worst = 4096.0 * 4096.0 * u;
    assert!(sum.error() < 0.3 * worst && sum.error() > 64.0 * 8.0 * 64.0 * u);
}

#[test]
fn what_cannot_be_bounded_is_not_finite() {
    let near_zero = Bounded::new(1e-9, 1e-8);
    assert!(!(Bounded::ONE / near_zero).error().is_finite());
    assert!(!(Bounded::new(-0.5, 1.0).ln_1p()).error().is_finite());
    assert!(!(Bounded::new(f64::NAN, 0.0) * Bounded::ONE).error().is_finite());
}

#[test]
fn a_root_near_zero_may_be_as_large_as_that_of_the_error() {
    assert!(Bounded::new(0.0, 1e-8).sqrt().error() >= 1e-4);
    assert!(Bounded::new(1e-8, 1e-8).sqrt().error() >= 1e-4);
}

#[test]
fn masked_scores_are_exact_zeros() {
    let p = (Bounded::NEG_INFINITY - Bounded::new(3.0, 1e-6)).exp();
    assert_eq!((p.value(), p.error()), (0.0, 0.0));
    let top = Bounded::NEG_INFINITY.max(Bounded::new(3.0, 1e-6));
    assert_eq!((top.value(), top.error()), (3.0, 1e-6));
}
