use super::{Better, Eval, Metric, Pair, Show};

/// Noise-to-signal ratio ‖x − y‖² / ‖x‖²; 0 without any error, +∞ if only the reference is zero.
pub const NSR: Metric = Metric {
    name: "nsr",
    doc: "energy of the error over energy of the reference",
    unit: "",
    better: Better::Lower,
    show: Show::Significant,
    eval: Eval::Pair(|pair| pair.judge(nsr)),
};

pub(super) fn nsr(pair: &Pair) -> f64 {
    if pair.ee == 0.0 { 0.0 } else { pair.ee / pair.xx }
}
