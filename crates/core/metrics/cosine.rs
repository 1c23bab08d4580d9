use super::{Evidence, Pair};

metrics! {
    /// The cosine is ⟨x, y⟩ / (‖x‖ ‖y‖), or 1 if both tensors are zero, or 0 if only one is zero.
    ///
    /// The cosine does not depend on scale, and is quadratic in the error: 1 − cos is half of [`nsr`](super::NSR) if the error is
    /// small and orthogonal to x. So use gates on the cosine and on `diff` together.
    COSINE "cosine" "" Higher NearOne [-1.0, 1.0] Pair(|pair| pair.judge(|pair| 1.0 - distance(pair)));
        "cosine of the angle between the tensors; blind to scale"
}

/// Returns 1 − cosine without cancellation near 1. Its error is about 1e-15 · √NSR (noise-to-signal ratio), whereas the cosine
/// itself has a resolution of 1.1e-16.
pub fn cosine_distance(pair: &Pair) -> Option<f64> {
    pair.judge(distance)
}

fn distance(pair: &Pair) -> f64 {
    if pair.xx == 0.0 || pair.yy == 0.0 {
        return if pair.xx == pair.yy { 0.0 } else { 1.0 };
    }
    let (x, y) = (pair.xx.sqrt(), pair.yy.sqrt());
    let distance = if pair.ee < 0.25 * pair.xx {
        // Solves ‖x − y‖² = (‖x‖ − ‖y‖)² + 2 ‖x‖ ‖y‖ (1 − cos) for 1 − cos.
        let radial = (pair.xx - pair.yy) / (x + y);
        (pair.ee - radial * radial) / (2.0 * x * y)
    } else {
        1.0 - pair.xy / (x * y)
    };
    distance.clamp(0.0, 2.0)
}
