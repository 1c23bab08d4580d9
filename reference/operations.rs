//! Operations of a model path, such as RMSNorm and RoPE, that other code can replace.

use crate::ops::experts;
use crate::ops::hyper_connection::{HyperConnection, Mixing};
use crate::ops::indexer;
use crate::ops::rmsnorm::rmsnorm;
use crate::ops::rope::Rope;
use crate::{Choice, Plain, Real, Tensor};

/// Operations of a model path. The default methods are the reference; an implementation replaces an operation by overriding its
/// method.
pub trait Operations<T: Real>: Sync {
    /// Normalises every row in place, like [`rmsnorm`].
    fn rmsnorm(&self, x: &mut Tensor<T>, weight: Option<&[T]>, eps: T) {
        rmsnorm(x, weight, eps);
    }

    /// Applies RoPE in place to the last channels of each row, like [`Rope::apply`]; `position(i)` is the position of token i.
    fn rope(
        &self,
        rope: &Rope<T>,
        x: &mut Tensor<T>,
        heads: usize,
        position: &(dyn Fn(usize) -> usize + Sync),
        inverse: bool,
    ) {
        rope.apply(x, heads, position, inverse);
    }

    /// Computes [`HyperConnection::pre`] on streams `[tokens, n, D]`, then [`rmsnorm`]. Returns the normed input of the block,
    /// `[tokens, D]`, and the [`Mixing`] that mixes the output of the block back into the streams.
    fn mhc_pre(&self, mixer: &HyperConnection<T>, x: &Tensor<T>, weight: &[T], eps: T) -> (Tensor<T>, Mixing<T>) {
        let (mut input, mixing) = mixer.pre(x);
        rmsnorm(&mut input, Some(weight), eps);
        (input, mixing)
    }

    /// Selects the compressed cache entries that each query attends to, like [`indexer::select`].
    fn index(
        &self,
        query: &Tensor<T>,
        head_weights: &Tensor<T>,
        keys: &[T],
        k: usize,
        visible: &(dyn Fn(usize) -> usize + Sync),
    ) -> Choice<T> {
        indexer::select(query, head_weights, keys, k, visible)
    }

    /// Maps rows [gate, up] of length `2·inner` to rows of length `inner`, like [`experts::swiglu_rows`].
    fn swiglu(&self, gate_up: &[T], inner: usize, limit: T) -> Vec<T> {
        experts::swiglu_rows(gate_up, inner, limit)
    }
}

impl<T: Real> Operations<T> for Plain {}
