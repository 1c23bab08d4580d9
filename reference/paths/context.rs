//! Context of a call of a layer: index of the layer, position in the sequence, hooks and RoPE.

use crate::{Numerics, Real, Site, Tensor};

/// Layer and position of a call, the hooks at its sites, and the RoPE of the layer.
pub(super) struct Context<'a, T: Real, R> {
    pub numerics: &'a mut dyn Numerics<T>,
    pub layer: Option<usize>,
    /// Position of the call's first token in the sequence.
    pub start: usize,
    pub rope: R,
}

impl<'a, T: Real, R> Context<'a, T, R> {
    pub fn new(numerics: &'a mut dyn Numerics<T>, layer: Option<usize>, start: usize, rope: R) -> Self {
        Self {
            numerics,
            layer,
            start,
            rope,
        }
    }

    pub fn at(&self, name: &'static str) -> Site {
        Site::new(self.layer, name).from_row(self.start)
    }

    pub fn pass(&mut self, name: &'static str, tensor: &mut Tensor<T>) {
        self.numerics.site(&self.at(name), tensor);
    }

    /// Calls [`Numerics::keys_and_values`] with a tensor that is read both as key and as value. Returns the copy that is read as
    /// value; `None` if the site does not split the tensor.
    pub fn pass_both(&mut self, name: &'static str, keys: &mut Tensor<T>) -> Option<Tensor<T>> {
        let site = self.at(name);
        self.numerics.keys_and_values(&site, keys)
    }

    pub fn rmsnorm(&self, x: &mut Tensor<T>, weight: Option<&[T]>, eps: T) {
        self.numerics.operations().rmsnorm(x, weight, eps);
    }
}
