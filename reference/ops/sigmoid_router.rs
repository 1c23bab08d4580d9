//! Router of a token to experts by a sigmoid of each logit, with groups of experts, and their weights.
//!
//! σ_e = sigmoid(logit_e), s_e = σ_e + bias_e. The bias only selects: of the groups whose two largest s have the largest sums a
//! token takes the k largest s. Weights are γ·σ_e / Σ σ over the selected, or γ·σ_e.

use super::router;
use super::top_k::top_k;
use crate::{Choice, Real, Tensor};

/// Groups of experts, all of the same size; each has two experts or more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Groups {
    /// Number of groups.
    pub count: usize,
    /// Number of groups that a token's experts may come from.
    pub kept: usize,
}

/// Selects `k` experts for each row of σ `[rows, experts]`; the scores in the choice are σ + bias, −∞ in groups that are not kept.
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

/// The sum of the two largest.
fn two_largest<T: Real>(scores: &[T]) -> T {
    let mut best = [-1; 2];
    top_k(scores, scores.len(), 2, &mut best);
    let best = best.iter().filter_map(|&at| usize::try_from(at).ok());
    best.fold(T::ZERO, |sum, at| sum + scores[at])
}

/// The weights of the selected experts, `[rows, k]` in the order of the choice: γ·σ_e, divided by the sum of the selected σ where
/// they are `normalised`.
pub fn weights<T: Real>(sigma: &Tensor<T>, choice: &Choice<T>, normalised: bool, scale: T) -> Tensor<T> {
    if normalised {
        return router::weights(sigma, choice, scale);
    }
    let scaled = |weights: &mut [T]| weights.iter_mut().for_each(|x| *x *= scale);
    router::of_selected(sigma, choice, scaled)
}
