//! The interface of a kind of experiment to the rest of the program.

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

/// An experiment of one kind, as its file says it: a source gives windows, something exact is computed once for a window, each
/// recipe computes it in its own way, and records tell how far apart they are. What reports show of them is its [`Show`].
pub trait Study: Keys + Show + Send + Sync {
    /// Checks the study before any data is read.
    ///
    /// # Errors
    /// If the study has a mistake; the first one, with its place.
    fn check(&self) -> Result<(), Mistake>;

    /// Windows, phases, and the recipes that run in them.
    fn plan(&self) -> Plan;

    /// Names and documents of the recipes, in the experiment's order.
    fn recipes(&self) -> Vec<RecipeInfo>;

    /// Checks that a gate may look at `at`, a pattern with layer 0 for all layers: [`check_among`] the sites that records have.
    ///
    /// # Errors
    /// If no record has such a site.
    fn check_site(&self, at: &str) -> Result<(), String>;

    /// Checks that a gate looks at what is measured in this model, of all those whose sites [`check_site`](Self::check_site) knows.
    ///
    /// # Errors
    /// If the model has no such place, or the metric is not measured there.
    fn check_measured(&self, _rule: &Rule, _metric: &Metric, _config: &dyn Config) -> Result<(), Mistake> {
        Ok(())
    }

    /// Checks gates before anything is run. Without the model's `config`, layers and metrics of its sites are not known.
    ///
    /// # Errors
    /// The first mistake, with its place.
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

    /// Adds estimates of what is in memory at once, where so many cells are measured side by side.
    fn memory(&self, parts: &mut Parts, config: Option<&dyn Config>, at_once: f64);

    /// Asks the same question on half as much, if that can be, and returns the key that says so.
    fn halve(&mut self) -> Option<String> {
        None
    }

    /// Finds formats, sites and kernels of all recipes, and that they fit together.
    ///
    /// # Errors
    /// If something does not exist or does not fit; the first mistake, with its place.
    fn ready<'a>(&'a self, seed: u64, config: Option<&dyn Config>) -> Result<Box<dyn ReadyRecipes + 'a>, Mistake>;

    /// The experiment that its gates are calibrated on: `draws` times as much data of the same distribution, in some phases, and
    /// recipes that stand for the wanted ones.
    ///
    /// # Errors
    /// If its gates are not calibrated, with the reason.
    fn null(&self, _draws: usize, _phases: &[Phase], _wanted: &[Wanted]) -> Result<Null, String> {
        Err("nothing is drawn for gates of this kind".into())
    }

    /// The study with its recipes, if its file names them by patterns of what is on this machine.
    ///
    /// # Errors
    /// If a pattern matches nothing, or what it may match cannot be read.
    fn resolve(&self, _file: &ExperimentFile) -> Result<Option<Box<dyn Study>>> {
        Ok(None)
    }

    /// Cells of the plan that may be selected; by default all.
    ///
    /// # Errors
    /// If the options that select cells have a mistake.
    fn selectable(&self, plan: &Plan) -> Result<Vec<Cell>, Mistake> {
        Ok(plan.cells())
    }

    /// True if recipes run on a GPU.
    fn uses_gpu(&self) -> bool {
        false
    }
}

/// A run that has been planned and has not yet entered its folder.
pub struct Planned<'a> {
    pub manifest: &'a mut Manifest,
    /// The selected cells, in the order of the plan.
    pub cells: &'a mut Vec<Cell>,
    /// The folder of a run that other processes may have begun.
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

/// Recipes made ready to run. A study whose cells run on something that has to be opened, shared or counted first overrides more of
/// these steps than [`run`](Self::run).
pub trait ReadyRecipes {
    /// Checks what the selected cells need, and adds to the manifest what results depend on.
    ///
    /// # Errors
    /// If something is missing, with its place in the file.
    fn prepare(&mut self, _file: &ExperimentFile, _cells: &[Cell], _manifest: &mut Manifest) -> Result<()> {
        Ok(())
    }

    /// Opens what the cells run on, and adds it to the manifest. An exit code ends the run here.
    ///
    /// # Errors
    /// If it cannot be opened.
    fn open(&mut self, _planned: Planned) -> Result<Option<Exit>> {
        Ok(None)
    }

    /// The processes that share the cells; none if this one runs them.
    ///
    /// # Errors
    /// If the user asks for something that the machine does not have.
    fn processes(&self, _manifest: &Manifest, _cells: &[Cell]) -> Result<Option<Processes>> {
        Ok(None)
    }

    /// Runs cells, which are in the order of the plan; [`Lab::each_window`] runs them window by window.
    ///
    /// # Errors
    /// If the reference or a kernel in its place fails, and those of [`Bench::each`].
    fn run(&self, lab: &Lab, cells: &[&Cell]) -> Result<()>;

    /// Checks that what the run keeps next to the records of cells is there, too.
    ///
    /// # Errors
    /// [`Error::Incomplete`] if something is missing.
    fn check_kept(&self, _folder: &Folder, _manifest: &Manifest, _cells: &[&Cell]) -> Result<()> {
        Ok(())
    }

    /// The exit code of a process that has run its share of the cells while others are missing.
    ///
    /// # Errors
    /// If what the run keeps cannot be read.
    fn conclude_share(&self, _folder: &Folder, _manifest: &Manifest, _share: &[&Cell]) -> Result<Exit> {
        Ok(Exit::Pass)
    }

