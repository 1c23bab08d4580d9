metrics! {
    /// The candidate's choice is its first largest logit; if the reference has several largest logits, any of them is right.
    TOP1 "top1" "" Higher Share [0.0, 1.0] Logits(|logits| logits.mean(logits.agree as f64));
        "share of positions where both models prefer the same token"

    /// Largest lead of the reference's first choice over the candidate's, in the reference's own logits, where the two
    /// differ: the log of how many times likelier the overturned token was. 0 if nothing flipped.
    ///
    /// `top1` counts flips, near-ties included; this shows whether one of them overturned a clear preference.
    FLIP_GAP "flip_gap" "nats" Lower Significant [0.0, DIFFERENCE]
        Logits(|logits| logits.judge(|logits| logits.flip_gap));
        "largest lead, in the reference's logits, of a top choice that the candidate changed"
}
