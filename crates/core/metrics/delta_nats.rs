metrics! {
    /// [`DELTA_NATS`] by the bytes of the text, so that models with other tokenizers compare. It is measured where the text is
    /// known, and only if a token is not a byte.
    DELTA_NATS_PER_BYTE "delta_nats_per_byte" "nats" Lower Signed [-DIFFERENCE, DIFFERENCE] Kernel;
        "mean loss of likelihood on the text that really followed, per byte, of a model whose tokens are no bytes"

    /// Mean over the targets of the candidate's minus the reference's negative log-likelihood: per token, so per byte for a
    /// byte-level model. It is negative if the candidate predicts the text better, and undefined without targets.
    DELTA_NATS "delta_nats" "nats" Lower Signed [-DIFFERENCE, DIFFERENCE] Logits(|logits| match logits.targets {
        0 => None,
        targets => logits.judge(|logits| logits.delta_nats / targets as f64),
    });
        "mean loss of likelihood on the text that really followed, per token"
}
