metrics! {
    /// The candidate chooses the first token with its largest logit. If several tokens have the reference's largest logit, the
    /// choice of any of them counts as agreement.
    TOP1 "top1" "" Higher Share [0.0, 1.0] Logits(|logits| logits.mean(logits.agree as f64));
        "share of positions where both models prefer the same token"

    /// Largest lead, in the reference's logits, of the reference's first choice over the candidate's first choice, among the
    /// positions where these choices differ. The lead is the log of the ratio of their probabilities. The metric is 0 if all
    /// choices agree.
    ///
    /// `top1` counts all flips, including near-ties; this metric shows if a flip overturned a clear preference.
    FLIP_GAP "flip_gap" "nats" Lower Significant [0.0, DIFFERENCE]
        Logits(|logits| logits.judge(|logits| logits.flip_gap));
        "largest lead, in the reference's logits, of a top choice that the candidate changed"
}
