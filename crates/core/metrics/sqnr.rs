use super::nsr::nsr;

metrics! {
    /// −10 log₁₀ nsr; +∞ without any error. One bit of mantissa is worth 6.02 dB.
    SQNR "sqnr" "dB" Higher Decibels [-DECIBELS, DECIBELS] Pair(|pair| pair.judge(|pair| -10.0 * nsr(pair).log10()));
        "signal-to-quantization-noise ratio"
}
