use super::{Better, Eval, Metric, Show};

/// Mean over the targets of got's − want's negative log-likelihood: per token, so per byte for a byte-level model.
/// Negative if the candidate predicts the text better. Not defined without targets.
pub const DELTA_NATS: Metric = Metric {
    name: "delta_nats",
    doc: "mean loss of likelihood on the text that really followed, per token",
    unit: "nats",
    better: Better::Lower,
    show: Show::Signed,
    eval: Eval::Logits(|logits| match logits.targets {
        0 => None,
        targets => logits.judge(|logits| logits.delta_nats / targets as f64),
    }),
};
