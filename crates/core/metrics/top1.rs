metrics! {
    /// The candidate's choice is its first largest logit. If the reference has several largest logits, each of them counts as
    /// agreement.
    TOP1 "top1" "" Higher Share [0.0, 1.0] Logits(|logits| logits.mean(logits.agree as f64));
        "share of positions where both models prefer the same token"

    /// Largest lead of the reference's first choice over the candidate's first choice, in the reference's logits, over positions
    /// where the two choices differ. The lead is the log of the ratio of their probabilities. 0 if nothing flipped.
    ///
    /// `top1` counts all flips, including near-ties; this metric shows if a flip overturned a clear preference.
    FLIP_GAP "flip_gap" "nats" Lower Significant [0.0, DIFFERENCE]
        Logits(|logits| logits.judge(|logits| logits.flip_gap));
        "largest lead, in the reference's logits, of a top choice that the candidate changed"
}
