use super::{Better, Eval, Metric, Show};

/// Mean over positions of KL(want ‖ got) = Σ p (log p − log q) of the next-token distributions at temperature 1.
pub const KL: Metric = Metric {
    name: "kl",
    doc: "mean Kullback-Leibler divergence of the next-token distributions",
    unit: "nats",
    better: Better::Lower,
    show: Show::Significant,
    eval: Eval::Logits(|logits| logits.judge(|logits| logits.kl / logits.rows as f64)),
};

/// The KL divergence at the worst position.
pub const KL_MAX: Metric = Metric {
    name: "kl_max",
    doc: "largest Kullback-Leibler divergence of a position",
    unit: "nats",
    better: Better::Lower,
    show: Show::Significant,
    eval: Eval::Logits(|logits| logits.judge(|logits| logits.kl_max)),
};
