//! The feed-forward layer: one, or experts.

use super::Context;
use super::sites::*;
use crate::ops::gated_mlp::{GatedMlp, experts_hidden, experts_output};
use crate::ops::projection::Projection;
use crate::ops::sigmoid_router::{self, Groups};
use crate::ops::softmax_router::{self, Softmax};
use crate::{Real, Tensor};

/// Part of a layer that computes each token by itself.
pub(in crate::paths) enum Mlp<T> {
    Dense(GatedMlp<T>),
    Mixture(Mixture<T>),
}

/// Experts of which a router selects those of a token.
pub(in crate::paths) struct Mixture<T> {
    pub router: Projection<T>,
    pub routing: Routing,
    /// Added for the selection only, by sigmoids.
    pub bias: Vec<T>,
    pub per_token: usize,
    pub experts: Vec<GatedMlp<T>>,
    pub shared: Option<Box<SharedExpert<T>>>,
}

/// Selection and weights of experts by the router's logits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Routing {
    /// By a softmax.
    Softmax(Softmax),
    /// By sigmoids and a bias that selects only.
    Sigmoid {
        /// True if the weights of a token sum to `scale`.
        normalised: bool,
        /// The groups that experts are selected of.
        groups: Groups,
        /// Weights are multiplied by it.
        scale: f64,
    },
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

/// A feed-forward layer, whose hidden rows pass at a site.
fn through<T: Real>(mlp: &GatedMlp<T>, x: &Tensor<T>, site: &'static str, cx: &mut Context<'_, T>) -> Tensor<T> {
    let mut hidden = Tensor::new([x.rows(), mlp.gate.outputs()], mlp.hidden(&x.data));
    cx.pass(site, &mut hidden);
    mlp.down.apply(&hidden)
}
