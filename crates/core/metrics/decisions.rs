metrics! {
    GATE_AGREEMENT "gate_agreement" "" Higher Share [0.0, 1.0]
        Decisions(|decisions| decisions.mean(decisions.same_gate as f64));
        "share of rows whose gates are both open or both closed"

    /// The metric is undefined if no row has an open gate in both the reference and the candidate.
    BANK_AGREEMENT "bank_agreement" "" Higher Share [0.0, 1.0] Decisions(|decisions| {
        let open = decisions.both_open;
        decisions.judge(|decisions| (open > 0).then(|| decisions.same_bank as f64 / open as f64))
    });
        "share of rows with both gates open in which both select the same bank"

    /// Compare this margin with the error of the logits, to distinguish near-ties from other causes of flips. The margin is 0 if
    /// no decision flipped.
    FLIP_MARGIN "flip_margin" "" Lower Significant [0.0, DIFFERENCE]
        Decisions(|decisions| decisions.judge(|decisions| decisions.median()));
        "median margin, in the reference's logits, of flipped decisions"

    FLIP_MARGIN_MAX "flip_margin_max" "" Lower Significant [0.0, DIFFERENCE]
        Decisions(|decisions| decisions.judge(|decisions| decisions.largest()));
        "largest margin, in the reference's logits, of a flipped decision"

    /// Counts the flips that the stated bound on the error of the logits does not explain.
    FLIPS_OUTSIDE "flips_outside" "" Lower Count [0.0, COUNT]
        Decisions(|decisions| decisions.judge(|decisions| decisions.outside as f64));
        "number of flipped decisions whose margin in the reference is above the stated margin"
}
