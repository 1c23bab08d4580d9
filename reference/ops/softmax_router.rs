//! Softmax router: selects experts for each token, and computes the weights of the selected experts.

use super::router::of_selected;
use super::top_k::top_k;
use crate::{Choice, Real, Tensor};

/// Set of experts over which the softmax is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Softmax {
    /// Softmax over all experts, before the selection; the selected weights are divided by their sum if `normalised`.
    OfAll {
        /// True if the weights of a token sum to 1.
        normalised: bool,
    },
    /// Softmax over the logits of the selected experts.
    OfSelected,
}

/// Selects `k` experts for each row of logits `[rows, experts]`. The scores of the choice are probabilities if the softmax is
/// over all experts, and logits if it is over the selected experts.
pub fn select<T: Real>(logits: &Tensor<T>, k: usize, over: Softmax) -> Choice<T> {
    let mut scores = logits.clone();
    let experts = scores.cols();
    let mut indices = vec![-1; logits.rows() * k];
    for (scores, indices) in scores.data.chunks_exact_mut(experts).zip(indices.chunks_exact_mut(k)) {
        if over != Softmax::OfSelected {
            softmax(scores);
        }
        top_k(scores, experts, k, indices);
    }
    Choice { indices, k, scores }
}

/// Returns the weights of the selected experts, `[rows, k]` in the order of `choice.indices`.
pub fn weights<T: Real>(choice: &Choice<T>, over: Softmax) -> Tensor<T> {
    of_selected(&choice.scores, choice, |weights| match over {
        Softmax::OfAll { normalised: false } => {}
        Softmax::OfAll { normalised: true } => {
            let mut sum = T::ZERO;
            weights.iter().for_each(|&x| sum += x);
            weights.iter_mut().for_each(|x| *x = *x / sum);
        }
        Softmax::OfSelected => softmax(weights),
    })
}

/// Converts logits to probabilities in place.
pub(crate) fn softmax<T: Real>(x: &mut [T]) {
    let top = x.iter().copied().fold(T::NEG_INFINITY, T::max);
    let mut sum = T::ZERO;
    for x in x.iter_mut() {
        *x = (*x - top).exp();
        sum += *x;
    }
    x.iter_mut().for_each(|x| *x = *x / sum);
}
