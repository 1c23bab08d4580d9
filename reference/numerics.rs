//! The seam between a model path and whoever studies it.
//!
//! A path calls [`Numerics::site`] at each named place of its data flow. [`Plain`] leaves everything alone and makes the
//! path the reference; the lab's implementation rounds tensors to a format, records them, or replaces them by the
//! reference's own values (teacher forcing). [`Numerics::operations`] lets other code stand in for whole operations. One source of each path therefore serves all of these.

use std::fmt;

use crate::{Operations, Real, Tensor};

/// In which role a tensor is read. DeepSeek-V4 reads one KV vector both as key and as value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Read in every role: the ordinary case.
    Both,
    /// The copy read as attention key.
    Key,
    /// The copy read as attention value.
    Value,
}

/// A named place in a path. Printed `layers.12.attention.kv.window`, or just the name outside the layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Site {
    /// Decoder layer, 0-based; `None` outside the layers.
    pub layer: Option<usize>,
    /// Name without the layer, as listed by the path's `SITES`.
    pub name: &'static str,
    /// Which reader of the tensor this call is for.
    pub role: Role,
    /// Number, within the sequence, of the tensor's first row: a token position, or the number of a compressed entry.
    pub first_row: usize,
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.layer {
            Some(layer) => write!(f, "layers.{layer}.{}", self.name),
            None => f.write_str(self.name),
        }
    }
}

/// What passes at a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SiteKind {
    /// A tensor that may be rounded, replaced or watched.
    Tensor,
    /// A discrete decision (top-k, router).
    Choice,
    /// A tensor computed only for those who ask for it by [`Numerics::wants`]; changing it changes nothing.
    Watch,
}

/// One entry of a path's list of sites.
#[derive(Clone, Copy, Debug)]
pub struct SiteInfo {
    /// As in [`Site::name`].
    pub name: &'static str,
    /// Whether the site stands once in every layer (of some type) or once in the path.
    pub in_layers: bool,
    /// What passes, and to which method of [`Numerics`].
    pub kind: SiteKind,
    /// Shape in words of the path's configuration, e.g. `[T, head_dim]`.
    pub shape: &'static str,
    /// What it is, in words.
    pub doc: &'static str,
}

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

/// What happens at the sites of a path. Every method has the reference's behaviour as default.
pub trait Numerics<T: Real> {
    /// Called at every tensor site with the tensor on its way; what is left in it is what the path goes on with.
    fn site(&mut self, _site: &Site, _tensor: &mut Tensor<T>) {}

    /// Called at every decision, after the selection and before its use; may overrule `indices`.
    fn choice(&mut self, _site: &Site, _choice: &mut Choice<T>) {}

    /// Whether [`SiteKind::Watch`] tensors are computed and passed to [`Numerics::site`] here.
    fn wants(&self, _site: &Site) -> bool {
        false
    }

    /// Whether a tensor read in two roles is passed twice, as [`Role::Key`] and as [`Role::Value`], from here on kept as
    /// two copies, instead of once as [`Role::Both`]. Must answer alike for all rows of a site in one run.
    fn splits(&self, _site: &Site) -> bool {
        false
    }

    /// What computes the operations; the reference's own code where nobody stands in.
    fn operations(&self) -> &dyn Operations<T> {
        &Plain
    }
}

/// The reference itself: no site is touched.
pub struct Plain;

impl<T: Real> Numerics<T> for Plain {}
