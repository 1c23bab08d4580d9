//! The loss of a model on a text, which needs no reference.

use super::evidence::Row;

metrics! {
    /// The mean is over the targets: it is the loss of language models. A model that guesses uniformly has the logarithm of its
    /// vocabulary.
    NATS "nats" "nats" Lower Significant [0.0, DIFFERENCE] Kernel;
        "the model's own loss: mean negative log-likelihood of the text that really followed, per token"

    /// [`NATS`] by the bytes of the text, so that models with other tokenizers compare. It is measured where the text is known,
    /// and only if a token is not a byte.
    NATS_PER_BYTE "nats_per_byte" "nats" Lower Significant [0.0, DIFFERENCE] Kernel;
        "the model's own loss per byte of text, of a model whose tokens are no bytes"

    /// Over windows of one length its geometric mean is the perplexity of all their tokens together, so that is its mean.
    PERPLEXITY "perplexity" "" Lower Significant [1.0, f64::MAX] Kernel;
        "the model's own perplexity: e to the power of `nats`; over windows the geometric mean"
}

/// The [`NATS`] of logits in `[rows, vocabulary]`, in f64. `targets`: the token that followed at each of the first rows. `None` without
/// targets, NaN if a logit is not finite.
///
/// # Panics
/// If there are more targets than rows, or a target is not in the vocabulary.
pub fn of_logits<X: Copy + Into<f64>>(logits: &[X], vocabulary: usize, targets: &[u32]) -> Option<f64> {
    let rows = logits.chunks_exact(vocabulary.max(1));
    assert!(
        targets.len() <= rows.len(),
        "{} targets for {} rows",
        targets.len(),
        rows.len()
    );
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
    Some(losses.sum::<f64>() / targets.len() as f64)
}
