use super::{Better, Eval, Metric, Show};

/// [`DELTA_NATS`] by the bytes of the text, so that models with other tokenizers compare. It is measured where the text is known,
/// and only where a token is no byte.
pub const DELTA_NATS_PER_BYTE: Metric = Metric {
    name: "delta_nats_per_byte",
    doc: "mean loss of likelihood on the text that really followed, per byte, of a model whose tokens are no bytes",
    unit: "nats",
    better: Better::Lower,
    show: Show::Signed,
    eval: Eval::Kernel,
};

/// Mean over the targets of the candidate's minus the reference's negative log-likelihood: per token, so per byte for a
/// byte-level model. It is negative if the candidate predicts the text better, and undefined without targets.
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
