metrics! {
    /// Mean over positions of KL(want ‖ got) = Σ p (log p − log q) of the next-token distributions at temperature 1.
    KL "kl" "nats" Lower Significant [0.0, DIFFERENCE]
        Logits(|logits| logits.judge(|logits| logits.kl / logits.rows as f64));
        "mean Kullback-Leibler divergence of the next-token distributions"

    KL_MAX "kl_max" "nats" Lower Significant [0.0, DIFFERENCE] Logits(|logits| logits.judge(|logits| logits.kl_max));
        "largest Kullback-Leibler divergence of a position"
}
