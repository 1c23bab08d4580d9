//! Selection of the k largest scores of a row, with a defined order of ties.

use crate::Real;

/// Writes the indices of the `k` largest of the first `visible` scores to `out`, largest first. Equal scores are ordered by
/// ascending index, so that every implementation selects the same entries. If `visible` is less than `k`, the remaining indices
/// are −1. NaN counts as the largest score.
pub fn top_k<T: Real>(scores: &[T], visible: usize, k: usize, out: &mut [i32]) {
    out.fill(-1);
    // `total_cmp` orders −0 before 0: add zero, which makes the two equal. `total_cmp` also orders NaN by sign: replace each NaN
    // by a positive NaN, which is the largest.
    let key = |&score: &T| match Into::<f64>::into(score) {
        score if score.is_nan() => f64::NAN,
        score => score + 0.0,
    };
    let order = |a: &(f64, i32), b: &(f64, i32)| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1));
    let mut candidates: Vec<(f64, i32)> = scores[..visible].iter().map(key).zip(0..).collect();
    if visible > k && k > 0 {
        candidates.select_nth_unstable_by(k - 1, order);
        candidates.truncate(k);
    }
    candidates.sort_unstable_by(order);
    for (out, (_, index)) in out.iter_mut().zip(candidates) {
        *out = index;
    }
}
