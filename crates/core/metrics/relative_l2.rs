use super::nsr::nsr;
use super::{Better, Eval, Metric, Show};

/// ‖x − y‖ / ‖x‖, the relative error in the Frobenius norm.
pub const RELATIVE_L2: Metric = Metric {
    name: "relative_l2",
    doc: "norm of the error over norm of the reference",
    unit: "",
    better: Better::Lower,
    show: Show::Significant,
    eval: Eval::Pair(|pair| pair.judge(|pair| nsr(pair).sqrt())),
};
