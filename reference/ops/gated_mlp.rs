//! Gated feed-forward layers and mixtures of experts of the form y = W_d(act(W_g x, W_u x)), with the weights of the gate, up and
//! down projections.

use rayon::prelude::*;

use super::projection::Projection;
use crate::real::vectorized;
use crate::{Choice, Real, Tensor};

/// Activation function of the gate g and the up projection u.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation<T> {
    /// SwiGLU: silu(g)·u.
    Silu,
    /// Activation of gpt-oss: g ← min(g, c), u ← clamp(u, −c, c), g·σ(α·g)·(u + 1).
    Clamped {
        /// Factor α in the sigmoid.
        alpha: T,
        /// Limit c of the clamps.
        limit: T,
    },
}

impl<T: Real> Activation<T> {
    /// Applies the activation to an element of the gate and of the up projection. NaN is propagated.
    #[inline(always)]
    pub fn apply(self, gate: T, up: T) -> T {
        match self {
            Self::Silu => gate * gate.sigmoid() * up,
            Self::Clamped { alpha, limit } => {
                let (gate, up) = (gate.smaller(limit), up.smaller(limit).larger(-limit));
                (up + T::ONE) * (gate * (gate * alpha).sigmoid())
            }
        }
    }
}

/// A gated feed-forward layer, which may be an expert.
#[derive(Clone, Debug)]
pub struct GatedMlp<T> {
    /// W_g, `[inner, dim]`.
    pub gate: Projection<T>,
    /// W_u, `[inner, dim]`.
    pub up: Projection<T>,
    /// W_d, `[dim, inner]`.
    pub down: Projection<T>,
    /// Activation function act.
    pub activation: Activation<T>,
}

impl<T: Real> GatedMlp<T> {
    /// Maps rows x to rows of length `inner`, the input of the down projection.
    pub fn hidden(&self, x: &[T]) -> Vec<T> {
        let (mut gate, up) = (self.gate.apply_rows(x), self.up.apply_rows(x));
        let activation = self.activation;
        let pieces = gate.par_chunks_mut(1 << 14).zip(up.par_chunks(1 << 14));
        pieces.for_each(|(gate, up)| {
            vectorized!({
                for (gate, &up) in gate.iter_mut().zip(up) {
                    *gate = activation.apply(*gate, up);
                }
            });
        });
        gate
    }
}

/// Groups the positions of `choice.indices` by expert. Returns each selected expert with the positions at which its index occurs;
/// experts and positions are ascending.
fn sent<T: Real>(choice: &Choice<T>, experts: usize) -> Vec<(usize, Vec<usize>)> {
    let mut slots = vec![Vec::new(); experts];
    for (slot, &expert) in choice.indices.iter().enumerate() {
        // The index is −1 if fewer than k experts were selected.
        if let Ok(expert) = usize::try_from(expert) {
            slots[expert].push(slot);
        }
    }
    let slots = slots.into_iter().enumerate();
    slots.filter(|(_, slots)| !slots.is_empty()).collect()
}

/// Computes the inputs of the down projections of the selected experts, `[tokens, k, inner]` in the order of `choice.indices`.
/// The row of a slot without an expert (index −1) is 0.
pub fn experts_hidden<T: Real>(experts: &[GatedMlp<T>], x: &Tensor<T>, choice: &Choice<T>) -> Tensor<T> {
    let (k, inner) = (choice.k, experts[0].gate.outputs());
    let mut hidden = Tensor::full([x.rows(), k, inner], T::ZERO);
    let sent = sent(choice, experts.len());
    let of = |(number, slots): &(usize, Vec<usize>)| {
        let rows: Vec<T> = slots.iter().flat_map(|slot| x.row(slot / k)).copied().collect();
        experts[*number].hidden(&rows)
    };
    let found: Vec<Vec<T>> = sent.par_iter().map(of).collect();
    for ((_, slots), found) in sent.iter().zip(found) {
        for (&slot, found) in slots.iter().zip(found.chunks_exact(inner)) {
            hidden.row_mut(slot).copy_from_slice(found);
        }
    }
    hidden
}

/// Computes Σ weight · W_d·hidden over the selected experts of each token, `[tokens, dim]`. Terms are added by ascending expert
/// index. `hidden` is the result of [`experts_hidden`]; `weights` `[tokens, k]` are in the order of `choice.indices`.
pub fn experts_output<T: Real>(
    experts: &[GatedMlp<T>],
    hidden: &Tensor<T>,
    choice: &Choice<T>,
    weights: &Tensor<T>,
) -> Tensor<T> {
    let (k, dim) = (choice.k, experts[0].down.outputs());
    let mut out = Tensor::full([weights.rows(), dim], T::ZERO);
    let sent = sent(choice, experts.len());
    let of = |(number, slots): &(usize, Vec<usize>)| {
        let rows: Vec<T> = slots.iter().flat_map(|&slot| hidden.row(slot)).copied().collect();
        experts[*number].down.apply_rows(&rows)
    };
    let found: Vec<Vec<T>> = sent.par_iter().map(of).collect();
    for ((_, slots), found) in sent.iter().zip(found) {
        for (&slot, found) in slots.iter().zip(found.chunks_exact(dim)) {
            let weight = weights.data[slot];
            let sums = out.row_mut(slot / k).iter_mut().zip(found);
            sums.for_each(|(out, &y)| *out += y * weight);
        }
    }
    out
}
