//! A model's description, before any tensor is loaded.

use std::any::Any;
use std::fmt::Debug;

use super::{LoadError, Model, Path, Source, TensorSpec};
use crate::sites::{Growth, Layers};
use crate::{Bounded, Numerics, Real, SiteInfo};

/// Input of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// Token ids, each below `vocabulary`.
    Ids {
        /// Number of ids.
        vocabulary: usize,
    },
    /// A vector of each sequence.
    Vectors {
        /// Its channels.
        cols: usize,
    },
}

/// Makes the model of a configuration in numbers of one kind.
pub trait Loads<T: Real> {
    /// Makes the model; [`load`](super::load) is what callers want. Sites that are passed at load are passed to `numerics`.
    ///
    /// # Errors
    /// Those of `weights`, and tensors of which no model can be made.
    fn load(&self, weights: &mut Source<'_>, numerics: &mut dyn Numerics<T>) -> Result<Box<dyn Model<T>>, LoadError>;
}

/// Copies a configuration; every type that is [`Clone`] does so.
pub trait Boxed {
    /// Copies it.
    fn boxed(&self) -> Box<dyn Config>;
}

impl<C: Config + Clone> Boxed for C {
    fn boxed(&self) -> Box<dyn Config> {
        Box::new(self.clone())
    }
}

/// A configuration that was read and checked: the sizes of a model, and where it passes which site. A path's own type is had
/// of it as `(config as &dyn Any).downcast_ref()`.
pub trait Config: Loads<f32> + Loads<f64> + Loads<Bounded> + Boxed + Any + Debug + Send + Sync {
    /// Gives the path that it belongs to.
    fn path(&self) -> &'static Path;

    /// Counts the layers of the model, or other repeated units that have sites, such as events.
    fn layers(&self) -> usize;

    /// Says what the model takes.
    fn takes(&self) -> Takes;

    /// Says how many tokens the model was made for, if the file does.
    fn most_tokens(&self) -> Option<usize> {
        None
    }

    /// Says how many tokens a sequence can have at all, if its RoPE is made for so many only; see [`Config::most_tokens`].
    fn longest(&self) -> Option<usize> {
        None
    }

    /// Lists the sizes that have names, as [dimensions](crate::sites::Dim::Size) of the path's sites have them.
    fn sizes(&self) -> Vec<(&'static str, usize)>;

    /// Gives the size of that name.
    fn size(&self, name: &str) -> Option<usize> {
        let found = self.sizes().into_iter().find(|(own, _)| *own == name);
        found.map(|(_, size)| size)
    }

    /// Gives the types of a layer, by the names that the path's sites have in [`Layers::OfType`].
    fn layer_types(&self, _layer: usize) -> Vec<&'static str> {
        Vec::new()
    }

    /// Says how many tokens make one row of a layer's caches of [`Growth::Entry`]; `None` where the layer has none.
    fn tokens_per_entry(&self, _layer: usize) -> Option<usize> {
        None
    }

    /// Lists every tensor that the model is loaded from.
    fn tensors(&self) -> Vec<TensorSpec>;

    /// Lists the tensors that [`Model::state`] is given, if a state of so many sequences does not begin empty.
    fn start(&self, _sequences: usize) -> Vec<TensorSpec> {
        Vec::new()
    }

    /// Counts the token ids, if the model takes them.
    fn vocabulary(&self) -> Option<usize> {
        match self.takes() {
            Takes::Ids { vocabulary } => Some(vocabulary),
            Takes::Vectors { .. } => None,
        }
    }

    /// Returns whether a site is not one of this model's, for any layers.
    fn lacks(&self, _site: &SiteInfo) -> bool {
        false
    }

    /// Says whether a site is passed in a layer (`None`: outside the layers).
    fn passes(&self, site: &SiteInfo, layer: Option<usize>) -> bool {
        if self.lacks(site) {
            return false;
        }
        match (site.layers, layer) {
            (Layers::Outside, None) => true,
            (Layers::Every, Some(layer)) => layer < self.layers(),
            (Layers::OfType(types), Some(layer)) => {
                layer < self.layers() && self.layer_types(layer).iter().any(|own| types.contains(own))
            }
            (Layers::Outside, Some(_)) | (Layers::Every | Layers::OfType(_), None) => false,
        }
    }

    /// Lists every site with every layer that passes it (`None`: outside the layers), site by site.
    fn places(&self) -> Vec<(&'static SiteInfo, Option<usize>)> {
        let layers = || (0..self.layers()).map(Some).chain([None]);
        let sites = self.path().sites.iter();
        let places = sites.flat_map(|site| layers().map(move |layer| (site, layer)));
        places.filter(|(site, layer)| self.passes(site, *layer)).collect()
    }

    /// Counts the channels of a row (the last dimension) at a site, or what a decision selects.
    ///
    /// # Panics
    /// If the site is another path's.
    fn cols(&self, site: &SiteInfo) -> usize {
        *self.dims(site).last().expect("a site has dimensions")
    }

    /// Gives the sizes of the dimensions at a site: 1 where a size depends on the call.
    ///
    /// # Panics
    /// If the site is another path's.
    fn dims(&self, site: &SiteInfo) -> Vec<usize> {
        let dims = site.dims.iter();
        dims.map(|dim| dim.fixed(&|name| self.size(name))).collect()
    }

    /// Counts the channels of all that belongs to one token at a site: its rows of all streams or heads together. Divided by
    /// [`Config::cols`] it is the number of these rows.
    ///
    /// # Panics
    /// If the site is another path's.
    fn cols_of_token(&self, site: &SiteInfo) -> usize {
        self.dims(site).iter().product()
    }

    /// Says how many channels of a row, the last ones, RoPE has turned at a site: 0 if it is not applied.
    ///
    /// # Panics
    /// If the site is another path's.
    fn turned(&self, site: &SiteInfo) -> usize {
        site.turned.map_or(0, |dim| dim.fixed(&|name| self.size(name)))
    }

    /// Says how many tokens add a row to the cache that a site goes to in a layer: `None` if it does not grow.
    fn tokens_per_row(&self, site: &SiteInfo, layer: usize) -> Option<usize> {
        match site.cache?.growth {
            Growth::Token => Some(1),
            Growth::Entry => self.tokens_per_entry(layer),
            Growth::Window | Growth::State => None,
        }
    }
}

impl Clone for Box<dyn Config> {
    fn clone(&self) -> Self {
        (**self).boxed()
    }
}

/// Fields with their names.
macro_rules! fields {
    ($of:ident: $($field:ident)+) => {
        [$((stringify!($field), $of.$field)),+]
    };
}

/// [`Config::sizes`] of fields with these names: `sizes!(head_dim, vocab_size);`.
#[macro_export]
macro_rules! sizes {
    ($($field:ident),+ $(,)?) => {
        fn sizes(&self) -> Vec<(&'static str, usize)> {
            vec![$((stringify!($field), self.$field)),+]
        }
    };
}
