//! Grouped-query attention, from the query, key and value projections to the output projection.

use super::Context;
use super::layer::{Memory, Mixer};
use super::sites::*;
use crate::ops::grouped_attention::KvCache;
use crate::ops::projection::Projection;
use crate::{Real, Tensor};

/// Grouped-query attention of one layer.
pub(in crate::paths) struct Attention<T> {
    pub query: Projection<T>,
    pub key: Projection<T>,
    pub value: Projection<T>,
    /// Weights of the RMSNorms of queries and of keys; `None` without norms. A weight is as long as one head or as all heads.
    pub query_key_norms: Option<[Vec<T>; 2]>,
    /// Projection of the input to gate logits, and the logits' site; `None` without a gate. The output of the heads is
    /// multiplied by σ(logits).
    pub gate: Option<(Projection<T>, &'static str)>,
    pub heads: Projection<T>,
    pub sinks: Option<Vec<T>>,
    pub head_dim: usize,
    pub scale: T,
    pub window: Option<usize>,
    pub eps: T,
}

impl<T: Real> Mixer<T> for Attention<T> {
    fn memory(&self) -> Memory<T> {
        Memory::Cache(KvCache::new(self.key.outputs() / self.head_dim, [self.head_dim; 2]))
    }

    fn forward(&self, x: &Tensor<T>, memory: &mut Memory<T>, cx: &mut Context<'_, T>) -> Result<Tensor<T>, String> {
        let Memory::Cache(cache) = memory else {
            unreachable!("it was made by this mixer's like");
        };
        let norms = self.query_key_norms.as_ref();
        let mut query = self.of_heads(&self.query, x, norms.map(|norms| &norms[0]), cx);
        let mut key = self.of_heads(&self.key, x, norms.map(|norms| &norms[1]), cx);
        let mut value = self.of_heads(&self.value, x, None, cx);
        cx.pass(QUERY_BEFORE_ROPE, &mut query);
        cx.pass(KEY_BEFORE_ROPE, &mut key);
        if let Some(rope) = cx.rope {
            for x in [&mut query, &mut key] {
                let heads = x.shape[1];
                rope.apply_half(x, heads, cx.start);
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
        if let Some((gate, site)) = &self.gate {
            let mut logits = gate.apply(x);
            cx.pass(site, &mut logits);
            let gated = mixed.data.iter_mut().zip(&logits.data);
            gated.for_each(|(mixed, logit)| *mixed *= logit.sigmoid());
        }
        cx.pass(HEADS, &mut mixed);
        Ok(self.heads.apply(&mixed))
    }
}

impl<T: Real> Attention<T> {
    /// Returns a projection of `x` as `[T, heads, head_dim]`. `norm` is the weight of an optional RMSNorm: as long as one head to
    /// normalise each head, or as long as all heads to normalise them together.
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
