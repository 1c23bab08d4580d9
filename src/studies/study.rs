//! The interface of a kind of experiment to the rest of the program.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rayon::prelude::*;
use reference::Numerics;
use reference::paths::{Config, Model};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::kernels::KernelStudy;
use super::limits::Parts;
use super::null::{Null, Wanted};
use crate::backend::rounding::CacheBytes;
use crate::experiment::file::ExperimentFile;
use crate::experiment::{Mistake, Rule};
use crate::report::Show;
use crate::run::RecipeInfo;
use crate::run::plan::{Cell, Plan};
use ulplab_core::error::{Error, Result};
use ulplab_core::metrics::Metric;
use ulplab_core::pattern::{matches, matches_nothing};
use ulplab_core::record::{Phase, Record};

/// An experiment of one kind, as its file says it: a source gives windows, something exact is computed once for a window, each
/// recipe computes it in its own way, and records tell how far apart they are. What reports show of them is its [`Show`].
pub trait Study: Show + Send + Sync {
    /// Checks the study before any data is read.
    ///
    /// # Errors
    /// The first mistake, with its place.
    fn check(&self) -> Result<(), Mistake>;

    /// Windows, phases, and the recipes that run in them.
    fn plan(&self) -> Plan;

    /// Names and documents of the recipes, in the experiment's order.
    fn recipes(&self) -> Vec<RecipeInfo>;

    /// Whether a gate may look at `at`, a pattern with layer 0 for all layers: [`check_among`] the sites that records have.
    ///
    /// # Errors
    /// The mistake in it.
    fn check_site(&self, at: &str) -> Result<(), String>;

    /// Whether a gate looks at what is measured in this model, of all those whose sites [`check_site`](Self::check_site) knows.
    ///
    /// # Errors
    /// The mistake in its place or its metric.
    fn check_measured(&self, _rule: &Rule, _metric: &Metric, _config: &dyn Config) -> Result<(), Mistake> {
        Ok(())
    }

    /// Estimates of what is in memory at once.
    fn memory(&self, config: Option<&dyn Config>, threads: usize) -> Parts;

    /// The same question on half as much, and the key that says so, if that can be.
    fn halved(&self) -> Option<(Box<dyn Study>, String)>;

    /// Finds formats, sites and kernels of all recipes, and that they fit together.
    ///
    /// # Errors
    /// The first mistake, and where it is.
    fn ready<'a>(&'a self, seed: u64, config: Option<&dyn Config>) -> Result<Runs<'a>, Mistake>;

    /// What its gates are calibrated on: `draws` times as much data of the same distribution, in some phases, and recipes that stand
    /// for the wanted ones.
    ///
    /// # Errors
    /// Why its gates are not calibrated.
    fn null(&self, _draws: usize, _phases: &[Phase], _wanted: &[Wanted]) -> Result<Null, String> {
        Err("nothing is drawn for gates of this kind".into())
    }

    /// Whether kernels stand in for operations of a model.
    fn stands_in(&self) -> bool {
        false
    }

    /// The study itself, if it is the one of kernels.
    fn kernels(&self) -> Option<&KernelStudy> {
        None
    }

    /// Its keys, as a stored run has them.
    fn body(&self) -> Map<String, Value>;
}

/// How the cells of a study are run.
pub enum Runs<'a> {
    /// Window by window.
    Windows(Box<dyn ReadyRecipes + 'a>),
    /// Operation by operation, on a GPU or by programs.
    Kernels(&'a KernelStudy),
}

/// Recipes made ready to run.
pub trait ReadyRecipes: Send + Sync {
    /// Runs some cells of one window.
    ///
    /// # Errors
    /// Those of the reference, of what stands in for it, and of [`Bench::each`].
    fn window(&self, bench: &Bench, cells: &[&Cell]) -> Result<()>;

    /// The sizes of a recipe in caches, if it defines them.
    fn bytes(&self, _recipe: &str) -> CacheBytes {
        CacheBytes::default()
    }
}

/// A window of text, and the model that reads it.
#[derive(Clone, Copy)]
pub struct Text<'a> {
    pub model: &'a dyn Model<f32>,
    pub ids: &'a [u32],
}

