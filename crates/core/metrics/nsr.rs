//! Metrics that are based on the energy (squared norm) of the error.

use super::Pair;

metrics! {
    /// 1 − 2⟨x, y⟩ / (‖x‖² + ‖y‖²), DeepGEMM's `calc_diff`; 0 if both tensors are zero.
    ///
    /// It is computed as ‖x − y‖² / (‖x‖² + ‖y‖²), which is equal and avoids cancellation. It is about half of `nsr`. Unlike the
    /// cosine it depends on scale: y = s·x gives 1 − 2s / (1 + s²).
    DIFF "diff" "" Lower Significant [0.0, 2.0]
        Pair(|pair| pair.judge(|pair| if pair.ee == 0.0 { 0.0 } else { pair.ee / (pair.xx + pair.yy) }));
        "1 - 2<x,y>/(|x|^2+|y|^2), the scale-aware difference of DeepGEMM's tests"

    /// ‖x − y‖ / ‖x‖, the relative error in the Frobenius norm.
    RELATIVE_L2 "relative_l2" "" Lower Significant [0.0, RATIO] Pair(|pair| pair.judge(|pair| nsr(pair).sqrt()));
        "norm of the error over norm of the reference"

    /// Noise-to-signal ratio ‖x − y‖² / ‖x‖²; 0 without error, +∞ if only the reference is zero.
    NSR "nsr" "" Lower Significant [0.0, RATIO * RATIO] Pair(|pair| pair.judge(nsr));
        "energy of the error over energy of the reference"

    /// −10 log₁₀ nsr; +∞ without error. One bit of mantissa is worth 6.02 dB.
    SQNR "sqnr" "dB" Higher Decibels [-DECIBELS, DECIBELS] Pair(|pair| pair.judge(|pair| -10.0 * nsr(pair).log10()));
        "signal-to-quantization-noise ratio"
}

pub(super) fn nsr(pair: &Pair) -> f64 {
    if pair.ee == 0.0 { 0.0 } else { pair.ee / pair.xx }
}
