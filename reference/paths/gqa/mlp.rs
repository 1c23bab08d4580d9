//! The feed-forward layer: one, or experts.

use super::Context;
use super::sites::*;
use crate::ops::gated_mlp::{GatedMlp, experts_hidden, experts_output};
use crate::ops::projection::Projection;
use crate::ops::sigmoid_router::{self, Groups};
use crate::ops::softmax_router::{self, Softmax};
use crate::{Choice, Real, Tensor};

/// Part of a layer that computes each token by itself.
pub(in crate::paths) enum Mlp<T> {
    Dense(GatedMlp<T>),
    Experts {
        router: Projection<T>,
        routing: Routing<T>,
        per_token: usize,
        experts: Vec<GatedMlp<T>>,
        shared: Option<Box<SharedExpert<T>>>,
    },
}

/// Selection and weights of experts by the router's logits.
pub(in crate::paths) enum Routing<T> {
    Softmax(Softmax),
    Sigmoid {
        /// Added for the selection only.
        bias: Vec<T>,
        groups: Groups,
        normalised: bool,
        scale: T,
    },
}

impl<T: Real> Routing<T> {
    /// Logits `[T, experts]` → the experts of each token and their weights `[T, k]`; somebody may overrule the choice in between.
    fn route(&self, mut logits: Tensor<T>, k: usize, overrule: impl FnOnce(&mut Choice<T>)) -> (Choice<T>, Tensor<T>) {
        match self {
            Self::Softmax(over) => {
                let mut choice = softmax_router::select(&logits, k, *over);
                overrule(&mut choice);
                let weights = softmax_router::weights(&choice, *over);
                (choice, weights)
            }
            Self::Sigmoid {
                bias,
                groups,
                normalised,
                scale,
            } => {
                logits.data.iter_mut().for_each(|x| *x = x.sigmoid());
                let mut choice = sigmoid_router::select(&logits, bias, *groups, k);
                overrule(&mut choice);
                let weights = sigmoid_router::weights(&logits, &choice, *normalised, *scale);
                (choice, weights)
            }
        }
    }
}

/// An expert of all tokens.
pub(in crate::paths) struct SharedExpert<T> {
    pub mlp: GatedMlp<T>,
    /// Its output is multiplied by σ of what this projects the input to, and the logit passes at the site; by 1 if there is none.
    pub gate: Option<(Projection<T>, &'static str)>,
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
                routing,
                per_token,
                experts,
                shared,
            } => {
                let site = cx.at(ROUTER);
                let overrule = |choice: &mut Choice<T>| cx.numerics.choice(&site, choice);
                let (choice, weights) = routing.route(router.apply(x), *per_token, overrule);
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
        let factors = self.gate.as_ref().map(|(gate, site)| {
            let mut logits = gate.apply(x);
            cx.pass(site, &mut logits);
            logits.data.iter().map(|logit| logit.sigmoid()).collect::<Vec<_>>()
        });
        for row in 0..own.rows() {
            let factor = factors.as_ref().map_or(T::ONE, |factors| factors[row]);
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
