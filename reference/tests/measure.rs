//! Distances between what was computed and what was wanted.

use reference::Real;

/// ‖got − want‖ / ‖want‖, Frobenius.
pub fn relative<T: Real, U: Real>(got: &[T], want: &[U]) -> f64 {
    assert_eq!(got.len(), want.len());
    let difference = got.iter().zip(want).map(|(&a, &b)| (a.into() - b.into()).powi(2));
    let size = want.iter().map(|&x| x.into().powi(2)).sum::<f64>();
    (difference.sum::<f64>() / size).sqrt()
}

/// max |got − want|; infinite where one is NaN.
pub fn farthest<T: Real, U: Real>(got: &[T], want: &[U]) -> f64 {
    assert_eq!(got.len(), want.len());
    let difference = got.iter().zip(want).map(|(&a, &b)| (a.into() - b.into()).abs());
    difference.fold(0.0, |top, x| if x.is_nan() { f64::INFINITY } else { top.max(x) })
}

/// max |x|.
pub fn top<T: Real>(x: &[T]) -> f64 {
    x.iter().map(|&x| x.into().abs()).fold(0.0, f64::max)
}
