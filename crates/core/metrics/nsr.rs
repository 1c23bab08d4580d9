use super::Pair;

metrics! {
    /// Noise-to-signal ratio ‖x − y‖² / ‖x‖²; 0 without any error, +∞ if only the reference is zero.
    NSR "nsr" "" Lower Significant [0.0, RATIO * RATIO] Pair(|pair| pair.judge(nsr));
        "energy of the error over energy of the reference"
}

pub(super) fn nsr(pair: &Pair) -> f64 {
    if pair.ee == 0.0 { 0.0 } else { pair.ee / pair.xx }
}
