//! The operations of a path that someone else's code can stand in for.

use crate::ops::experts;
use crate::ops::hyper_connection::{HyperConnection, Mixing};
use crate::ops::indexer;
use crate::ops::rmsnorm::rmsnorm;
use crate::ops::rope::Rope;
use crate::{Choice, Plain, Real, Tensor};

/// Every method is the reference's own; who stands in for an operation gives its result in another way.
pub trait Operations<T: Real>: Sync {
    /// Normalises every row in place, as [`rmsnorm`].
    fn rmsnorm(&self, x: &mut Tensor<T>, weight: Option<&[T]>, eps: T) {
        rmsnorm(x, weight, eps);
    }

    /// Turns the last channels of the rows of every token in place, as [`Rope::apply`]; token i is at `position(i)`.
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

    /// Streams `[tokens, n, D]` → a block's normed input `[tokens, D]`, and how its output will be mixed back:
    /// [`HyperConnection::pre`], then [`rmsnorm`].
    fn mhc_pre(&self, mixer: &HyperConnection<T>, x: &Tensor<T>, weight: &[T], eps: T) -> (Tensor<T>, Mixing<T>) {
        let (mut input, mixing) = mixer.pre(x);
        rmsnorm(&mut input, Some(weight), eps);
        (input, mixing)
    }

    /// The entries that each query reads, as [`indexer::select`].
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

    /// Rows [gate, up] of `2·inner` → rows of `inner`, as [`experts::swiglu_rows`].
    fn swiglu(&self, gate_up: &[T], inner: usize, limit: T) -> Vec<T> {
        experts::swiglu_rows(gate_up, inner, limit)
    }
}

impl<T: Real> Operations<T> for Plain {}