/// One window, and what its cells are run with.
pub struct Bench<'a> {
    /// The window's name.
    pub window: &'a str,
    /// The data to read there; none if the window is drawn.
    pub text: Option<Text<'a>>,
    /// Bytes of text behind its first token; `None` if a token is a byte.
    pub bytes: Option<usize>,
    /// The folder of the model, if there is one.
    pub folder: Option<&'a Path>,
    /// Loads the model's f64 twin, which only the reference's own check needs.
    pub load_f64: &'a (dyn Fn() -> Result<Box<dyn Model<f64>>> + Sync),
    /// Loads the model, with weights as `numerics` leave them.
    pub load_by: &'a (dyn Fn(&mut dyn Numerics<f32>) -> Result<Box<dyn Model<f32>>> + Sync),
    /// Once it is true, cells not yet begun are left out.
    pub stop: &'a AtomicBool,
    /// Called with each cell's records as it finishes, from any thread.
    pub done: &'a (dyn Fn(&Cell, Vec<Record>) -> Result<()> + Sync),
}

impl Bench<'_> {
    /// Measures cells side by side; `measure` is given a blank record of the cell.
    ///
    /// # Errors
    /// Those of `measure`, and [`Error::Interrupted`].
    pub fn each(&self, cells: &[&Cell], measure: impl Fn(&Cell, Record) -> Result<Vec<Record>> + Sync) -> Result<()> {
        cells.par_iter().try_for_each(|cell| {
            if self.stop.load(Ordering::Relaxed) {
                return Err(Error::Interrupted);
            }
            let blank = Record::blank(&cell.id, &cell.recipe, cell.phase, self.window);
            (self.done)(cell, measure(cell, blank)?)
        })
    }
}

/// Whether a pattern matches one of these sites.
///
/// # Errors
/// It matches none; the message names the nearest.
pub fn check_among(at: &str, sites: impl Iterator<Item = String>) -> Result<(), String> {
    let sites: Vec<String> = sites.collect();
    match sites.iter().any(|site| matches(at, site)) {
        true => Ok(()),
        false => Err(matches_nothing("site", at, sites.iter().map(String::as_str))),
    }
}

/// What is kept of a cell's recipe. A cell of a recipe that is not kept is an error: without records, it could not fail.
///
/// # Errors
/// There is no such recipe.
pub fn of_recipe<'m, T>(kept: &'m HashMap<&str, T>, cell: &Cell) -> Result<&'m T> {
    kept.get(cell.recipe.as_str())
        .ok_or_else(|| Error::Usage(format!("there is no recipe '{}'", cell.recipe)))
}

/// A [`Study`] as the keys of an experiment file.
pub trait Body: Study + Clone + Serialize + DeserializeOwned + JsonSchema + 'static {
    /// `kind` in a file.
    const NAME: &'static str;
    /// What recipes are tried on.
    const DOC: &'static str;
}

/// An entry of the list of studies.
pub struct Kind {
    pub name: &'static str,
    pub doc: &'static str,
    /// Reads the keys of a file except those of its head.
    pub parse: fn(&ExperimentFile) -> Result<Box<dyn Study>>,
    /// Reads the keys of a stored run.
    pub read: fn(&Map<String, Value>) -> Result<Box<dyn Study>, serde_json::Error>,
    pub schema: fn(&mut SchemaGenerator) -> Schema,
}

impl Kind {
    /// The kind whose experiments are read as `B`.
    pub const fn new<B: Body>() -> Self {
        Self {
            name: B::NAME,
            doc: B::DOC,
            parse: |file| Ok(Box::new(file.body::<B>()?)),
            read: |body| Ok(Box::new(serde_json::from_value::<B>(Value::Object(body.clone()))?)),
            schema: B::json_schema,
        }
    }
}

/// The keys of a study in a stored run.
pub fn body_of(study: &impl Serialize) -> Map<String, Value> {
    match serde_json::to_value(study) {
        Ok(Value::Object(keys)) => keys,
        _ => unreachable!("a study is a table of plain data"),
    }
}
