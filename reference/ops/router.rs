//! Router with scores √softplus(logit): selects experts for each token, and computes the weights of the selected experts.
//!
//! The score of expert e is σ_e = √softplus(logit_e). Layers with a learned router select the experts with the k largest
//! σ_e + bias_e (the bias affects only the selection). Layers with a hash router look up the experts by token id. Weights are
//! γ·σ_e / Σ σ over the selected experts, with a constant γ of the model.

use super::linear_attention::softplus;
use super::top_k::top_k;
use crate::{Choice, Real, Tensor};

/// Selection rule of a layer.
#[derive(Clone, Debug)]
pub enum Selection<T> {
    /// Bias per expert, `[experts]`, added to σ for the selection only.
    Bias(Vec<T>),
    /// Expert indices by token id, `[vocabulary, k]`.
    Table(Vec<u32>),
}

/// Replaces every x by √softplus(x).
pub fn sqrt_softplus<T: Real>(logits: &mut Tensor<T>) {
    for x in &mut logits.data {
        *x = softplus(*x).sqrt();
    }
}

/// Selects `k` experts for each row of σ. The scores of the choice are σ + bias, or σ if a table gives the experts of a token id.
pub fn select<T: Real>(sigma: &Tensor<T>, selection: &Selection<T>, ids: &[u32], k: usize) -> Choice<T> {
    let mut scores = sigma.clone();
    let mut indices = vec![-1; sigma.rows() * k];
    let rows = scores.data.chunks_exact_mut(sigma.cols());
    for (row, (scores, indices)) in rows.zip(indices.chunks_exact_mut(k)).enumerate() {
        match selection {
            Selection::Bias(bias) => {
                scores.iter_mut().zip(bias).for_each(|(score, &bias)| *score += bias);
                top_k(scores, scores.len(), k, indices);
            }
            Selection::Table(table) => {
                let experts = &table[ids[row] as usize * k..][..k];
                let slots = indices.iter_mut().zip(experts);
                slots.for_each(|(index, &expert)| *index = expert as i32);
            }
        }
    }
    Choice { indices, k, scores }
}

/// Returns the weights γ·σ_e / Σ σ of the selected experts, `[rows, k]` in the order of `choice.indices`; γ is `scale`.
pub fn weights<T: Real>(sigma: &Tensor<T>, choice: &Choice<T>, scale: T) -> Tensor<T> {
    // transformers and DeepSeek's TileKernels add this number to the sum, so that all-zero σ gives zero weights and not NaN.
    let tiny = T::from_f64(1e-20);
    of_selected(sigma, choice, |weights| {
        let mut sum = tiny;
        weights.iter().for_each(|&x| sum += x);
        weights.iter_mut().for_each(|x| *x = *x / sum * scale);
    })
}

/// Applies `weigh` to the values of each row's selected experts; returns the results `[rows, k]` in the order of
/// `choice.indices`.
pub(super) fn of_selected<T: Real>(values: &Tensor<T>, choice: &Choice<T>, weigh: impl Fn(&mut [T])) -> Tensor<T> {
    let mut weights = Tensor::full([values.rows(), choice.k], T::ZERO);
    for row in 0..values.rows() {
        let selected = choice.selected(row).map(|expert| values.row(row)[expert]);
        let mut selected: Vec<T> = selected.collect();
        weigh(&mut selected);
        weights.row_mut(row)[..selected.len()].copy_from_slice(&selected);
    }
    weights
}
