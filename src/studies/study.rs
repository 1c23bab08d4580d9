//! Interface between a kind of experiment and the rest of the program.

use std::any::TypeId;
use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use indicatif::ProgressBar;
use rayon::prelude::*;
use reference::paths::{Config, Model};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::inputs::Inputs;
use super::limits::Parts;
use super::null::{Null, Wanted};
use super::processes::Processes;
use crate::backend::cuda::shipped::folder;
use crate::backend::cuda::{Device, Source as KernelFile};
use crate::experiment::file::ExperimentFile;
use crate::experiment::{Mistake, Rule};
use crate::gate::{self, GateContext};
use crate::json;
use crate::ops::COMPOSITIONS;
use crate::provenance;
use crate::report::Show;
use crate::run::ceilings::Ceilings;
use crate::run::folder::Folder;
use crate::run::partition::Partition;
use crate::run::plan::{Cell, Plan};
use crate::run::{CacheBytes, Manifest, RecipeInfo, Run};
use ulplab_core::error::{Error, Exit, Result};
use ulplab_core::metrics::Metric;
use ulplab_core::pattern::{matches, matches_nothing};
use ulplab_core::record::{Phase, Record};

/// An experiment of one kind, as its file describes it. For each window of data, an exact reference is computed once, and each
/// recipe computes the same result in its own way. Records measure the differences. [`Show`] defines the content of reports.
pub trait Study: Keys + Show + Send + Sync {
    /// Checks the study before any data is read.
    ///
    /// # Errors
    /// Returns an error if the study has a mistake. The first mistake is returned, with its place in the file.
    fn check(&self) -> Result<(), Mistake>;

    /// Returns the windows, the phases, and the recipes that run in them.
    fn plan(&self) -> Plan;

    /// Returns name and description of each recipe, in the experiment's order.
    fn recipes(&self) -> Vec<RecipeInfo> {
        infos(&self.body())
    }

    /// Checks that `at`, the pattern of a gate, matches a site in the records of this study; see [`check_among`]. Layer 0 stands
    /// for all layers.
    ///
    /// # Errors
    /// Returns an error if no record has such a site.
    fn check_site(&self, at: &str) -> Result<(), String>;

    /// Checks that a gate's site and metric are measured in this model. ([`check_site`](Self::check_site) does not check this:
    /// it accepts the sites of all models.)
    ///
    /// # Errors
    /// Returns an error if the model has no such site, or the metric is not measured at the site.
    fn check_measured(&self, _rule: &Rule, _metric: &Metric, _config: &dyn Config) -> Result<(), Mistake> {
        Ok(())
    }

    /// Checks gates before anything is run. Without the model's `config`, the layers and metrics of the model's sites are not
    /// checked.
    ///
    /// # Errors
    /// Returns an error if a gate has a mistake. The first mistake is returned, with its place in the file.
    fn check_gates(&self, gates: &[Rule], plan: &Plan, config: Option<&dyn Config>) -> Result<(), Mistake> {
        let measured =
            |gate: &Rule, metric: &Metric| config.map_or(Ok(()), |config| self.check_measured(gate, metric, config));
        let experiment = GateContext {
            plan,
            windows: self.reading().windows,
            site: &|at| self.check_site(at),
            metric: &measured,
        };
        gate::check(gates, &experiment)
    }

    /// Adds estimates of the memory in use while `at_once` cells are measured in parallel.
    fn memory(&self, parts: &mut Parts, config: Option<&dyn Config>, at_once: f64);

    /// Resolves the formats, sites and kernels of all recipes, and checks that the parts of each recipe fit together.
    ///
    /// # Errors
    /// Returns an error if a format, site or kernel does not exist, or if the recipe's parts do not fit together. The first
    /// mistake is returned, with its place in the file.
    fn ready<'a>(&'a self, seed: u64, config: Option<&dyn Config>) -> Result<Box<dyn ReadyRecipes + 'a>, Mistake>;

    /// Returns the null experiment, on which the study's gates are calibrated: `draws` times as much data of the same
    /// distribution, in these phases, with a recipe for each entry of `wanted`.
    ///
    /// # Errors
    /// Returns the reason if gates of this kind are not calibrated.
    fn null(&self, _draws: usize, _phases: &[Phase], _wanted: &[Wanted]) -> Result<Null, String> {
        Err("nothing is drawn for gates of this kind".into())
    }

    /// If the experiment file selects recipes by patterns of kernel names, returns a copy of the study with the matching kernels;
    /// else `None`.
    ///
    /// # Errors
    /// Returns an error if a pattern matches nothing, or the kernels cannot be read.
    fn resolve(&self, _file: &ExperimentFile) -> Result<Option<Box<dyn Study>>> {
        Ok(None)
    }

    /// Returns the cells of the plan that the user's filters may select. The study's own options may remove some; by default, all
    /// cells are returned.
    ///
    /// # Errors
    /// Returns an error if an option that selects cells has a mistake.
    fn selectable(&self, plan: &Plan) -> Result<Vec<Cell>, Mistake> {
        Ok(plan.cells())
    }

    /// True if recipes run kernels on a GPU.
    fn uses_gpu(&self) -> bool {
        false
    }
}

