//! SwiGLU experts with clamped pre-activations, and their mixture (MoE).
//!
//! An expert maps x to y: g ← min(W₁x, c), u ← clamp(W₃x, −c, c), y = W₂(silu(g)·u·w). c is the clamp limit, and w the router's
//! weight of the expert, which is applied before W₂.

use rayon::prelude::*;

use super::BLOCK;
use super::linear::multiply;
use crate::real::vectorized;
use crate::{Choice, Operations, Real, Tensor};

/// Weights of one expert, routed or shared.
#[derive(Clone, Debug)]
pub struct Expert<T> {
    /// W₁ stacked on W₃, `[2·inner, dim]`.
    pub gate_up: Tensor<T>,
    /// W₂, `[dim, inner]`.
    pub down: Tensor<T>,
}

/// The experts of a layer.
#[derive(Clone, Debug)]
pub struct Experts<T> {
    /// Routed experts, by index.
    pub routed: Vec<Expert<T>>,
    /// Shared expert, which is applied to every token.
    pub shared: Expert<T>,
    /// Limit c of the clamp.
    pub limit: T,
}

impl<T: Real> Expert<T> {
    /// Applies the expert to rows of x. `weights` has one factor per row; `None` means 1.
    fn apply(&self, x: &[T], weights: Option<&[T]>, limit: T, operations: &dyn Operations<T>) -> Vec<T> {
        let (dim, inner) = (self.gate_up.cols(), self.down.cols());
        let rows = x.len() / dim;
        let mut gate_up = vec![T::ZERO; rows * 2 * inner];
        multiply(x, &self.gate_up.data, dim, &mut gate_up);
        let mut hidden = operations.swiglu(&gate_up, inner, limit);
        for (hidden, &weight) in hidden.chunks_exact_mut(inner).zip(weights.into_iter().flatten()) {
            hidden.iter_mut().for_each(|hidden| *hidden *= weight);
        }
        let mut y = vec![T::ZERO; rows * dim];
        multiply(&hidden, &self.down.data, inner, &mut y);
        y
    }
}

/// Applies [`swiglu`] to rows [gate, up] of length `2·inner`; returns rows of length `inner`.
pub fn swiglu_rows<T: Real>(gate_up: &[T], inner: usize, limit: T) -> Vec<T> {
    let mut hidden = vec![T::ZERO; gate_up.len() / 2];
    vectorized!({
        for (hidden, gate_up) in hidden.chunks_exact_mut(inner).zip(gate_up.chunks_exact(2 * inner)) {
            let (gate, up) = gate_up.split_at(inner);
            for ((hidden, &gate), &up) in hidden.iter_mut().zip(gate).zip(up) {
                *hidden = swiglu(gate, up, limit);
            }
        }
    });
    hidden
}

/// Returns silu(min(g, c)) · clamp(u, −c, c). NaN is propagated.
#[inline(always)]
pub fn swiglu<T: Real>(gate: T, up: T, limit: T) -> T {
    let (gate, up) = (gate.smaller(limit), up.smaller(limit).larger(-limit));
    gate * gate.sigmoid() * up
}

impl<T: Real> Experts<T> {
    /// Computes x `[tokens, dim]` → `[tokens, dim]`: the output of the shared expert plus the weighted sum over the selected
    /// experts. `weights` `[tokens, k]` are in the order of `choice.indices`. Experts are added by ascending index.
    pub fn apply(
        &self,
        x: &Tensor<T>,
        choice: &Choice<T>,
        weights: &Tensor<T>,
        operations: &dyn Operations<T>,
    ) -> Tensor<T> {
        let dim = x.cols();
        let mut out = Tensor::full([x.rows(), dim], T::ZERO);
        let blocks = out.data.par_chunks_mut(BLOCK * dim).enumerate();
        blocks.for_each(|(block, out)| {
            let first = block * BLOCK;
            let rows = out.len() / dim;
            for (number, expert) in self.routed.iter().enumerate() {
                // Rows (tokens) of the block that selected this expert, each with the weight of the expert.
                let sent = (first..first + rows).flat_map(|row| {
                    let slots = choice.selected(row).enumerate();
                    let slots = slots.filter(move |&(_, index)| index == number);
                    slots.map(move |(slot, _)| (row, weights.row(row)[slot]))
                });
                let (sent, factors): (Vec<usize>, Vec<T>) = sent.unzip();
                if sent.is_empty() {
                    continue;
                }
                let gathered = sent.iter().map(|&row| x.row(row)).collect::<Vec<_>>().concat();
                let y = expert.apply(&gathered, Some(&factors), self.limit, operations);
                for (&row, y) in sent.iter().zip(y.chunks_exact(dim)) {
                    let out = &mut out[(row - first) * dim..][..dim];
                    out.iter_mut().zip(y).for_each(|(out, &y)| *out += y);
                }
            }
            let x = &x.data[first * dim..(first + rows) * dim];
            let shared = self.shared.apply(x, None, self.limit, operations);
            out.iter_mut().zip(&shared).for_each(|(out, &y)| *out += y);
        });
        out
    }
}
