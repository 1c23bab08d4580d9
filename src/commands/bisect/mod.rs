//! `ulplab bisect`: finds the source of a failure.
//!
//! Given a right and a wrong recipe, it searches for the places (sites in layers) that make a gate fail. Given two runs, it names
//! the first metric values that differ. Given tensors that another program dumped, it prints the error that each site adds.

mod bench;
pub mod capsule;
mod dump;
mod explain;
mod mix;
mod output;
mod runs;
pub mod search;

use std::cmp::Ordering;
use std::path::{Path, PathBuf};

use reference::paths::Model;

use super::sweep::{self, Prepared, Question, SweepArgs};
use crate::experiment::file::ExperimentFile;
use crate::experiment::{Experiment, Mistake, Rule};
use crate::progress::{self, Lines};
use crate::run::Run;
use crate::run::folder::Folder;
use crate::run::plan::REFERENCE;
use crate::studies::limits::{Bytes, Parts, available};
use crate::studies::model::{ModelStudy, Recipe};
use crate::{json, studies};
use bench::Bench;
use mix::Mix;
pub(super) use output::{experiment_of, recipe as as_toml};
use ulplab_core::atomic::{check_writable, write_text};
use ulplab_core::error::{Error, Exit, Result, did_you_mean};

/// Find where a failure comes from: which layers, sites and formats make a gate fail, or where two runs or a dump diverge.
///
/// EXPERIMENT, or the folder of a RUN: compares a recipe that fails its gates with a right recipe. Prints a smallest set of
/// places (sites in layers) whose wrong rounding alone makes a gate fail, and a recipe that reproduces the failure. Also tests
/// whether the gates hold if only these places are right. Layers that were computed for one of the two recipes are reused.
///
/// Two RUNs of one experiment, e.g. of two commits or devices: prints the first site, in the order of the model, whose metrics
/// differ.
///
/// EXPERIMENT and --dump FILE: judges tensors of another program that read the same window. FILE is in safetensors, with the
/// tensor names of `ulplab list sites` (`layers.3.output`). The reference computes each site from the dump's tensors before that
/// site, so the error of a site is its own.
///
/// Exit code: 100 if something fails or differs; 0 if nothing does; 4 if the search ended early, or no gate judges a dump; 2 if
/// the recipe fails no gate.
#[derive(Debug, clap::Args)]
pub struct BisectArgs {
    /// An experiment file, or the folder of a run; or the folders of two runs.
    #[arg(required_unless_present = "replay", num_args = 1..=2, value_name = "EXPERIMENT|RUN")]
    pub of: Vec<PathBuf>,
    /// The recipe that fails [default: the first that fails in the run; for an experiment, the only recipe with gates].
    #[arg(long, value_name = "NAME")]
    pub recipe: Option<String>,
    /// The recipe that is right.
    #[arg(long, value_name = "NAME", default_value = REFERENCE)]
    pub right: String,
    /// The finest level of the search. Channels and tokens are only searched if the failure comes from one format at one place.
    #[arg(long, value_enum, default_value_t = Level::Formats)]
    pub to: Level,
    /// Maximum number of cells to run: recipes × phases × windows. A search that needs more cells prints the result so far. The
    /// cells of both recipes, and of the ranking of places, are always run.
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub cells: usize,
    /// Write a capsule: a safetensors file with the tensors at the places found, before and after rounding.
    #[arg(long, value_name = "FILE", value_parser = crate::output::file_name())]
    pub capsule: Option<PathBuf>,
    /// Round the tensors of a capsule again, and print whether the failure still occurs. Needs only this file.
    #[arg(long, value_name = "CAPSULE", conflicts_with_all = ["of", "recipe", "capsule", "output", "dump", "gates", "overrides", "rules"])]
    pub replay: Option<PathBuf>,
    /// Write an experiment with the recipe that the search found, and the gates that this recipe fails.
    #[arg(short, long, value_name = "FILE", value_parser = crate::output::file_name())]
    pub output: Option<PathBuf>,
    /// Safetensors file of another program that read the window: tensors with the names of sites.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["recipe", "capsule", "output", "rules"])]
    pub dump: Option<PathBuf>,
    /// Name of the window that the dump's program read [default: the first window].
    #[arg(long, value_name = "NAME", requires = "dump")]
    pub window: Option<String>,
    /// Require a bound at the sites of a dump, e.g. 'layers.*.output:relative_l2<=1e-3'; repeatable.
    #[arg(long = "gate", value_name = "[PATTERN:]METRIC<=BOUND", requires = "dump")]
    pub gates: Vec<String>,
    /// Override a key of the experiment, e.g. --set tokens=128.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub overrides: Vec<String>,
    /// Use the gates of this file instead of the experiment's own. The file is an experiment, or contains only `[[gate]]` tables.
    #[arg(long, value_name = "FILE")]
    pub rules: Option<PathBuf>,
    /// Print one JSON object instead of the text.
    #[arg(long)]
    pub json: bool,
    /// Show no progress.
    #[arg(long)]
    pub no_progress: bool,
    /// Refuse a search that needs more memory than this, e.g. 16G [default: the free memory of the machine].
    #[arg(long, value_name = "SIZE")]
    pub max_memory: Option<Bytes>,
    /// Folder of the data sets [default: $ULPLAB_DATASETS, or datasets/ here or in a folder above].
    #[arg(long, value_name = "DIR")]
    pub datasets: Option<PathBuf>,
}

