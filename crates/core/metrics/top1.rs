metrics! {
    /// The candidate's choice is its first largest logit; if the reference has several largest logits, any of them is right.
    TOP1 "top1" "" Higher Share [0.0, 1.0]
        Logits(|logits| logits.judge(|logits| logits.agree as f64 / logits.rows as f64));
        "share of positions where both models prefer the same token"
}
