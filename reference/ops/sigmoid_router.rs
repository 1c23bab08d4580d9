//! Router with scores sigmoid(logit) and groups of experts: selects experts for each token, and computes the weights of the
//! selected experts.
//!
//! Expert e has σ_e = sigmoid(logit_e) and the score s_e = σ_e + bias_e, which affects only the selection. A group is ranked by
//! the sum of its two largest s. A token selects, within the best groups, the k experts with the largest s. Weights are γ·σ_e,
//! with a constant γ of the model; some models divide them by the sum of σ over the selected experts.

use super::router;
use super::top_k::top_k;
use crate::{Choice, Real, Tensor};

/// Groups of experts, all of the same size; each has at least two experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Groups {
    /// Number of groups.
    pub count: usize,
    /// Number of best groups from which a token selects experts.
    pub kept: usize,
}

/// Selects `k` experts for each row of σ `[rows, experts]`. The scores of the choice are σ + bias, or −∞ in groups that are not
/// kept.
pub fn select<T: Real>(sigma: &Tensor<T>, bias: &[T], groups: Groups, k: usize) -> Choice<T> {
    let mut scores = sigma.clone();
    let (experts, size) = (scores.cols(), scores.cols() / groups.count);
    let mut indices = vec![-1; sigma.rows() * k];
    for (scores, indices) in scores.data.chunks_exact_mut(experts).zip(indices.chunks_exact_mut(k)) {
        scores.iter_mut().zip(bias).for_each(|(score, &bias)| *score += bias);
        let of_groups: Vec<T> = scores.chunks_exact(size).map(two_largest).collect();
        let mut kept = vec![-1; groups.kept];
        top_k(&of_groups, groups.count, groups.kept, &mut kept);
        for (group, scores) in (0..).zip(scores.chunks_exact_mut(size)) {
            if !kept.contains(&group) {
                scores.fill(T::NEG_INFINITY);
            }
        }
        top_k(scores, experts, k, indices);
    }
    Choice { indices, k, scores }
}

/// Returns the sum of the two largest scores.
fn two_largest<T: Real>(scores: &[T]) -> T {
    let mut best = [-1; 2];
    top_k(scores, scores.len(), 2, &mut best);
    let best = best.iter().filter_map(|&at| usize::try_from(at).ok());
    best.fold(T::ZERO, |sum, at| sum + scores[at])
}

/// Returns the weights of the selected experts, `[rows, k]` in the order of `choice.indices`: γ·σ_e with γ = `scale`, divided by
/// the sum of the selected σ if `normalised`.
pub fn weights<T: Real>(sigma: &Tensor<T>, choice: &Choice<T>, normalised: bool, scale: T) -> Tensor<T> {
    if normalised {
        return router::weights(sigma, choice, scale);
    }
    let scaled = |weights: &mut [T]| weights.iter_mut().for_each(|x| *x *= scale);
    router::of_selected(sigma, choice, scaled)
}