/// Orders errors by size. NaN counts as infinity.
fn by_size(a: f64, b: f64) -> Ordering {
    let [a, b] = [a, b].map(|error| if error.is_nan() { f64::INFINITY } else { error });
    a.total_cmp(&b)
}

/// Granularity at which a bisection localizes a failure, from coarse to fine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Level {
    Layers,
    Sites,
    Formats,
    Channels,
    Tokens,
}

pub fn run(args: &BisectArgs) -> Result<Exit> {
    if let Some(file) = &args.replay {
        return capsule::replay(file, args.json);
    }
    match &args.of[..] {
        [base, new] => runs::run(base, new, args.json),
        [of] => of_experiment(args, of),
        _ => Err(Error::Usage("expected an experiment, or one or two runs".into())),
    }
}

/// Searches for the culprits (places that cause the failure) in an experiment. `of` is the experiment's file or the folder of a
/// run.
fn of_experiment(args: &BisectArgs, of: &Path) -> Result<Exit> {
    let message = "--capsule needs --to sites, or further: layers have no tensor of their own";
    Error::refuse(args.capsule.is_some() && args.to < Level::Sites, message)?;
    let written = args.capsule.iter().chain(&args.output);
    written.map(PathBuf::as_path).try_for_each(check_writable)?;
    let mut sweep = SweepArgs {
        experiment: of.to_path_buf(),
        overrides: args.overrides.clone(),
        rules: args.rules.clone(),
        max_memory: args.max_memory,
        datasets: args.datasets.clone(),
        ..SweepArgs::default()
    };
    let mut failing = None;
    let question = match of.is_dir() {
        false => sweep::read(&sweep)?,
        true => {
            let (folder, manifest) = Folder::open(of)?;
            model_study(&manifest.experiment, "bisect")?;
            sweep.datasets = sweep.datasets.or_else(|| manifest.invocation.datasets.clone());
            let mut stored = manifest.experiment.clone();
            stored.head.gates = stored.head.gates.into_iter().map(Rule::stated).collect();
            let text = toml::to_string(&stored).map_err(|error| Error::Usage(error.to_string()))?;
            sweep.experiment = manifest.invocation.experiment.clone();
            let file = ExperimentFile::new(of.join("run.json"), text, &args.overrides)?;
            if args.recipe.is_none() && args.dump.is_none() {
                let run = Run::load(&folder, manifest)?;
                let mut verdicts = run.verdicts.iter();
                let failed = verdicts.find(|verdict| verdict.fails() && !verdict.rule.control);
                failing = failed.map(|verdict| verdict.recipe.clone());
                let message = format_args!(
                    "{}: no gate fails in this run; expected a run that fails, or --recipe NAME --rules FILE with a gate that it \
                     breaks",
                    of.display()
                );
                Error::refuse(failing.is_none() && args.rules.is_none(), message)?;
            }
            sweep::read_file(&sweep, file)?
        }
    };
    let study = model_study(&question.parsed.experiment, "bisect")?;
    let prepared = sweep::prepare(&sweep, &question)?;
    if let Some(file) = &args.dump {
        return dump::run(args, file, &study, &prepared, &*prepared.inputs.open()?.load()?);
    }
    let name = args.recipe.clone().or(failing);
    let name = name.map_or_else(|| only_bound(&question), Ok)?;
    let (right, wrong) = (recipe(&study, &args.right)?, recipe(&study, &name)?);
    let both = format_args!("'{name}' is both the right recipe and the one that fails");
    Error::refuse(right.name == wrong.name, both)?;
    // Use the gates of the run's manifest, not of the file: there, a gate with `flake` (an accepted rate of false alarms) has its
    // computed bound.
    let gates = &prepared.manifest.experiment.gates;
    let rules = gates.iter().filter(|rule| !rule.control && rule.binds(&name));
    let rules: Vec<&Rule> = rules.collect();
    let none = format_args!("no gate binds recipe '{name}', so it fails none");
    Error::refuse(rules.is_empty(), none)?;
    let model: Box<dyn Model<f32>> = prepared.inputs.open()?.load()?;
    check_memory(args, &study, &*model)?;
    let mix = Mix::new(right, wrong, model.config(), question.parsed.experiment.seed).map_err(Mistake::usage)?;
    let found = search(args, &study, &prepared, &rules, &mix, &*model)?;
    let experiment = &question.parsed.experiment;
    if let Some(file) = &args.capsule {
        capsule::write(file, &found, &mix, model.config(), experiment)?;
    }
    if let Some(file) = &args.output {
        let text = output::experiment(experiment, &mix.recipe(&found.wrong), &rules, &found)?;
        write_text(file, &text)?;
    }
    json::print_or(args.json, &found, || output::text(&found, &mix, args, &experiment.name))?;
    Ok(match found.whole() {
        true => Exit::GateFailed,
        false => Exit::NotJudged,
    })
}

