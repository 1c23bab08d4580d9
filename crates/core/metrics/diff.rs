metrics! {
    /// 1 − 2⟨x, y⟩ / (‖x‖² + ‖y‖²), DeepGEMM's `calc_diff`; 0 if both tensors are zero.
    ///
    /// The formula is ‖x − y‖² / (‖x‖² + ‖y‖²), which is equal and avoids cancellation. It is about half of `nsr`; unlike
    /// the cosine it sees scale: y = s·x gives 1 − 2s / (1 + s²).
    DIFF "diff" "" Lower Significant [0.0, 2.0]
        Pair(|pair| pair.judge(|pair| if pair.ee == 0.0 { 0.0 } else { pair.ee / (pair.xx + pair.yy) }));
        "1 - 2<x,y>/(|x|^2+|y|^2), the scale-aware difference of DeepGEMM's tests"
}
