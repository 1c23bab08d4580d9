//! The k best of a row, with ties that always fall the same way.

use crate::Real;

/// Indices of the `k` largest scores among the first `visible`, best first: score descending, then smaller index, so that equal
/// scores are chosen the same way everywhere. Fewer than `k` candidates leave −1 at the end. NaN counts as largest.
pub fn top_k<T: Real>(scores: &[T], visible: usize, k: usize, out: &mut [i32]) {
    out.fill(-1);
    // The total order tells −0 from 0, which adding zero makes equal, and puts NaN of either sign at its ends.
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
