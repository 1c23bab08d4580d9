//! One decoder layer: attention and feed-forward layer, each with its norm.

use super::sites::*;
use crate::ops::gated_mlp::{GatedMlp, experts_hidden, experts_output};
use crate::ops::grouped_attention::KvCache;
use crate::ops::projection::Projection;
use crate::ops::rope::Rope;
use crate::ops::rope_half::turn_halves;
use crate::ops::softmax_router::{Softmax, select, weights};
use crate::{Numerics, Real, Site, Tensor};

pub(super) struct Layer<T> {
    pub attention_norm: Norm<T>,
    pub query: Projection<T>,
    pub key: Projection<T>,
    pub value: Projection<T>,
    /// Of queries and keys; as long as a head, or as all heads together.
    pub query_key_norms: Option<[Vec<T>; 2]>,
    pub heads: Projection<T>,
    pub sinks: Option<Vec<T>>,
    pub head_dim: usize,
    pub scale: T,
    pub window: Option<usize>,
    pub mlp_norm: Norm<T>,
    pub mlp: Mlp<T>,
    pub residual_multiplier: T,
    pub eps: T,
}

/// A norm of the stream, or of what is added to it.
pub(super) struct Norm<T> {
    pub weight: Vec<T>,
    /// It follows what it is the norm of.
    pub after: bool,
    /// Its result passes at a site before it is multiplied by the weight.
    pub before_weight: bool,
}

pub(super) enum Mlp<T> {
    Dense(GatedMlp<T>),
    Experts {
        router: Projection<T>,
        softmax: Softmax,
        per_token: usize,
        experts: Vec<GatedMlp<T>>,
    },
}

/// Where in model and sequence a call is, and who is called at the sites.
pub(super) struct Context<'a, T: Real> {
    pub numerics: &'a mut dyn Numerics<T>,
    pub layer: usize,
    /// Position of the call's first token.
    pub start: usize,
    pub rope: Option<&'a Rope<T>>,
}

impl<T: Real> Context<'_, T> {
    fn at(&self, name: &'static str) -> Site {
        Site::new(Some(self.layer), name).from_row(self.start)
    }

    fn pass(&mut self, name: &'static str, tensor: &mut Tensor<T>) {
        self.numerics.site(&self.at(name), tensor);
    }

    fn norm(&mut self, norm: &Norm<T>, x: &mut Tensor<T>, normed: &'static str, eps: T) {
        if !norm.before_weight {
            return self.numerics.operations().rmsnorm(x, Some(&norm.weight), eps);
        }
        self.numerics.operations().rmsnorm(x, None, eps);
        self.pass(normed, x);
        for row in x.data.chunks_exact_mut(norm.weight.len()) {
            row.iter_mut().zip(&norm.weight).for_each(|(x, &w)| *x *= w);
        }
    }
}

impl<T: Real> Layer<T> {
    /// The stream `[T, hidden]` through the layer, in place.
    pub fn forward(&self, x: &mut Tensor<T>, cache: &mut KvCache<T>, cx: &mut Context<'_, T>) {
        cx.pass(INPUT, x);
        let mut input = x.clone();
        if !self.attention_norm.after {
            cx.norm(&self.attention_norm, &mut input, ATTENTION_NORMED, self.eps);
        }
        cx.pass(ATTENTION_INPUT, &mut input);
        let mut output = self.attention(&input, cache, cx);
        cx.pass(ATTENTION_OUTPUT, &mut output);
        if self.attention_norm.after {
            cx.norm(&self.attention_norm, &mut output, ATTENTION_NORMED, self.eps);
        }
        self.add(x, &output);

        let mut input = x.clone();
        if !self.mlp_norm.after {
            cx.norm(&self.mlp_norm, &mut input, MLP_NORMED, self.eps);
        }
        cx.pass(MLP_INPUT, &mut input);
        let mut output = self.mlp.forward(&input, cx);
        cx.pass(MLP_OUTPUT, &mut output);
        if self.mlp_norm.after {
            cx.norm(&self.mlp_norm, &mut output, MLP_NORMED, self.eps);
        }
        self.add(x, &output);
        cx.pass(OUTPUT, x);
    }

    fn add(&self, x: &mut Tensor<T>, more: &Tensor<T>) {
        let scale = self.residual_multiplier;
        x.data.iter_mut().zip(&more.data).for_each(|(x, &y)| *x += y * scale);
    }

    fn attention(&self, x: &Tensor<T>, cache: &mut KvCache<T>, cx: &mut Context<'_, T>) -> Tensor<T> {
        let norms = self.query_key_norms.as_ref();
        let mut query = self.of_heads(&self.query, x, norms.map(|norms| &norms[0]), cx);
        let mut key = self.of_heads(&self.key, x, norms.map(|norms| &norms[1]), cx);
        let mut value = self.of_heads(&self.value, x, None, cx);
        cx.pass(QUERY_BEFORE_ROPE, &mut query);
        cx.pass(KEY_BEFORE_ROPE, &mut key);
        if let Some(rope) = cx.rope {
            for x in [&mut query, &mut key] {
                let heads = x.shape[1];
                turn_halves(rope, x, heads, cx.start);
            }
        }
        cx.pass(QUERY, &mut query);
        cx.pass(KEY, &mut key);
        cx.pass(VALUE, &mut value);
        cache.push(&key, &value);
        let mut mixed = cache.attend(&query, self.scale, self.window, self.sinks.as_deref());
        if let Some(window) = self.window {
            cache.forget(window);
        }
        mixed.shape = vec![x.rows(), self.heads.inputs()];
        cx.pass(HEADS, &mut mixed);
        self.heads.apply(&mixed)
    }

    /// `[T, heads, head_dim]` of a projection, normed by a weight as long as a head or as all of them.
    fn of_heads(
        &self,
        projection: &Projection<T>,
        x: &Tensor<T>,
        norm: Option<&Vec<T>>,
        cx: &Context<'_, T>,
    ) -> Tensor<T> {
        let mut y = projection.apply(x);
        let whole = y.cols();
        let heads = vec![y.rows(), whole / self.head_dim, self.head_dim];
        if let Some(weight) = norm {
            y.shape = vec![y.data.len() / weight.len(), weight.len()];
            cx.numerics.operations().rmsnorm(&mut y, Some(weight), self.eps);
        }
        y.shape = heads;
        y
    }
}

impl<T: Real> Mlp<T> {
    fn forward(&self, x: &Tensor<T>, cx: &mut Context<'_, T>) -> Tensor<T> {
        match self {
            Self::Dense(mlp) => {
                let mut hidden = Tensor::new([x.rows(), mlp.gate.outputs()], mlp.hidden(&x.data));
                cx.pass(MLP_HIDDEN, &mut hidden);
                mlp.down.apply(&hidden)
            }
            Self::Experts {
                router,
                softmax,
                per_token,
                experts,
            } => {
                let mut choice = select(&router.apply(x), *per_token, *softmax);
                cx.numerics.choice(&cx.at(ROUTER), &mut choice);
                let weights = weights(&choice, *softmax);
                let mut hidden = experts_hidden(experts, x, &choice);
                cx.pass(EXPERTS_HIDDEN, &mut hidden);
                experts_output(experts, &hidden, &choice, &weights)
            }
        }
    }
}
