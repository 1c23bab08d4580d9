//! Operations of a path that other code can replace.

use crate::ops::experts;
use crate::ops::hyper_connection::{HyperConnection, Mixing};
use crate::ops::indexer;
use crate::ops::rmsnorm::rmsnorm;
use crate::ops::rope::Rope;
use crate::{Choice, Plain, Real, Tensor};

/// Operations of a path. The default methods are the reference; an implementation replaces an operation by overriding its
/// method.
pub trait Operations<T: Real>: Sync {
    /// Normalises every row in place, like [`rmsnorm`].
    fn rmsnorm(&self, x: &mut Tensor<T>, weight: Option<&[T]>, eps: T) {
        rmsnorm(x, weight, eps);
    }

    /// Rotates the last channels of the rows of every token in place, like [`Rope::apply`]; token i is at `position(i)`.
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

    /// Maps streams `[tokens, n, D]` to the normed input of a block, `[tokens, D]`, and to the [`Mixing`] that mixes the output
    /// of the block back into the streams: [`HyperConnection::pre`], then [`rmsnorm`].
    fn mhc_pre(&self, mixer: &HyperConnection<T>, x: &Tensor<T>, weight: &[T], eps: T) -> (Tensor<T>, Mixing<T>) {
        let (mut input, mixing) = mixer.pre(x);
        rmsnorm(&mut input, Some(weight), eps);
        (input, mixing)
    }

    /// Selects the entries that each query reads, like [`indexer::select`].
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
