//! Loss of a model on a text, and its difference from the reference's loss.

use super::evidence::Row;

metrics! {
    /// The mean negative log-likelihood over all target tokens is the usual loss of language models. A model that gives all
    /// tokens the same probability has the loss ln(vocabulary size).
    NATS "nats" "nats" Lower Significant [0.0, DIFFERENCE] Kernel;
        "the model's own loss: mean negative log-likelihood of the text that really followed, per token"

    /// [`NATS`] per byte of the text, which makes models with different tokenizers comparable. Callers that have the text compute
    /// this metric, but not for models whose tokens are bytes.
    NATS_PER_BYTE "nats_per_byte" "nats" Lower Significant [0.0, DIFFERENCE] Kernel;
        "the model's own loss per byte of text, of a model whose tokens are no bytes"

    /// Over windows of the same length, the geometric mean of perplexities equals the perplexity of all their tokens together. So
    /// reports average this metric by the geometric mean.
    PERPLEXITY "perplexity" "" Lower Significant [1.0, f64::MAX] Kernel;
        "the model's own perplexity: e to the power of `nats`; over windows the geometric mean"

    /// [`DELTA_NATS`] per byte of the text, which makes models with different tokenizers comparable. Callers that have the text
    /// compute this metric, but not for models whose tokens are bytes.
    DELTA_NATS_PER_BYTE "delta_nats_per_byte" "nats" Lower Signed [-DIFFERENCE, DIFFERENCE] Kernel;
        "mean loss of likelihood on the text that really followed, per byte, of a model whose tokens are no bytes"

    /// The negative log-likelihood of the candidate minus that of the reference, as a mean over the target tokens (bytes for a
    /// byte-level model). It is negative if the candidate predicts the text better, and undefined without targets.
    DELTA_NATS "delta_nats" "nats" Lower Signed [-DIFFERENCE, DIFFERENCE] Logits(|logits| match logits.targets {
        0 => None,
        targets => logits.judge(|logits| logits.delta_nats / targets as f64),
    });
        "mean loss of likelihood on the text that really followed, per token"
}

/// Returns the [`NATS`] of `[rows, vocabulary]` logits, in f64. `targets` holds the next token of the text for each of the first
/// rows. The result is `None` without targets, and NaN if a logit is not finite.
///
/// # Panics
/// If there are more targets than rows, or a target is not in the vocabulary.
pub fn of_logits<X: Copy + Into<f64>>(logits: &[X], vocabulary: usize, targets: &[u32]) -> Option<f64> {
    let rows = logits.chunks_exact(vocabulary.max(1));
    let (given, most) = (targets.len(), rows.len());
    assert!(given <= most, "{given} targets for {most} rows");
    if targets.is_empty() {
        return None;
    }
    if logits.iter().any(|&logit| !logit.into().is_finite()) {
        return Some(f64::NAN);
    }
    let mut row = Row::default();
    let losses = rows.zip(targets).map(|(logits, &target)| {
        row.read(logits);
        row.loss(target as usize)
    });
    Some(losses.sum::<f64>() / given as f64)
}
