//! The seam between a model path and the code that studies it.
//!
//! A path calls [`Numerics::site`] at each named place of its data flow. [`Plain`] leaves everything alone and makes the
//! path the reference; the lab's implementation rounds tensors to a format, records them, or replaces them by the
//! reference's own values (teacher forcing). [`Numerics::operations`] lets other code stand in for whole operations. One source
//! of each path therefore serves all of these.

use crate::{Operations, Real, Role, Site, Tensor};

/// A discrete decision for each row: which of the candidates were selected, and on what scores.
#[derive(Clone, Debug)]
pub struct Choice<T> {
    /// `[rows, k]`, best first; −1 where fewer than `k` candidates exist.
    pub indices: Vec<i32>,
    /// Candidates that a row may select.
    pub k: usize,
    /// `[rows, candidates]`, the scores that decided; −∞ marks a candidate the row may not select.
    pub scores: Tensor<T>,
}

impl<T: Real> Choice<T> {
    /// Rows that decide: one for each token.
    pub fn rows(&self) -> usize {
        self.scores.rows()
    }

    /// The selected candidates of one row, best first, without the −1 padding.
    pub fn selected(&self, row: usize) -> impl Iterator<Item = usize> + '_ {
        self.indices[row * self.k..(row + 1) * self.k]
            .iter()
            .filter_map(|&index| usize::try_from(index).ok())
    }
}

/// Hooks at the sites of a path. Every method defaults to the reference's behaviour.
pub trait Numerics<T: Real> {
    /// Called at every tensor site with the tensor on its way; what is left in it is what the path goes on with.
    fn site(&mut self, _site: &Site, _tensor: &mut Tensor<T>) {}

    /// Called at every decision, after the selection and before its use; may overrule `indices`.
    fn choice(&mut self, _site: &Site, _choice: &mut Choice<T>) {}

    /// Returns whether [`SiteKind::Watch`](crate::SiteKind::Watch) tensors are computed and passed to [`Numerics::site`] here.
    fn wants(&self, _site: &Site) -> bool {
        false
    }

    /// Returns whether a tensor read in two roles is passed twice, as [`Role::Key`](crate::Role::Key) and as
    /// [`Role::Value`](crate::Role::Value), and kept as two copies from here on, instead of once as
    /// [`Role::Both`](crate::Role::Both). The answer must be the same for all rows of a site in one run.
    fn splits(&self, _site: &Site) -> bool {
        false
    }

    /// Passes what is read both as key and as value, once or once per role; the second tensor is the value's copy.
    fn keys_and_values(&mut self, site: &Site, keys: &mut Tensor<T>) -> Option<Tensor<T>> {
        if !self.splits(site) {
            self.site(site, keys);
            return None;
        }
        let mut values = keys.clone();
        self.site(&site.read_as(Role::Key), keys);
        self.site(&site.read_as(Role::Value), &mut values);
        Some(values)
    }

    /// Returns the implementation of the operations; the default is the reference's own code.
    fn operations(&self) -> &dyn Operations<T> {
        &Plain
    }
}

/// The reference itself: no site is touched.
pub struct Plain;

impl<T: Real> Numerics<T> for Plain {}
