//! Flips of next-token predictions. A position is lost if only the reference predicts the text's next token there, and gained if
//! only the candidate does.

use super::Metric;
use super::evidence::largest;

metrics! {
    LOST "lost" "" Lower Count [0.0, COUNT] Kernel;
        "positions where the reference prefers the text's next token, and the candidate does not"

    GAINED "gained" "" Higher Count [0.0, COUNT] Kernel;
        "positions where the candidate prefers the text's next token, and the reference does not"

    /// Loss of accuracy in predicting the text's next token; negative if the accuracy rises.
    NET_LOST "net_lost" "" Lower Signed [-1.0, 1.0] Kernel;
        "share of positions that are lost, less the share that is gained"
}

/// Returns [`LOST`], [`GAINED`] and [`NET_LOST`] for the logits of two models, `[rows, vocabulary]`, row-major. `targets` holds
/// the next token of the text for each of the first rows. A model predicts the first token with its largest logit. The list is
/// empty without targets; values are NaN if a logit is not finite.
///
/// # Panics
/// If the lengths do not match.
pub fn of_logits<X, Y>(want: &[X], got: &[Y], vocabulary: usize, targets: &[u32]) -> Vec<(&'static Metric, f64)>
where
    X: Copy + Into<f64>,
    Y: Copy + Into<f64>,
{
    assert_eq!(want.len(), got.len(), "logits of the two models");
    assert!(targets.len() * vocabulary <= want.len(), "{} targets", targets.len());
    if targets.is_empty() {
        return Vec::new();
    }
    let finite = want.iter().all(|&x| x.into().is_finite()) && got.iter().all(|&x| x.into().is_finite());
    let rows = want.chunks_exact(vocabulary).zip(got.chunks_exact(vocabulary));
    let (mut lost, mut gained) = (0.0, 0.0);
    for (&target, (want, got)) in targets.iter().zip(rows) {
        let (before, now) = (largest(want).1 == target as usize, largest(got).1 == target as usize);
        lost += f64::from(u8::from(before && !now));
        gained += f64::from(u8::from(now && !before));
    }
    let values = [lost, gained, (lost - gained) / targets.len() as f64];
    let metrics = [&LOST, &GAINED, &NET_LOST];
    let values = values.map(|value| if finite { value } else { f64::NAN });
    metrics.into_iter().zip(values).collect()
}