/// A run that is planned, but whose folder is not created or opened yet.
pub struct Planned<'a> {
    pub manifest: &'a mut Manifest,
    /// The selected cells, in the order of the plan.
    pub cells: &'a mut Vec<Cell>,
    /// Folder of the run if this process runs only a partition of it. Another process may already have created the folder.
    pub shared: Option<&'a Path>,
    /// True if results are printed as JSON Lines.
    pub json: bool,
}

/// A run whose cells are all measured.
pub struct Measured<'a> {
    pub folder: &'a Folder,
    pub run: &'a Run,
    pub cells: &'a [&'a Cell],
    /// True if results are printed as JSON Lines.
    pub json: bool,
}

/// Recipes that are ready to run. Most studies implement only [`run`](Self::run). A study overrides further steps if, for
/// example, its cells need a device that must be opened, or are shared among processes.
pub trait ReadyRecipes {
    /// Checks that the requirements of the selected cells are met, and adds to the manifest the inputs that results depend on.
    ///
    /// # Errors
    /// Returns an error if a requirement is not met. The error has the place of the mistake in the file.
    fn prepare(&mut self, _file: &ExperimentFile, _cells: &[Cell], _manifest: &mut Manifest) -> Result<()> {
        Ok(())
    }

    /// Opens the device that the cells run on, and adds it to the manifest. If an exit code is returned, the run ends here.
    ///
    /// # Errors
    /// Returns an error if the device cannot be opened.
    fn open(&mut self, _planned: Planned) -> Result<Option<Exit>> {
        Ok(None)
    }

    /// Returns the child processes that share the cells; `None` if this process runs all cells.
    ///
    /// # Errors
    /// Returns an error if the user requests a device that the machine does not have.
    fn processes(&self, _manifest: &Manifest, _cells: &[Cell]) -> Result<Option<Processes>> {
        Ok(None)
    }

    /// Runs the cells, which are in the order of the plan. [`Lab::each_window`] runs cells window by window.
    ///
    /// # Errors
    /// Returns an error if the reference, or a kernel that replaces it, fails. Also returns the errors of [`Bench::each`].
    fn run(&self, lab: &Lab, cells: &[&Cell]) -> Result<()>;

    /// Checks that the run has written all of its files other than records, e.g. results of planted faults.
    ///
    /// # Errors
    /// [`Error::Incomplete`] if a file is missing.
    fn check_kept(&self, _folder: &Folder, _manifest: &Manifest, _cells: &[&Cell]) -> Result<()> {
        Ok(())
    }

    /// Returns the exit code of a process that has run its share of the cells while cells of other shares are missing.
    ///
    /// # Errors
    /// Returns an error if the files that the run writes cannot be read.
    fn conclude_share(&self, _folder: &Folder, _manifest: &Manifest, _share: &[&Cell]) -> Result<Exit> {
        Ok(Exit::Pass)
    }

    /// Prints results that only this kind of study has, in addition to the verdicts, and returns the exit code.
    ///
    /// # Errors
    /// Returns an error if the files that the run writes cannot be read, or a file cannot be written.
    fn conclude(&self, measured: Measured) -> Result<Exit> {
        Ok(measured.run.outcome().exit())
    }

    /// Returns the size of a recipe's entries in caches, if the recipe defines it.
    fn bytes(&self, _recipe: &str) -> CacheBytes {
        CacheBytes::default()
    }
}

/// [`ReadyRecipes`] of a study that needs no step other than measuring cells, window by window.
struct ByWindow<'a, F> {
    measure: F,
    /// True if kernels replace operations of a model.
    uses_gpu: bool,
    /// Size of each recipe's entries in caches, by recipe name.
    bytes: HashMap<&'a str, CacheBytes>,
}

/// Makes the [`ReadyRecipes`] of a study whose cells `measure` measures, one window at a time. `bytes` has the sizes of the
/// recipes' entries in caches.
pub fn by_window<'a>(
    study: &dyn Study,
    bytes: HashMap<&'a str, CacheBytes>,
    measure: impl Fn(&Bench, &[&Cell]) -> Result<()> + Send + Sync + 'a,
) -> Box<dyn ReadyRecipes + 'a> {
    let uses_gpu = study.uses_gpu();
    Box::new(ByWindow {
        measure,
        uses_gpu,
        bytes,
    })
}

