//! Position of a call, and its hooks.

use crate::ops::rope_half::HalfRope;
use crate::{Numerics, Real, Site, Tensor};

/// Position of a call in model and sequence, and the hooks at its sites.
pub(in crate::paths) struct Context<'a, T: Real> {
    pub numerics: &'a mut dyn Numerics<T>,
    pub layer: usize,
    /// Position of the call's first token.
    pub start: usize,
    pub rope: Option<&'a HalfRope<T>>,
}

impl<T: Real> Context<'_, T> {
    pub fn at(&self, name: &'static str) -> Site {
        Site::new(Some(self.layer), name).from_row(self.start)
    }

    pub fn pass(&mut self, name: &'static str, tensor: &mut Tensor<T>) {
        self.numerics.site(&self.at(name), tensor);
    }

    /// Passes what is read both as key and as value, once or once per role; the second tensor is the value's copy.
    pub fn pass_both(&mut self, name: &'static str, keys: &mut Tensor<T>) -> Option<Tensor<T>> {
        let site = self.at(name);
        self.numerics.keys_and_values(&site, keys)
    }

    pub fn rmsnorm(&self, x: &mut Tensor<T>, weight: Option<&[T]>, eps: T) {
        self.numerics.operations().rmsnorm(x, weight, eps);
    }
}