    /// Prints what the study adds to the verdicts, and gives the exit code.
    ///
    /// # Errors
    /// If what the run keeps cannot be read, or a file cannot be written.
    fn conclude(&self, measured: Measured) -> Result<Exit> {
        Ok(measured.run.outcome().exit())
    }

    /// The sizes of a recipe in caches, if it defines them.
    fn bytes(&self, _recipe: &str) -> CacheBytes {
        CacheBytes::default()
    }
}

/// Recipes that do nothing but measure cells, window by window.
struct ByWindow<'a, F> {
    measure: F,
    /// True if kernels stand in for operations of a model.
    uses_gpu: bool,
    /// Sizes of recipes in caches.
    bytes: HashMap<&'a str, CacheBytes>,
}

/// Recipes whose cells `measure` measures, a window at a time; `bytes` are their sizes in caches.
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

/// Adds to a manifest the digests of files whose operation is used, and of the judgements of these operations.
pub fn add_digests(manifest: &mut Manifest, sources: &[KernelFile], used: impl Fn(&str) -> bool) {
    for source in sources.iter().filter(|source| used(&source.op)) {
        let op = &source.op;
        let kernels = (format!("kernels/{op}.cu"), source.digest().to_hex().to_string());
        let judgement = provenance::judgement(op);
        let judgement = judgement.map(|digest| (format!("judgement of {op}"), digest.to_string()));
        manifest.data.extend([kernels].into_iter().chain(judgement));
    }
}

/// The windows, the model and the listeners of a run.
pub struct Lab<'a> {
    pub plan: &'a Plan,
    /// The model and its windows of text, which are the last of the plan.
    pub inputs: &'a Inputs,
    /// Once it is true, cells not yet begun are left out.
    pub stop: &'a AtomicBool,
    /// Called with each cell's records as it finishes, from any thread.
    pub done: &'a (dyn Fn(&Cell, Vec<Record>) -> Result<()> + Sync),
    /// Called after each window; true ends the run.
    pub decided: &'a dyn Fn(usize) -> Result<bool>,
    pub bar: ProgressBar,
    /// The folder of the run, its share and the cells of that, if the run has a folder.
    pub share: Option<Share<'a>>,
    /// The rates that times are shares of.
    pub ceilings: Option<Ceilings>,
}

/// The part of a run that this process works on.
#[derive(Clone, Copy)]
pub struct Share<'a> {
    pub folder: &'a Folder,
    pub partition: Option<&'a Partition>,
    /// Its cells, finished ones included.
    pub cells: &'a [&'a Cell],
}

impl<'a> Lab<'a> {
    /// A lab without a folder, in which all windows are run.
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

    /// Runs cells window by window. The model is loaded if any of them reads text.
    ///
    /// # Errors
    /// If `run` fails, or the model cannot be loaded.
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
                // On a thread of the pool, which the many small pieces of a token need not wake then.
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

/// One window, and what its cells are run with.
pub struct Bench<'a> {
    /// The window's name.
    pub window: &'a str,
    /// The data to read there; none if the window is drawn.
    pub text: Option<Text<'a>>,
    /// Bytes of text behind its first token; `None` if a token is a byte.
    pub bytes: Option<usize>,
    /// The files of the model.
    pub inputs: &'a Inputs,
    stop: &'a AtomicBool,
    done: &'a (dyn Fn(&Cell, Vec<Record>) -> Result<()> + Sync),
}

impl Bench<'_> {
    /// Measures cells side by side; `measure` is given a blank record of the cell.
    ///
    /// # Errors
    /// If `measure` fails, or with [`Error::Interrupted`] after a signal.
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

/// Checks that a pattern matches one of these sites.
///
/// # Errors
/// If it matches none; the message names the nearest.
pub fn check_among(at: &str, sites: impl Iterator<Item = String>) -> Result<(), String> {
    let sites: Vec<String> = sites.collect();
    match sites.iter().any(|site| matches(at, site)) {
        true => Ok(()),
        false => Err(matches_nothing("site", at, sites.iter().map(String::as_str))),
    }
}

/// The entry of a cell's recipe. A cell without an entry is an error: without records, it could not fail.
///
/// # Errors
/// If there is no such recipe.
pub fn of_recipe<'m, T>(kept: &'m HashMap<&str, T>, cell: &Cell) -> Result<&'m T> {
    kept.get(cell.recipe.as_str())
        .ok_or_else(|| Error::Usage(format!("there is no recipe '{}'", cell.recipe)))
}

/// A [`Study`] as the keys of an experiment file. Its doc comment says what its recipes are tried on.
pub trait Body: Study + Clone + Serialize + DeserializeOwned + JsonSchema + 'static {
    /// `kind` in a file.
    const NAME: &'static str;
}

/// An entry of the list of studies.
pub struct Kind {
    pub name: &'static str,
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
            parse: |file| Ok(Box::new(file.body::<B>()?)),
            read: |body| Ok(Box::new(serde_json::from_value::<B>(Value::Object(body.clone()))?)),
            schema: B::json_schema,
        }
    }
}

/// The keys of a study, as a stored run has them, and a copy of the study.
pub trait Keys {
    fn body(&self) -> Map<String, Value>;

    fn boxed(&self) -> Box<dyn Study>;
}

impl<T: Body> Keys for T {
    fn boxed(&self) -> Box<dyn Study> {
        Box::new(self.clone())
    }

    fn body(&self) -> Map<String, Value> {
        match serde_json::to_value(self) {
            Ok(Value::Object(keys)) => keys,
            _ => unreachable!("a study is a table of plain data"),
        }
    }
}