impl<F: Fn(&Bench, &[&Cell]) -> Result<()> + Send + Sync> ReadyRecipes for ByWindow<'_, F> {
    fn prepare(&mut self, _file: &ExperimentFile, _cells: &[Cell], manifest: &mut Manifest) -> Result<()> {
        if self.uses_gpu {
            add_digests(manifest, &KernelFile::read_all(&folder()?, &COMPOSITIONS)?, |_| true);
        }
        Ok(())
    }

    fn open(&mut self, planned: Planned) -> Result<Option<Exit>> {
        if self.uses_gpu {
            planned.manifest.device = Device::open()?.describe();
        }
        Ok(None)
    }

    fn run(&self, lab: &Lab, cells: &[&Cell]) -> Result<()> {
        lab.each_window(cells, &self.measure)
    }

    fn bytes(&self, recipe: &str) -> CacheBytes {
        self.bytes.get(recipe).copied().unwrap_or_default()
    }
}

/// Adds digests to a manifest for each operation for which `used` is true: of its kernel file, and of the code that checks its
/// outputs.
pub fn add_digests(manifest: &mut Manifest, sources: &[KernelFile], used: impl Fn(&str) -> bool) {
    for source in sources.iter().filter(|source| used(&source.op)) {
        let op = &source.op;
        let kernels = (format!("kernels/{op}.cu"), source.digest().to_hex().to_string());
        let judgement = provenance::judgement(op);
        let judgement = judgement.map(|digest| (format!("judgement of {op}"), digest.to_string()));
        manifest.data.extend([kernels].into_iter().chain(judgement));
    }
}

/// The windows, the model and the callbacks of a run.
pub struct Lab<'a> {
    pub plan: &'a Plan,
    /// The model and its windows of text. Windows of text are the last windows of the plan.
    pub inputs: &'a Inputs,
    /// Once this flag is true, no further cell is started.
    pub stop: &'a AtomicBool,
    /// Called with each cell's records when the cell finishes, from any thread.
    pub done: &'a (dyn Fn(&Cell, Vec<Record>) -> Result<()> + Sync),
    /// Called with the index of each finished window. If it returns true, all gates are decided, and the run ends.
    pub decided: &'a dyn Fn(usize) -> Result<bool>,
    pub bar: ProgressBar,
    /// The run's folder and this process's share of the cells; `None` if the run has no folder.
    pub share: Option<Share<'a>>,
    /// Hardware rates that measured times are compared with.
    pub ceilings: Option<Ceilings>,
}

/// The part of a run that this process works on.
#[derive(Clone, Copy)]
pub struct Share<'a> {
    pub folder: &'a Folder,
    pub partition: Option<&'a Partition>,
    /// All cells that this process runs, including finished ones.
    pub cells: &'a [&'a Cell],
}

impl<'a> Lab<'a> {
    /// Returns a `Lab` that runs all windows and has no run folder.
    pub fn new(
        plan: &'a Plan,
        inputs: &'a Inputs,
        stop: &'a AtomicBool,
        done: &'a (dyn Fn(&Cell, Vec<Record>) -> Result<()> + Sync),
    ) -> Self {
        Self {
            plan,
            inputs,
            stop,
            done,
            decided: &|_| Ok(false),
            bar: ProgressBar::hidden(),
            share: None,
            ceilings: None,
        }
    }

    /// Runs cells window by window. Loads the model if any cell reads text.
    ///
    /// # Errors
    /// Returns an error if `run` fails, or the model cannot be loaded.
    pub fn each_window(
        &self,
        cells: &[&Cell],
        run: impl Fn(&Bench, &[&Cell]) -> Result<()> + Send + Sync,
    ) -> Result<()> {
        let texts = &self.inputs.texts;
        let drawn = self.plan.windows.len().saturating_sub(texts.len());
        let model = match cells.last() {
            None => return Ok(()),
            Some(last) if last.window >= drawn => self.inputs.load()?,
            Some(_) => None,
        };
        let mut rest = cells;
        for (index, window) in self.plan.windows.iter().enumerate() {
            let here;
            (here, rest) = rest.split_at(rest.partition_point(|cell| cell.window == index));
            self.bar.set_message(window.clone());
            let read = index.checked_sub(drawn).map(|at| &texts[at]);
            let both = model.as_deref().zip(read);
            let bench = Bench {
                window,
                text: both.map(|(model, text)| Text { model, ids: &text.ids }),
                bytes: read.and_then(|text| text.bytes),
                inputs: self.inputs,
                stop: self.stop,
                done: self.done,
            };
            if !here.is_empty() {
                // Run on a thread of the pool. Otherwise each of the many small tasks of a token would first have to wake the
                // pool.
                rayon::scope(|_| run(&bench, here))?;
            }
            if (self.decided)(index)? {
                break;
            }
        }
        Ok(())
    }
}

