//! The feed-forward layer: one, or experts.

use super::context::Context;
use super::sites::*;
use crate::ops::gated_mlp::{GatedMlp, experts_hidden, experts_output};
use crate::ops::projection::Projection;
use crate::ops::softmax_router::{Softmax, select, weights};
use crate::{Real, Tensor};

/// What a layer computes of each token by itself.
pub(in crate::paths) enum Mlp<T> {
    Dense(GatedMlp<T>),
    Experts {
        router: Projection<T>,
        softmax: Softmax,
        per_token: usize,
        experts: Vec<GatedMlp<T>>,
        shared: Option<Box<SharedExpert<T>>>,
    },
}

/// An expert of all tokens, times σ of what its gate projects their input to.
pub(in crate::paths) struct SharedExpert<T> {
    pub mlp: GatedMlp<T>,
    pub gate: Projection<T>,
    /// The site of the gate's logit.
    pub gate_site: &'static str,
    /// The site of what its down projection is fed.
    pub hidden_site: &'static str,
}

impl<T: Real> Mlp<T> {
    /// Inputs `[T, hidden]` → outputs `[T, hidden]`.
    pub fn forward(&self, x: &Tensor<T>, cx: &mut Context<'_, T>) -> Tensor<T> {
        match self {
            Self::Dense(mlp) => through(mlp, x, MLP_HIDDEN, cx),
            Self::Experts {
                router,
                softmax,
                per_token,
                experts,
                shared,
            } => {
                let mut choice = select(&router.apply(x), *per_token, *softmax);
                cx.numerics.choice(&cx.at(ROUTER), &mut choice);
                let weights = weights(&choice, *softmax);
                let mut hidden = experts_hidden(experts, x, &choice);
                cx.pass(EXPERTS_HIDDEN, &mut hidden);
                let mut output = experts_output(experts, &hidden, &choice, &weights);
                if let Some(shared) = shared {
                    shared.add(x, &mut output, cx);
                }
                output
            }
        }
    }
}

impl<T: Real> SharedExpert<T> {
    fn add(&self, x: &Tensor<T>, output: &mut Tensor<T>, cx: &mut Context<'_, T>) {
        let own = through(&self.mlp, x, self.hidden_site, cx);
        let mut gate = self.gate.apply(x);
        cx.pass(self.gate_site, &mut gate);
        for (row, gate) in gate.data.iter().enumerate() {
            let factor = gate.sigmoid();
            let sums = output.row_mut(row).iter_mut().zip(own.row(row));
            sums.for_each(|(sum, &own)| *sum += factor * own);
        }
    }
}

/// A feed-forward layer, whose hidden rows pass at a site.
fn through<T: Real>(mlp: &GatedMlp<T>, x: &Tensor<T>, site: &'static str, cx: &mut Context<'_, T>) -> Tensor<T> {
    let mut hidden = Tensor::new([x.rows(), mlp.gate.outputs()], mlp.hidden(&x.data));
    cx.pass(site, &mut hidden);
    mlp.down.apply(&hidden)
}
