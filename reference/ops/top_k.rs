//! Selection of the k largest scores of a row, with a defined order of ties.

use crate::Real;

/// Writes the indices of the `k` largest scores among the first `visible`, best first. Equal scores are ordered by ascending
/// index, so that every implementation selects the same entries. If there are fewer than `k` candidates, the rest is −1. NaN
/// counts as largest.
pub fn top_k<T: Real>(scores: &[T], visible: usize, k: usize, out: &mut [i32]) {
    out.fill(-1);
    // The total order distinguishes −0 from 0: adding zero makes them equal. The total order also sorts NaN by sign: use a
    // positive NaN.
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
