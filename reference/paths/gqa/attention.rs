//! Grouped-query attention, from its input to its output projection.

use super::Context;
use super::layer::Mixer;
use super::sites::*;
use crate::ops::grouped_attention::KvCache;
use crate::ops::projection::Projection;
use crate::{Real, Tensor};

/// The attention of a layer.
pub(in crate::paths) struct Attention<T> {
    pub query: Projection<T>,
    pub key: Projection<T>,
    pub value: Projection<T>,
    /// Weights of the norms of queries and keys; each is as long as a head, or as all heads together.
    pub query_key_norms: Option<[Vec<T>; 2]>,
    pub gate: Option<OutputGate<T>>,
    pub heads: Projection<T>,
    pub sinks: Option<Vec<T>>,
    pub head_dim: usize,
    pub scale: T,
    pub window: Option<usize>,
    pub eps: T,
}

/// A gate of what the heads give: they are multiplied by σ of what it projects attention's input to.
pub(in crate::paths) struct OutputGate<T> {
    pub projection: Projection<T>,
    /// The site of its logits.
    pub site: &'static str,
}

impl<T: Real> Mixer<T> for Attention<T> {
    type Memory = KvCache<T>;

    fn memory(&self) -> KvCache<T> {
        KvCache::new(self.key.outputs() / self.head_dim, [self.head_dim; 2])
    }

    fn fits(&self, memory: &KvCache<T>) -> bool {
        memory.fits(&self.memory())
    }

    fn forward(&self, x: &Tensor<T>, cache: &mut KvCache<T>, cx: &mut Context<'_, T>) -> Result<Tensor<T>, String> {
        let norms = self.query_key_norms.as_ref();
        let mut query = self.of_heads(&self.query, x, norms.map(|norms| &norms[0]), cx);
        let mut key = self.of_heads(&self.key, x, norms.map(|norms| &norms[1]), cx);
        let mut value = self.of_heads(&self.value, x, None, cx);
        cx.pass(QUERY_BEFORE_ROPE, &mut query);
        cx.pass(KEY_BEFORE_ROPE, &mut key);
        if let Some(rope) = cx.rope {
            for x in [&mut query, &mut key] {
                let heads = x.shape[1];
                rope.apply(x, heads, cx.start);
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
        if let Some(gate) = &self.gate {
            let mut logits = gate.projection.apply(x);
            cx.pass(gate.site, &mut logits);
            let gated = mixed.data.iter_mut().zip(&logits.data);
            gated.for_each(|(mixed, logit)| *mixed *= logit.sigmoid());
        }
        cx.pass(HEADS, &mut mixed);
        Ok(self.heads.apply(&mixed))
    }
}

impl<T: Real> Attention<T> {
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
            cx.rmsnorm(&mut y, Some(weight), self.eps);
        }
        y.shape = heads;
        y
    }
}
