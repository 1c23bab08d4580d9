//! Interface between a model path (the implementation of one kind of model) and code that observes or changes the path's tensors.
//!
//! A path calls [`Numerics::site`] with each named tensor of its data flow. [`Plain`] changes nothing: with it, the path is the
//! reference. The lab's implementation rounds tensors to a format, records them, or replaces them by the reference's own values
//! (teacher forcing). [`Numerics::operations`] lets other code replace whole operations. Each path is therefore written only
//! once for all of these purposes.

use crate::{Operations, Real, Role, Site, Tensor};

/// A discrete decision for each row (token), such as the experts that a router selects: the selected candidates, and the scores
/// by which they were selected.
#[derive(Clone, Debug)]
pub struct Choice<T> {
    /// Selected candidates, `[rows, k]`, best first; −1 where fewer than `k` candidates exist.
    pub indices: Vec<i32>,
    /// Largest number of candidates that a row may select.
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

/// Hooks that a path calls at its sites (named tensors and decisions). The default methods change nothing.
pub trait Numerics<T: Real> {
    /// Called at every tensor site. The path continues with the tensor as modified by this method.
    fn site(&mut self, _site: &Site, _tensor: &mut Tensor<T>) {}

    /// Called at every discrete decision, before the path uses the selection. May overwrite the `indices` of the choice.
    fn choice(&mut self, _site: &Site, _choice: &mut Choice<T>) {}

    /// Returns true if the path should compute the tensor of this [`SiteKind::Watch`](crate::SiteKind::Watch) site and pass the
    /// tensor to [`Numerics::site`]. The path itself does not need such a tensor, and computes it only for the hook.
    fn wants(&self, _site: &Site) -> bool {
        false
    }

    /// Returns true to split a tensor that is read both as key and as value into two copies. The path then calls
    /// [`Numerics::site`] twice, with [`Role::Key`](crate::Role::Key) and [`Role::Value`](crate::Role::Value), instead of once
    /// with [`Role::Both`](crate::Role::Both). The result must be the same for all rows of a site in one run.
    fn splits(&self, _site: &Site) -> bool {
        false
    }

    /// Calls [`Numerics::site`] for a tensor that is read both as key and as value: twice (once per role) if the site
    /// [splits](Self::splits), otherwise once. Returns the copy that is read as value; `None` if the site does not split.
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

/// Implementation of [`Numerics`] that changes nothing: with `Plain`, a path computes the reference.
pub struct Plain;

impl<T: Real> Numerics<T> for Plain {}
