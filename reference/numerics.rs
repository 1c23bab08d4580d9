//! Interface between a model path and the code that studies it.
//!
//! A path calls [`Numerics::site`] at each named place of its data flow. [`Plain`] changes nothing: with it, the path is the
//! reference. The lab's implementation rounds tensors to a format, records them, or replaces them by the reference's own values
//! (teacher forcing). [`Numerics::operations`] lets other code replace whole operations. One source of each path therefore
//! serves all of these purposes.

use crate::{Operations, Real, Role, Site, Tensor};

/// A discrete decision for each row: the selected candidates, and the scores by which they were selected.
#[derive(Clone, Debug)]
pub struct Choice<T> {
    /// Selected candidates, `[rows, k]`, best first; −1 where fewer than `k` candidates exist.
    pub indices: Vec<i32>,
    /// Number of candidates that a row selects, at most.
    pub k: usize,
    /// Scores of the candidates, `[rows, candidates]`; −∞ marks a candidate that the row may not select.
    pub scores: Tensor<T>,
}

impl<T: Real> Choice<T> {
    /// Number of rows: one row for each token.
    pub fn rows(&self) -> usize {
        self.scores.rows()
    }

    /// Returns the selected candidates of one row, best first, without the −1 padding.
    pub fn selected(&self, row: usize) -> impl Iterator<Item = usize> + '_ {
        self.indices[row * self.k..(row + 1) * self.k]
            .iter()
            .filter_map(|&index| usize::try_from(index).ok())
    }
}

/// Hooks at the sites of a path. The default methods leave the computation of the reference unchanged.
pub trait Numerics<T: Real> {
    /// Called at every tensor site with the tensor. The path continues with the tensor as this method leaves it.
    fn site(&mut self, _site: &Site, _tensor: &mut Tensor<T>) {}

    /// Called at every decision, after the selection and before the path uses it. May overwrite `indices`.
    fn choice(&mut self, _site: &Site, _choice: &mut Choice<T>) {}

    /// Returns true if [`SiteKind::Watch`](crate::SiteKind::Watch) tensors are computed and passed to [`Numerics::site`] at
    /// this site.
    fn wants(&self, _site: &Site) -> bool {
        false
    }

    /// Returns true if a tensor read both as key and as value is split into two copies from this site on. Then the site is
    /// called twice, with [`Role::Key`](crate::Role::Key) and [`Role::Value`](crate::Role::Value), instead of once with
    /// [`Role::Both`](crate::Role::Both). The answer must be the same for all rows of a site in one run.
    fn splits(&self, _site: &Site) -> bool {
        false
    }

    /// Calls the site for a tensor read both as key and as value: once, or once per role if the site [splits](Self::splits).
    /// Returns the copy for the values if it splits; `None` otherwise.
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

/// The reference itself: no tensor is changed.
pub struct Plain;

impl<T: Real> Numerics<T> for Plain {}
