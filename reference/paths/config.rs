//! Interface of the configurations of models: the properties that are known before a tensor is loaded.

use std::any::Any;
use std::fmt::Debug;

use dyn_clone::{DynClone, clone_trait_object};

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
    /// Loads the model, and calls `numerics` at every site that is a weight. Callers should use [`load`](super::load) instead.
    ///
    /// # Errors
    /// Returns the errors of `weights`, and an error if the tensors do not fit the configuration.
    fn load(&self, weights: &mut Source<'_>, numerics: &mut dyn Numerics<T>) -> Result<Box<dyn Model<T>>, LoadError>;
}

/// A configuration that was read and checked. Gives the sizes of a model, and the layers that have a site. To get the path's own
/// type, use `(config as &dyn Any).downcast_ref()`.
pub trait Config: Loads<f32> + Loads<f64> + Loads<Bounded> + DynClone + Any + Debug + Send + Sync {
    /// Returns the [`Path`], i.e. the kind of model, of this configuration.
    fn path(&self) -> &'static Path;

    /// Returns the number of layers; for Swap-FFN, the number of events (an exchange with memory, followed by FFN steps).
    fn layers(&self) -> usize;

    /// Returns the kind of input of the model.
    fn takes(&self) -> Takes;

    /// Returns the context length for which the model was trained, in tokens; `None` if `config.json` does not state it.
    fn most_tokens(&self) -> Option<usize> {
        None
    }

    /// Returns the length of the longest sequence, in tokens, for which the RoPE is valid: longer sequences fail. `None` if the
    /// RoPE has no limit. The limit may differ from the trained context length, [`Config::most_tokens`].
    fn longest(&self) -> Option<usize> {
        None
    }

    /// Returns the named sizes of the model. The names are those used by the [dimensions](crate::sites::Dim::Size) of the
    /// path's sites.
    fn sizes(&self) -> Vec<(&'static str, usize)>;

    /// Returns the size with this name; `None` if the model has no such size.
    fn size(&self, name: &str) -> Option<usize> {
        let found = self.sizes().into_iter().find(|(own, _)| *own == name);
        found.map(|(_, size)| size)
    }

    /// Returns the type names of a layer. A layer has a site with [`Layers::OfType`] if the site lists one of the type names of
    /// the layer.
    fn layer_types(&self, _layer: usize) -> Vec<&'static str> {
        Vec::new()
    }

    /// Returns the number of tokens that a layer compresses to one cache row ([`Growth::Entry`]); `None` without such a cache.
    fn tokens_per_entry(&self, _layer: usize) -> Option<usize> {
        None
    }

    /// Returns the list of all tensors from which the model is loaded.
    fn tensors(&self) -> Vec<TensorSpec>;

    /// Returns the list of tensors from which [`Model::state`] initialises the state of `sequences` sequences. Empty if states
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

    /// Returns true if this model has the site neither in a layer nor outside, although the path lists the site. For example, a
    /// model with tied embeddings has no weight of an output head.
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

    /// Lists all pairs of a site and a layer that has this site. `None` stands for the part of the model outside the layers.
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

    /// Returns the sizes of the dimensions at a site. A size that depends on the call, such as the number of tokens, is 1.
    ///
    /// # Panics
    /// If the site belongs to another path.
    fn dims(&self, site: &SiteInfo) -> Vec<usize> {
        let dims = site.dims.iter();
        dims.map(|dim| dim.fixed(&|name| self.size(name))).collect()
    }

    /// Returns the number of elements of one token at a site: [`Config::cols`] times the number of rows per token (e.g. one
    /// row per head).
    ///
    /// # Panics
    /// If the site belongs to another path.
    fn cols_of_token(&self, site: &SiteInfo) -> usize {
        self.dims(site).iter().product()
    }

    /// Returns the number of channels that RoPE has rotated (the last channels of each row of the site); 0 without RoPE.
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

clone_trait_object!(Config);

/// Returns an array with the name and the value of each listed field.
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
