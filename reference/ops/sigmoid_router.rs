//! Which experts a token goes to by a sigmoid of each logit, with groups of experts, and with what weights.
//!
//! σ_e = sigmoid(logit_e), s_e = σ_e + bias_e. The bias only selects: of the groups whose two largest s have the largest sums a
//! token takes the k largest s. Weights are γ·σ_e / Σ σ over the selected, or γ·σ_e.

use super::router;
use super::top_k::top_k;
use crate::{Choice, Real, Tensor};

/// Groups of experts, all of the same size; each has two experts or more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Groups {
    /// How many there are.
    pub count: usize,
    /// How many of them a token may select of.
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
    let mut weights = Tensor::full([choice.rows(), choice.k], T::ZERO);
    for row in 0..choice.rows() {
        for (slot, index) in choice.selected(row).enumerate() {
            weights.row_mut(row)[slot] = sigma.row(row)[index] * scale;
        }
    }
    weights
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIGMA: [f64; 6] = [0.9, 0.1, 0.6, 0.5, 0.2, 0.7];

    fn selected(bias: [f64; 6], groups: [usize; 2], k: usize) -> Choice<f64> {
        let [count, kept] = groups;
        select(&Tensor::new([1, 6], SIGMA.to_vec()), &bias, Groups { count, kept }, k)
    }

    /// One expert is the best of all, and its group is not: the two largest count, with their biases.
    #[test]
    fn groups_are_kept_by_their_two_largest() {
        assert_eq!(selected([0.0; 6], [1, 1], 2).indices, [0, 5]);
        assert_eq!(selected([0.0; 6], [3, 1], 2).indices, [2, 3]);
        assert_eq!(selected([0.0; 6], [3, 2], 2).indices, [0, 2]);
        assert_eq!(selected([0.0, 0.0, 0.0, 0.0, 0.4, 0.0], [3, 1], 2).indices, [5, 4]);
        let choice = selected([0.0, 0.0, 0.0, 0.0, 0.4, 0.0], [3, 1], 1);
        let out = f64::NEG_INFINITY;
        assert_eq!(choice.scores.data[..4], [out; 4]);
        assert!((choice.scores.data[4] - 0.6).abs() < 1e-15);
    }

    #[test]
    fn a_bias_selects_and_does_not_weigh() {
        let sigma = Tensor::new([1, 6], SIGMA.to_vec());
        let choice = selected([-1.0, 0.0, 0.0, 0.5, 0.0, 0.0], [2, 2], 2);
        assert_eq!(choice.indices, [3, 5]);
        let near = |got: Tensor<f64>, want: [f64; 2]| {
            let far = got.data.iter().zip(want).map(|(got, want)| (got - want).abs());
            assert!(far.fold(0.0, f64::max) < 1e-15, "{:?}", got.data);
        };
        near(weights(&sigma, &choice, false, 2.0), [1.0, 1.4]);
        near(weights(&sigma, &choice, true, 2.0), [1.0 / 1.2, 1.4 / 1.2]);
    }
}