/// A window of text, and the model that reads it.
#[derive(Clone, Copy)]
pub struct Text<'a> {
    pub model: &'a dyn Model<f32>,
    pub ids: &'a [u32],
}

/// A window, and the data and callbacks to run its cells with.
pub struct Bench<'a> {
    /// Name of the window.
    pub window: &'a str,
    /// The text and the model that reads it; `None` if the window's data is random.
    pub text: Option<Text<'a>>,
    /// Number of bytes of text after the first token; `None` if each token is a byte.
    pub bytes: Option<usize>,
    /// The model's files and the windows of text.
    pub inputs: &'a Inputs,
    stop: &'a AtomicBool,
    done: &'a (dyn Fn(&Cell, Vec<Record>) -> Result<()> + Sync),
}

impl Bench<'_> {
    /// Measures cells in parallel. `measure` gets the entry of the cell's recipe in `recipes`, and a record with the cell's
    /// identity but no measurement. A missing entry is an error, because a cell without records would pass every gate.
    ///
    /// # Errors
    /// Returns an error if `measure` fails or `recipes` has no entry for a cell, and [`Error::Interrupted`] after a signal.
    pub fn each<T: Sync>(
        &self,
        cells: &[&Cell],
        recipes: &HashMap<&str, T>,
        measure: impl Fn(&T, Record) -> Result<Vec<Record>> + Sync,
    ) -> Result<()> {
        cells.par_iter().try_for_each(|cell| {
            if self.stop.load(Ordering::Relaxed) {
                return Err(Error::Interrupted);
            }
            let recipe = recipes.get(cell.recipe.as_str());
            let recipe = recipe.ok_or_else(|| Error::Usage(format!("there is no recipe '{}'", cell.recipe)))?;
            let blank = Record::blank(&cell.id, &cell.recipe, cell.phase, self.window);
            (self.done)(cell, measure(recipe, blank)?)
        })
    }
}

/// Checks that a pattern matches at least one of these sites.
///
/// # Errors
/// Returns an error if the pattern matches none. The message names the nearest site.
pub fn check_among(at: &str, sites: impl Iterator<Item = String>) -> Result<(), String> {
    let sites: Vec<String> = sites.collect();
    match sites.iter().any(|site| matches(at, site)) {
        true => Ok(()),
        false => Err(matches_nothing("site", at, sites.iter().map(String::as_str))),
    }
}

/// A kind of experiment: an entry of the list of studies.
pub struct Kind {
    /// Value of the key `kind` in an experiment file.
    pub name: &'static str,
    /// Identifies the type of the study.
    pub id: fn() -> TypeId,
    /// Parses the study from the keys of a file, except the keys that all kinds share.
    pub parse: fn(&ExperimentFile) -> Result<Box<dyn Study>>,
    /// Reads the study from the keys of a stored run.
    pub read: fn(&Map<String, Value>) -> Result<Box<dyn Study>, serde_json::Error>,
    pub schema: fn(&mut SchemaGenerator) -> Schema,
}

impl Kind {
    /// Returns the kind whose experiments are read as the type `B`. The doc comment of the type becomes its description in the
    /// JSON Schema.
    pub const fn new<B: Study + DeserializeOwned + JsonSchema + 'static>(name: &'static str) -> Self {
        Self {
            name,
            id: TypeId::of::<B>,
            parse: |file| Ok(Box::new(file.body::<B>()?)),
            read: |body| Ok(Box::new(serde_json::from_value::<B>(Value::Object(body.clone()))?)),
            schema: B::json_schema,
        }
    }
}

/// Name, description and `noise` of each `[[recipe]]` among a study's keys.
pub fn infos(body: &Map<String, Value>) -> Vec<RecipeInfo> {
    let recipes = body.get("recipe").cloned().unwrap_or_else(|| Value::Array(Vec::new()));
    serde_json::from_value(recipes).expect("recipes have names and descriptions")
}

/// Converts a study to the keys that a stored run has.
pub trait Keys {
    fn body(&self) -> Map<String, Value>;

    /// Returns the study with another value of one key; `None` if the study cannot have that value.
    fn with(&self, key: &str, value: Value) -> Option<Box<dyn Study>>;
}

impl<T: Study + Serialize + DeserializeOwned + 'static> Keys for T {
    fn with(&self, key: &str, value: Value) -> Option<Box<dyn Study>> {
        let mut body = self.body();
        body.insert(key.into(), value);
        Some(Box::new(serde_json::from_value::<T>(Value::Object(body)).ok()?))
    }

    fn body(&self) -> Map<String, Value> {
        json::keys(self)
    }
}
