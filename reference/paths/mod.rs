//! Model paths: one folder here and one line in [`PATHS`] for each.
//!
//! A [`Path`] reads a configuration file to a [`Config`], which [`load`] makes a [`Model`] of with [`Weights`]; a model makes
//! a [`State`] and runs [`Input`]s on it. All of these are objects, so that code that runs models need not know which there
//! are. What is special about a path is in its own module, with types of its own.
//!
//! # What a path may be
//!
//! | What | How a path says so |
//! |---|---|
//! | checkpoints of several families | [`Path::model_types`] lists all; [`Path::config`] brings their keys into one form, and [`Config::tensors`] has the names of the one that was read |
//! | layers of several types | [`Config::layer_types`], as in `layer_types` of `config.json`; a site says which types have it |
//! | one vector that is key and value | one site, [`Held::KeyValue`](crate::sites::Held::KeyValue) |
//! | keys and values apart | two sites, [`Held::Key`](crate::sites::Held::Key) and [`Held::Value`](crate::sites::Held::Value) |
//! | a cache that is a state, as of a delta rule | a site through which the state passes after each call, [`Growth::State`](crate::sites::Growth::State) |
//! | weights that may be rounded | sites that are passed [at load](crate::sites::When::Load); a [`Loader`] passes them |
//! | inputs that are not token ids | [`Input::Vectors`] |
//! | a state that begins with numbers | [`Config::start`] |

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

pub use config::{Boxed, Config, Loads, Takes};
pub use loader::{Loader, asked};
pub use model::{Input, Model, Scalar, State, load};
pub use rope::RopeConfig;
pub use weights::{Invalid, LoadError, Source, TensorSpec, Weights};

use serde::Deserialize;

use crate::SiteInfo;
use crate::sites::{Dim, Flow};

/// A kind of model that the crate computes.
pub struct Path {
    /// Name of its module.
    pub name: &'static str,
    /// Families of checkpoints that it loads, by the `model_type` of their `config.json`.
    pub model_types: fn() -> Vec<&'static str>,
    /// Every site, in the order in which they are passed.
    pub sites: &'static [SiteInfo],
    /// Reads the text of a `config.json` of one of its model types without some keys, and checks it, as [`Path::config_without`].
    pub read: fn(&str, &[&str]) -> Result<Box<dyn Config>, String>,
    /// Says of a checkpoint of an unknown model type which of the path's is nearest to it, and what differs, if it is of this kind.
    pub nearest: fn(&str) -> Option<String>,
}

impl Path {
    /// Reads the text of a `config.json` of one of its model types, and checks it.
    ///
    /// # Errors
    /// What is missing, of another type, or does not fit together, and keys that are not read and may change the result.
    pub fn config(&self, json: &str) -> Result<Box<dyn Config>, String> {
        self.config_without(json, &[])
    }

    /// Does the same without the keys in `inert`, which the caller says to change nothing. Keys within an object have its name and a dot
    /// before them.
    ///
    /// # Errors
    /// They are those of [`Path::config`], and a key in `inert` that is read.
    pub fn config_without(&self, json: &str, inert: &[&str]) -> Result<Box<dyn Config>, String> {
        (self.read)(json, inert)
    }

    /// Finds a site by its name.
    pub fn site(&self, name: &str) -> Option<&'static SiteInfo> {
        self.sites.iter().find(|site| site.name == name)
    }

    /// Gives the site of what a run results in.
    ///
    /// # Panics
    /// If no site is one.
    pub fn output(&self) -> &'static SiteInfo {
        let output = self.sites.iter().find(|site| site.flow == Flow::Output);
        output.unwrap_or_else(|| panic!("no site of '{}' is the output", self.name))
    }

    /// Says whether its models read the tokens of a sequence: the output then has a row for each of them. The others take
    /// vectors.
    pub fn reads_tokens(&self) -> bool {
        self.output().dims.first() == Some(&Dim::Tokens)
    }

    /// Gives the site of the residual stream that leaves a layer, where there is one; its error is the error by layer.
    pub fn stream(&self) -> Option<&'static SiteInfo> {
        self.sites.iter().find(|site| site.flow == Flow::Leaves)
    }
}

/// This is the list of all paths.
pub static PATHS: &[&Path] = &[&deepseek_v4::PATH, &gqa::PATH, &hybrid::PATH, &swap_ffn::PATH];

/// Gives the paths whose models read tokens.
pub fn readers() -> Vec<&'static Path> {
    PATHS.iter().copied().filter(|path| path.reads_tokens()).collect()
}

/// Finds a path by its name.
pub fn named(name: &str) -> Option<&'static Path> {
    PATHS.iter().copied().find(|path| path.name == name)
}

/// Finds the path that loads checkpoints with this `config.json`.
///
/// # Errors
/// A text that is not a JSON object, and a `model_type` that no path loads: the message names it, those that are known, and what
/// differs from the nearest of these.
pub fn find(json: &str) -> Result<&'static Path, String> {
    find_in(PATHS, json)
}

/// Finds it among these paths.
///
/// # Errors
/// They are those of [`find`].
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

/// Reads a `config.json` by the path that loads such checkpoints.
///
/// # Errors
/// They are those of [`find`] and of [`Path::config`].
pub fn read(json: &str) -> Result<Box<dyn Config>, String> {
    find(json)?.config(json)
}
