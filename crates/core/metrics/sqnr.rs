use super::nsr::nsr;
use super::{Better, Eval, Metric, Show};

/// Signal-to-quantization-noise ratio −10 log₁₀ nsr; +∞ without any error. One bit of mantissa is worth 6.02 dB.
pub const SQNR: Metric = Metric {
    name: "sqnr",
    doc: "signal-to-quantization-noise ratio",
    unit: "dB",
    better: Better::Higher,
    show: Show::Decibels,
    eval: Eval::Pair(|pair| pair.judge(|pair| -10.0 * nsr(pair).log10())),
};
