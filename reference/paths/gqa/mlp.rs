//! The feed-forward part of a layer: one dense feed-forward layer, or a mixture of experts.

use super::Context;
use super::sites::*;
use crate::ops::gated_mlp::{GatedMlp, experts_hidden, experts_output};
use crate::ops::projection::Projection;
use crate::ops::sigmoid_router::{self, Groups};
use crate::ops::softmax_router::{self, Softmax};
use crate::{Real, Tensor};

/// Feed-forward part of a layer; processes each token independently.
pub(in crate::paths) enum Mlp<T> {
    Dense(GatedMlp<T>),
    Mixture(Mixture<T>),
}

/// Mixture of experts: a router selects a few experts for each token.
pub(in crate::paths) struct Mixture<T> {
    pub router: Projection<T>,
    pub routing: Routing,
    /// Bias of each expert, added to the scores for the selection only, not for the weights; empty with [`Routing::Softmax`].
    pub bias: Vec<T>,
    pub per_token: usize,
    pub experts: Vec<GatedMlp<T>>,
    pub shared: Option<Box<SharedExpert<T>>>,
}

/// Rule that selects and weights the experts of a token, given the logits of the router.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Routing {
    /// Softmax of the logits.
    Softmax(Softmax),
    /// Sigmoid of each logit, plus a bias that changes the selection but not the weights.
    Sigmoid {
        /// True if the weights of a token sum to `scale`.
        normalised: bool,
        /// Groups of experts; a token selects experts only from its best groups.
        groups: Groups,
        /// Factor of the weights.
        scale: f64,
    },
}

/// Shared expert: an expert that every token goes through.
pub(in crate::paths) struct SharedExpert<T> {
    pub mlp: GatedMlp<T>,
    /// Projection of the input to one logit per token, and the logit's site. The expert's output is multiplied by σ(logit), or
    /// by 1 if the field is `None`.
    pub gate: Option<(Projection<T>, &'static str)>,
    /// Site of the input of the shared expert's down projection.
    pub hidden_site: &'static str,
}

impl<T: Real> Mlp<T> {
    /// Maps inputs `[T, hidden]` to outputs `[T, hidden]`.
    pub fn forward(&self, x: &Tensor<T>, cx: &mut Context<'_, T>) -> Tensor<T> {
        match self {
            Self::Dense(mlp) => through(mlp, x, MLP_HIDDEN, cx),
            Self::Mixture(mixture) => mixture.forward(x, cx),
        }
    }
}

impl<T: Real> Mixture<T> {
    fn forward(&self, x: &Tensor<T>, cx: &mut Context<'_, T>) -> Tensor<T> {
        let mut logits = self.router.apply(x);
        let mut choice = match self.routing {
            Routing::Softmax(over) => softmax_router::select(&logits, self.per_token, over),
            Routing::Sigmoid { groups, .. } => {
                logits.data.iter_mut().for_each(|x| *x = x.sigmoid());
                sigmoid_router::select(&logits, &self.bias, groups, self.per_token)
            }
        };
        cx.numerics.choice(&cx.at(ROUTER), &mut choice);
        let weights = match self.routing {
            Routing::Softmax(over) => softmax_router::weights(&choice, over),
            Routing::Sigmoid { normalised, scale, .. } => {
                sigmoid_router::weights(&logits, &choice, normalised, T::from_f64(scale))
            }
        };
        let mut hidden = experts_hidden(&self.experts, x, &choice);
        cx.pass(EXPERTS_HIDDEN, &mut hidden);
        let mut output = experts_output(&self.experts, &hidden, &choice, &weights);
        if let Some(shared) = &self.shared {
            shared.add(x, &mut output, cx);
        }
        output
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

/// Runs a gated feed-forward layer; `site` is the site of the input of its down projection.
fn through<T: Real>(mlp: &GatedMlp<T>, x: &Tensor<T>, site: &'static str, cx: &mut Context<'_, T>) -> Tensor<T> {
    let mut hidden = Tensor::new([x.rows(), mlp.gate.outputs()], mlp.hidden(&x.data));
    cx.pass(site, &mut hidden);
    mlp.down.apply(&hidden)
}
