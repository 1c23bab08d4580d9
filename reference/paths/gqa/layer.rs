//! One decoder layer: attention and feed-forward layer, each with its norm.

use super::attention::Attention;
use super::context::Context;
use super::mlp::Mlp;
use super::sites::*;
use crate::ops::grouped_attention::KvCache;
use crate::{Real, Tensor};

pub(super) struct Layer<T> {
    pub attention_norm: Norm<T>,
    pub attention: Attention<T>,
    pub mlp_norm: Norm<T>,
    pub mlp: Mlp<T>,
    pub residual_multiplier: T,
    pub eps: T,
}

/// A norm of the stream, or of what is added to it.
pub(super) struct Norm<T> {
    pub weight: Vec<T>,
    /// True if the norm follows the part that it is the norm of.
    pub after: bool,
    /// Its result passes at a site before it is multiplied by the weight.
    pub before_weight: bool,
}

impl<T: Real> Norm<T> {
    /// The norm of rows, in place; `normed` is the site before the weight.
    fn apply(&self, x: &mut Tensor<T>, normed: &'static str, eps: T, cx: &mut Context<'_, T>) {
        if !self.before_weight {
            return cx.rmsnorm(x, Some(&self.weight), eps);
        }
        cx.rmsnorm(x, None, eps);
        cx.pass(normed, x);
        for row in x.data.chunks_exact_mut(self.weight.len()) {
            row.iter_mut().zip(&self.weight).for_each(|(x, &w)| *x *= w);
        }
    }
}

impl<T: Real> Layer<T> {
    /// The stream `[T, hidden]` through the layer, in place.
    pub fn forward(&self, x: &mut Tensor<T>, cache: &mut KvCache<T>, cx: &mut Context<'_, T>) {
        cx.pass(INPUT, x);
        let mut input = x.clone();
        if !self.attention_norm.after {
            self.attention_norm.apply(&mut input, ATTENTION_NORMED, self.eps, cx);
        }
        cx.pass(ATTENTION_INPUT, &mut input);
        let mut output = self.attention.forward(&input, cache, cx);
        cx.pass(ATTENTION_OUTPUT, &mut output);
        if self.attention_norm.after {
            self.attention_norm.apply(&mut output, ATTENTION_NORMED, self.eps, cx);
        }
        self.add(x, &output);

        let mut input = x.clone();
        if !self.mlp_norm.after {
            self.mlp_norm.apply(&mut input, MLP_NORMED, self.eps, cx);
        }
        cx.pass(MLP_INPUT, &mut input);
        let mut output = self.mlp.forward(&input, cx);
        cx.pass(MLP_OUTPUT, &mut output);
        if self.mlp_norm.after {
            self.mlp_norm.apply(&mut output, MLP_NORMED, self.eps, cx);
        }
        self.add(x, &output);
        cx.pass(OUTPUT, x);
    }

    fn add(&self, x: &mut Tensor<T>, more: &Tensor<T>) {
        let scale = self.residual_multiplier;
        x.data.iter_mut().zip(&more.data).for_each(|(x, &y)| *x += y * scale);
    }
}
