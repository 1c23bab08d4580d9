//! Model paths. A path implements one kind of model; it consists of a folder next to this file and an entry of [`PATHS`]. The
//! *sites* of a path are the named tensors and decisions that hooks can observe and change.
//!
//! A [`Path`] reads a configuration file into a [`Config`]. [`load`] makes a [`Model`] from a [`Config`] and [`Weights`]. A model
//! creates a [`State`] and runs [`Input`]s on it. All of these are trait objects, so that code that runs models does not depend
//! on the list of paths. The module of a path also has public types for the properties that only this path has.
//!
//! # Possible properties of a path
//!
//! | Property | Implementation |
//! |---|---|
//! | several families of checkpoints | [`Path::model_types`] lists all families |
//! | keys of `config.json` that depend on the family | [`Path::config`] converts the keys to one form |
//! | tensor names that depend on the family | [`Config::tensors`] returns the names of the family that was read |
//! | several types of layers | [`Config::layer_types`]; a site lists the types of layers that have the site |
//! | one vector that is both key and value | one site, [`Held::KeyValue`](crate::sites::Held::KeyValue) |
//! | separate keys and values | two sites, [`Held::Key`](crate::sites::Held::Key) and [`Held::Value`](crate::sites::Held::Value) |
//! | a recurrent state, e.g. of a delta rule | a site with the state after each call, [`Growth::State`](crate::sites::Growth::State) |
//! | weights that may be rounded | sites that are called [at load](crate::sites::When::Load) with the tensors of a [`Loader`] |
//! | inputs other than token ids | [`Input::Vectors`] |
//! | a state with initial values | [`Config::start`] |

#[macro_use]
mod config;
mod context;
pub mod deepseek_v4;
pub mod gqa;
pub mod hybrid;
mod keys;
mod loader;
mod model;
mod rope;
pub mod swap_ffn;
mod weights;

pub use config::{Config, Loads, Takes};
pub use loader::{Loader, asked};
pub use model::{Input, Model, Scalar, State, load};
pub use rope::RopeConfig;
pub use weights::{Invalid, LoadError, Source, TensorSpec, Weights};

use serde::Deserialize;

use crate::SiteInfo;
use crate::sites::{Dim, Flow};

/// A kind of model that the crate implements.
pub struct Path {
    /// Name of the path's module.
    pub name: &'static str,
    /// Returns the `model_type` (in `config.json`) of each family of checkpoints that the path loads.
    pub model_types: fn() -> Vec<&'static str>,
    /// Every site of the path, in the order in which the sites are called.
    pub sites: &'static [SiteInfo],
    /// Reads and checks the text of a `config.json`; the second argument lists keys to ignore. See [`Path::config_without`].
    pub read: fn(&str, &[&str]) -> Result<Box<dyn Config>, String>,
    /// Compares a `config.json` of an unknown model type with the path's model types. Returns a text about the most similar model
    /// type and the keys that differ; `None` if the path has no similar model type.
    pub nearest: fn(&str) -> Option<String>,
}

impl Path {
    /// Reads and checks the text of a `config.json` of one of the path's model types.
    ///
    /// # Errors
    /// Returns an error if a key is missing, has the wrong type, contradicts another key, or is unknown and may change the
    /// result.
    pub fn config(&self, json: &str) -> Result<Box<dyn Config>, String> {
        self.config_without(json, &[])
    }

    /// Same as [`Path::config`], but ignores the keys in `inert`: the caller asserts that these keys do not affect the result.
    /// The name of a key within an object has the object as prefix, e.g. `text_config.dtype`.
    ///
    /// # Errors
    /// Returns the errors of [`Path::config`], and an error if a key in `inert` is read by the path.
    pub fn config_without(&self, json: &str, inert: &[&str]) -> Result<Box<dyn Config>, String> {
        (self.read)(json, inert)
    }

    /// Finds a site by its name; `None` if the path has no site with this name.
    pub fn site(&self, name: &str) -> Option<&'static SiteInfo> {
        self.sites.iter().find(|site| site.name == name)
    }

    /// Returns the site of the output of a run.
    ///
    /// # Panics
    /// If no site is marked as the output.
    pub fn output(&self) -> &'static SiteInfo {
        let output = self.sites.iter().find(|site| site.flow == Flow::Output);
        output.unwrap_or_else(|| panic!("no site of '{}' is the output", self.name))
    }

    /// Returns true if the models of the path read tokens of a sequence: the output then has one row per token. Other models
    /// read vectors.
    pub fn reads_tokens(&self) -> bool {
        self.output().dims.first() == Some(&Dim::Tokens)
    }

    /// Returns the site of the residual stream after a layer. The error of this tensor is reported for each layer. `None` if the
    /// path has no such site.
    pub fn stream(&self) -> Option<&'static SiteInfo> {
        self.sites.iter().find(|site| site.flow == Flow::Leaves)
    }
}

/// List of all paths.
pub static PATHS: &[&Path] = &[&deepseek_v4::PATH, &gqa::PATH, &hybrid::PATH, &swap_ffn::PATH];

/// Returns the paths whose models read token ids; the models of other paths take vectors.
pub fn readers() -> Vec<&'static Path> {
    PATHS.iter().copied().filter(|path| path.reads_tokens()).collect()
}

/// Finds a path by its name; `None` if no path has this name.
pub fn named(name: &str) -> Option<&'static Path> {
    PATHS.iter().copied().find(|path| path.name == name)
}

/// Finds the path that loads checkpoints with this `config.json`.
///
/// # Errors
/// Returns an error if the text is not a JSON object, or if no path loads its `model_type`. The message has this `model_type`,
/// all known model types, and the differences from the most similar known model type.
pub fn find(json: &str) -> Result<&'static Path, String> {
    find_in(PATHS, json)
}

/// Same as [`find`], but searches only `paths`.
///
/// # Errors
/// Same as [`find`].
pub fn find_in(paths: &[&'static Path], json: &str) -> Result<&'static Path, String> {
    #[derive(Deserialize)]
    struct Keys {
        model_type: Option<serde_json::Value>,
        architectures: Option<serde_json::Value>,
    }
    if !json.trim_start().starts_with('{') {
        return Err("expected an object, as `config.json` of a checkpoint holds".into());
    }
    let keys: Keys =
        serde_json::from_str(json).map_err(|why| format!("it is not JSON: {why}; expected an object of keys"))?;
    let known = paths.iter().flat_map(|path| (path.model_types)());
    let known: Vec<String> = known.map(|name| format!("'{name}'")).collect();
    let known = known.join(", ");
    let name = match &keys.model_type {
        Some(serde_json::Value::String(name)) => name,
        Some(other) => return Err(format!("model_type is {other}, expected one of {known}")),
        None => return Err(format!("model_type is missing, expected one of {known}")),
    };
    let loads = |path: &&&'static Path| (path.model_types)().contains(&name.as_str());
    paths.iter().find(loads).copied().ok_or_else(|| {
        let architecture = keys.architectures.as_ref().and_then(|names| names.get(0)?.as_str());
        let architecture = architecture.map(|name| format!(" ({name})")).unwrap_or_default();
        let nearest = paths.iter().find_map(|path| (path.nearest)(json));
        let nearest = nearest.map(|nearest| format!("; {nearest}")).unwrap_or_default();
        format!("model_type is '{name}'{architecture}, expected one of {known}{nearest}")
    })
}

/// Reads and checks the text of a `config.json`. The `model_type` in the text selects the [`Path`] that reads it.
pub fn read(json: &str) -> Result<Box<dyn Config>, String> {
    find(json)?.config(json)
}
