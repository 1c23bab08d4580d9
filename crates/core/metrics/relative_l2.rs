use super::nsr::nsr;

metrics! {
    /// ‖x − y‖ / ‖x‖, the relative error in the Frobenius norm.
    RELATIVE_L2 "relative_l2" "" Lower Significant [0.0, RATIO] Pair(|pair| pair.judge(|pair| nsr(pair).sqrt()));
        "norm of the error over norm of the reference"
}
