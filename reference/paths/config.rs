//! Configuration of a model, which describes it before any tensor is loaded.

use std::any::Any;
use std::fmt::Debug;

use super::{LoadError, Model, Path, Source, TensorSpec};
use crate::sites::{Growth, Layers};
use crate::{Bounded, Numerics, Real, SiteInfo};

/// Kind of input that a model takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// Token ids, each below `vocabulary`.
    Ids {
        /// Number of token ids.
        vocabulary: usize,
    },
    /// One vector per sequence.
    Vectors {
        /// Number of channels of a vector.
        cols: usize,
    },
}

/// Loads the model of a configuration in the scalar type `T`.
pub trait Loads<T: Real> {
    /// Loads the model. Callers should use [`load`](super::load). Sites at load time are passed to `numerics`.
    ///
    /// # Errors
    /// Returns the errors of `weights`, and an error if the tensors do not fit the configuration.
    fn load(&self, weights: &mut Source<'_>, numerics: &mut dyn Numerics<T>) -> Result<Box<dyn Model<T>>, LoadError>;
}

/// Copies a configuration behind a trait object; implemented for every [`Clone`] configuration.
pub trait Boxed {
    /// Returns a boxed copy.
    fn boxed(&self) -> Box<dyn Config>;
}

impl<C: Config + Clone> Boxed for C {
    fn boxed(&self) -> Box<dyn Config> {
        Box::new(self.clone())
    }
}

/// A configuration that was read and checked: the sizes of a model, and the layers that have each site. To get the path's own
/// type, use `(config as &dyn Any).downcast_ref()`.
pub trait Config: Loads<f32> + Loads<f64> + Loads<Bounded> + Boxed + Any + Debug + Send + Sync {
    /// Returns the path of the configuration.
    fn path(&self) -> &'static Path;

    /// Returns the number of layers of the model, or of other repeated units that have sites, such as the events of Swap-FFN.
    fn layers(&self) -> usize;

    /// Returns the kind of input of the model.
    fn takes(&self) -> Takes;

    /// Returns the context length for which the model was trained, in tokens; `None` if the file does not state it.
    fn most_tokens(&self) -> Option<usize> {
        None
    }

    /// Returns the largest number of tokens of a sequence for which the RoPE is valid: longer runs fail. `None` if the RoPE has
    /// no limit. It may differ from [`Config::most_tokens`].
    fn longest(&self) -> Option<usize> {
        None
    }

    /// Returns the named sizes of the model. The names are those used by the [dimensions](crate::sites::Dim::Size) of the
    /// path's sites.
    fn sizes(&self) -> Vec<(&'static str, usize)>;

    /// Returns the size with this name; `None` if it does not exist.
    fn size(&self, name: &str) -> Option<usize> {
        let found = self.sizes().into_iter().find(|(own, _)| *own == name);
        found.map(|(_, size)| size)
    }

    /// Returns the types of a layer, by the names that the path's sites use in [`Layers::OfType`].
    fn layer_types(&self, _layer: usize) -> Vec<&'static str> {
        Vec::new()
    }

    /// Returns the number of tokens per row of a layer's caches with [`Growth::Entry`]; `None` if the layer has no such cache.
    fn tokens_per_entry(&self, _layer: usize) -> Option<usize> {
        None
    }

    /// Returns the list of all tensors from which the model is loaded.
    fn tensors(&self) -> Vec<TensorSpec>;

    /// Returns the list of tensors for [`Model::state`], which initialise the state of `sequences` sequences. Empty if states
    /// begin empty.
    fn start(&self, _sequences: usize) -> Vec<TensorSpec> {
        Vec::new()
    }

    /// Returns the number of token ids; `None` if the model does not take token ids.
    fn vocabulary(&self) -> Option<usize> {
        match self.takes() {
            Takes::Ids { vocabulary } => Some(vocabulary),
            Takes::Vectors { .. } => None,
        }
    }

    /// Returns true if this model does not have the site at all.
    fn lacks(&self, _site: &SiteInfo) -> bool {
        false
    }

    /// Returns true if a layer has the site. `None` stands for the part of the model outside the layers.
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

    /// Lists every site with every layer that has it, site by site. `None` stands for the part of the model outside the layers.
    fn places(&self) -> Vec<(&'static SiteInfo, Option<usize>)> {
        let layers = || (0..self.layers()).map(Some).chain([None]);
        let sites = self.path().sites.iter();
        let places = sites.flat_map(|site| layers().map(move |layer| (site, layer)));
        places.filter(|(site, layer)| self.passes(site, *layer)).collect()
    }

    /// Returns the number of channels of a row (the last dimension) at a site; for a decision, the number of selected
    /// candidates.
    ///
    /// # Panics
    /// If the site belongs to another path.
    fn cols(&self, site: &SiteInfo) -> usize {
        *self.dims(site).last().expect("a site has dimensions")
    }

    /// Returns the sizes of the dimensions at a site. A size that depends on the call is 1.
    ///
    /// # Panics
    /// If the site belongs to another path.
    fn dims(&self, site: &SiteInfo) -> Vec<usize> {
        let dims = site.dims.iter();
        dims.map(|dim| dim.fixed(&|name| self.size(name))).collect()
    }

    /// Returns the number of elements of one token at a site: the channels of its rows of all streams or heads. Divided by
    /// [`Config::cols`], it is the number of rows per token.
    ///
    /// # Panics
    /// If the site belongs to another path.
    fn cols_of_token(&self, site: &SiteInfo) -> usize {
        self.dims(site).iter().product()
    }

    /// Returns the number of channels at the end of each row that RoPE has rotated at a site; 0 if RoPE is not applied.
    ///
    /// # Panics
    /// If the site belongs to another path.
    fn turned(&self, site: &SiteInfo) -> usize {
        site.turned.map_or(0, |dim| dim.fixed(&|name| self.size(name)))
    }

    /// Returns the number of tokens per row of the cache that stores a site's tensors in a layer; `None` if the cache does not
    /// grow.
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

/// Returns an array of (name, value) of fields.
macro_rules! fields {
    ($of:ident: $($field:ident)+) => {
        [$((stringify!($field), $of.$field)),+]
    };
}

/// Implements [`Config::sizes`] with the fields of these names: `sizes!(head_dim, vocab_size);`.
#[macro_export]
macro_rules! sizes {
    ($($field:ident),+ $(,)?) => {
        fn sizes(&self) -> Vec<(&'static str, usize)> {
            vec![$((stringify!($field), self.$field)),+]
        }
    };
}