fn search(
    args: &BisectArgs,
    study: &ModelStudy,
    prepared: &Prepared,
    rules: &[&Rule],
    mix: &Mix,
    model: &dyn Model<f32>,
) -> Result<explain::Explanation> {
    let names = study.windows.iter().map(crate::experiment::Window::name);
    let windows = names.zip(prepared.inputs.texts.iter().map(|text| text.ids.clone()));
    let windows: Vec<(String, Vec<u32>)> = windows.collect();
    let bar = progress::bar(None, "{spinner} {pos} cells  {elapsed}  {msg}", args.no_progress);
    if !bar.is_hidden() {
        bar.enable_steady_tick(std::time::Duration::from_millis(100));
    }
    let _lines = Lines::new(&bar, "cells", args.no_progress);
    let show = |cells: usize, what: &str| {
        bar.set_position(cells as u64);
        bar.set_message(what.to_string());
    };
    let mut bench = Bench::new(model, mix, &windows, &show)?;
    let failed = bench.wrong(rules)?;
    bench.right()?;
    // Reserve one cell for the last run, which captures the tensors at the places found.
    bench.most = args.cells.saturating_sub(1);
    let found = explain::explain(&mut bench, &failed, args.to);
    bar.finish_and_clear();
    found
}

/// Returns the study of an experiment of kind `model`; an error for other kinds, which `command` does not support.
pub(super) fn model_study(experiment: &Experiment, command: &str) -> Result<ModelStudy> {
    let (name, kind) = (&experiment.name, &experiment.kind);
    let other = || Error::Usage(format!("'{name}' is of kind '{kind}': {command} searches in models"));
    studies::read_as(experiment)?.ok_or_else(other)
}

/// Returns the only recipe to which gates apply, or an error if there are several or none.
fn only_bound(question: &Question) -> Result<String> {
    let experiment = &question.parsed.experiment;
    let rules = || experiment.gates.iter().filter(|rule| !rule.control);
    let names = experiment.recipes().into_iter().map(|(name, _)| name);
    let bound: Vec<&str> = names.filter(|name| rules().any(|rule| rule.binds(name))).collect();
    match bound[..] {
        [name] => Ok(name.into()),
        [] => Err(Error::Usage(format!("no gate of '{}' binds a recipe", experiment.name))),
        _ => {
            let (name, bound) = (&experiment.name, bound.join(", "));
            let hint = "name the one that fails, or the folder of a run";
            Err(Error::Usage(format!(
                "--recipe is missing: gates of '{name}' bind {bound}; {hint}"
            )))
        }
    }
}

/// Returns the recipe called `name`. The reference is a recipe that rounds nothing.
fn recipe(study: &ModelStudy, name: &str) -> Result<Recipe> {
    if name == REFERENCE {
        return Ok(Recipe {
            name: name.into(),
            ..Recipe::default()
        });
    }
    let found = study.recipes.iter().find(|recipe| recipe.name == name);
    found.cloned().ok_or_else(|| {
        let hint = did_you_mean(name, study.recipes.iter().map(|recipe| recipe.name.as_str()));
        Error::Usage(format!("there is no recipe '{name}'{hint}"))
    })
}

/// Refuses a search that does not fit into memory. A search keeps all windows, with the layer outputs of both recipes.
fn check_memory(args: &BisectArgs, study: &ModelStudy, model: &dyn Model<f32>) -> Result<()> {
    let Some(limit) = args.max_memory.or_else(available) else {
        return Ok(());
    };
    let mut parts = Parts::default();
    parts.weights(model.config());
    let (windows, tokens) = (study.windows.len(), study.tokens);
    let each = rayon::current_num_threads() as f64 / windows as f64 + 1.0;
    parts.of_trace(model.config(), tokens * windows, each);
    let needed = Bytes(parts.total());
    let message = format_args!(
        "the search needs about {needed} of memory for {windows} windows of {tokens} tokens, but only {limit} is allowed; --set \
         tokens=N makes it smaller, --max-memory sets the limit"
    );
    Error::refuse(needed > limit, message)
}
