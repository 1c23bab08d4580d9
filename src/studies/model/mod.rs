//! Study of a whole model: the model is run with roundings at its sites (named tensors), and compared with the model without
//! roundings.

mod calls;
mod measured;
pub mod null;
pub mod probe;
pub mod recipe;
mod resumed;
mod run;
mod samples;
mod show;
mod weights;

use std::collections::{HashMap, HashSet};

use reference::paths::{Config, Model, readers};
use reference::sites::When;
use reference::{Real, Site, SiteInfo, SiteKind};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::limits::Parts;
use super::null::{Null, Wanted, each, plan, redrawn};
use super::study::{Bench, Keys, ReadyRecipes, Study, Text, by_window, check_among, infos};
use crate::backend::rounding::{Noise, Rounding};
use crate::experiment::{Mistake, Rule, Window, written_out};
use crate::report::Show;
use crate::run::RecipeInfo;
use crate::run::plan::{Cell, Plan, REFERENCE, RecipePlan};
use ulplab_core::error::{Error, Result, did_you_mean, refuse};
use ulplab_core::metrics::Metric;
use ulplab_core::pattern::{matches, matches_nothing};
use ulplab_core::record::{Phase, Record};
use ulplab_decode_step::WholeStep;

pub use calls::Calls;
use probe::Probe;
pub use recipe::Recipe;
pub use resumed::{Kept, Streams, Watch, run_from};
pub use run::{from_start, run_finite, run_recorded, run_reference, run_step, with_loss_per_byte};
pub use samples::{Sample, recorded};
use weights::Weighing;

/// Cost of comparing f32 with f64 (the recipe `reference`), relative to the cost of measuring another recipe. On 128 tokens of
/// dsv4-mini, the comparison took 1.7 times the CPU time of another recipe.
const COST_OF_F64: u64 = 2;

/// Experiment with a whole model: compares the model with roundings at its sites with the model without roundings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ModelStudy {
    /// Name of a checkpoint in `datasets/manifest.toml`, or the path of a folder with `config.json` and safetensors.
    pub model: Option<String>,
    /// Number of tokens in each window of text.
    pub tokens: usize,
    /// Allow windows with more tokens than the model's `max_position_embeddings`; the model may not generalise to such lengths. A
    /// length that changes the frequencies of the model's RoPE stays an error.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub beyond_trained: bool,
    /// Phases to measure. `local`: every layer reads the reference's input. `cumulative`: every layer reads the output of the
    /// candidate's previous layer, so errors add up.
    pub phases: Vec<Phase>,
    #[serde(rename = "window", deserialize_with = "written_out")]
    pub windows: Vec<Window>,
    /// The key `cuts` of the built-in recipe `reference`, which compares the model in f32 with the model in f64.
    pub reference_cuts: Option<u64>,
    #[serde(rename = "recipe", deserialize_with = "recipe::written_out")]
    pub recipes: Vec<Recipe>,
}

impl ModelStudy {
    fn check_recipe(&self, recipe: &Recipe) -> Result<(), Mistake> {
        self.check_keys(recipe)?;
        let cut = recipe.chunk.is_some() || recipe.cuts.is_some();
        let nothing = recipe.rounds.is_empty() && recipe.kernels.is_empty() && recipe.step.is_none() && !cut;
        let message = "it changes nothing: expected 'round', 'kernels', 'step', 'chunk' or 'cuts'";
        Mistake::refuse(nothing, "round", message)
    }

    /// Refuses a recipe whose only effect is to divide a window into calls, if the window fits in one call: the recipe then
    /// changes nothing. A recipe that is compared with another recipe is accepted.
    fn check_calls(&self, recipe: &Recipe) -> Result<(), Mistake> {
        let (key, whole) = match recipe.chunk {
            Some(chunk) => ("chunk", chunk.get() >= self.tokens),
            None => ("cuts", recipe.cuts.is_some() && self.tokens == 1),
        };
        let alone = recipe.rounds.is_empty() && recipe.kernels.is_empty() && recipe.step.is_none();
        let tokens = self.tokens;
        let message =
            format_args!("it changes nothing: a window of {tokens} tokens is one call; expected shorter calls");
        Mistake::refuse(alone && whole && recipe.against.is_none(), key, message)
    }

    /// Checks that the keys of a recipe are consistent.
    fn check_keys(&self, recipe: &Recipe) -> Result<(), Mistake> {
        let message = "'dtype' is the type that 'kernels' read and write, and there are none";
        Mistake::refuse(recipe.kernels.is_empty() && !recipe.dtype.is_f32(), "dtype", message)?;
        let cut = recipe.chunk.is_some() || recipe.cuts.is_some();
        let besides = recipe.noise || cut || !recipe.kernels.is_empty();
        let message = "a whole step by kernels has no 'kernels', no 'noise', no 'chunk' and no 'cuts' besides";
        Mistake::refuse(recipe.step.is_some() && besides, "step", message)?;
        let message = "calls are of one size, 'chunk', or of drawn ones, 'cuts'; not both";
        Mistake::refuse(recipe.chunk.is_some() && recipe.cuts.is_some(), "cuts", message)?;
        Noise::asked(recipe.noise, recipe.gain, 0)?;
        for (key, said) in [("weights", &recipe.weights), ("index", &recipe.index)] {
            let message = format_args!("'{key}' is of the kernels of a whole step, and there is no 'step'");
            Mistake::refuse(said.is_some() && recipe.step.is_none(), key, message)?;
        }
        let local = recipe.runs_free() && !self.phases.contains(&Phase::Cumulative);
        refuse(local, "it runs free: expected \"cumulative\" among 'phases'").map_err(Mistake::new)?;
        let twice = |recipe: &Recipe| recipe.rounds.iter().any(|round| round.role.is_some());
        let message = "a recipe that rounds one reader of a vector only has no 'step', 'chunk', 'cuts' or 'against'";
        refuse(recipe.runs_free() && twice(recipe), message).map_err(Mistake::new)?;
        let Some(against) = &recipe.against else {
            return Ok(());
        };
        let names = || self.recipes.iter().map(|other| other.name.as_str());
        let message = match self.recipes.iter().find(|other| other.name == *against) {
            None => format!("there is no recipe '{against}'{}", did_you_mean(against, names())),
            Some(other) if other.name == recipe.name => "a recipe is not compared with itself".into(),
            Some(other) if other.runs_free() => {
                format!("'{against}' has a 'step', a 'chunk', 'cuts' or an 'against' itself: expected a recipe without")
            }
            Some(other) if twice(other) => {
                format!("'{against}' rounds one reader of a vector only, which then passes twice")
            }
            Some(_) => return Ok(()),
        };
        Err(Mistake::at("against", message))
    }
}

impl Study for ModelStudy {
    fn check(&self) -> Result<(), Mistake> {
        self.reading().check()?;
        super::sources::check_recipes(&self.recipes)?;
        let message = "model is missing: expected a name that `ulplab list datasets` has, or a folder";
        Mistake::refuse(self.model.is_none(), "model", message)?;
        super::sources::check_phases(&self.phases)?;
        let message = "[[window]] is missing: expected text = \"NAME\" and offset = BYTE, once or several times";
        Mistake::refuse(self.windows.is_empty(), "window", message)?;
        each(&self.recipes, |recipe| self.check_recipe(recipe)).map(drop)
    }

    fn plan(&self) -> Plan {
        let windows = self.windows.iter().map(Window::name);
        let mut plan = plan(&self.phases, windows, &self.recipes);
        let own = RecipePlan {
            name: REFERENCE.into(),
            phases: vec![Phase::Cumulative],
            windows: None,
            cost: COST_OF_F64,
        };
        for (plan, recipe) in plan.recipes.iter_mut().zip(&self.recipes) {
            if recipe.runs_free() {
                plan.phases = vec![Phase::Cumulative];
            }
        }
        plan.recipes.insert(0, own);
        plan
    }

    fn recipes(&self) -> Vec<RecipeInfo> {
        let mut all = infos(&self.body());
        for (info, recipe) in all.iter_mut().zip(&self.recipes) {
            if let Some(other) = &recipe.against {
                info.doc += &format!("; compared with '{other}', not with the reference");
            }
        }
        all
    }

    /// Returns an error unless `at` matches a site of any known model: the experiment's own model is not read yet.
    fn check_site(&self, at: &str) -> Result<(), String> {
        let name = |site: &SiteInfo| match site.in_layers() {
            true => format!("layers.0.{}", site.name),
            false => site.name.to_string(),
        };
        let mut seen = HashSet::new();
        let paths = readers();
        let names = paths.iter().flat_map(|path| path.sites).map(name);
        check_among(at, names.filter(|site| seen.insert(site.clone())))
    }

    fn check_measured(&self, rule: &Rule, metric: &Metric, config: &dyn Config) -> Result<(), Mistake> {
        measured::check(rule, metric, config)
    }

    fn memory(&self, parts: &mut Parts, config: Option<&dyn Config>, at_once: f64) {
        let Some(config) = config else { return };
        let trace = parts.of_trace(config, self.tokens, at_once);
        let weights = parts.weights(config);
        let rounded = |recipe: &&Recipe| {
            let rounding = Rounding::resolve(&recipe.rounds, None, None, config);
            rounding.is_ok_and(|rounding| rounding.rounds_weights)
        };
        let rounded = at_once.min(self.recipes.iter().filter(rounded).count() as f64);
        parts.add("for weights that recipes round", 4.0 * weights * rounded);
        parts.add(
            format!("for '{REFERENCE}', the check in f64"),
            8.0 * weights + 2.0 * trace,
        );
    }

    fn ready<'a>(&'a self, seed: u64, config: Option<&dyn Config>) -> Result<Box<dyn ReadyRecipes + 'a>, Mistake> {
        let config = config.ok_or_else(|| Mistake::at("model", "model is missing"))?;
        let mut recipes = each(&self.recipes, |recipe| {
            let ready = ReadyRecipe::new(recipe, config, seed);
            self.check_calls(recipe)?;
            let ready = ready?;
            ready.rounding.check_window(config, self.tokens)?;
            Ok(ready)
        })?;
        recipes.entry(REFERENCE).or_default().calls = self.reference_cuts.map(|number| Calls::Drawn { seed, number });
        // A recipe that is compared with another recipe gets no size in bytes: it may pass its gates and still be far from the
        // reference, so reports must not recommend it as a format.
        let sized = recipes.iter().filter(|(_, ready)| ready.against.is_none());
        let bytes = sized.map(|(name, ready)| (*name, ready.rounding.cache_bytes(config)));
        Ok(by_window(self, bytes.collect(), move |bench, cells| {
            window(&recipes, bench, cells)
        }))
    }

    /// Returns the null experiment: the recipes, computed by correct code on other windows of the same texts, in random orders of
    /// summation.
    fn null(&self, draws: usize, phases: &[Phase], wanted: &[Wanted]) -> Result<Null, String> {
        let own = Recipe {
            name: REFERENCE.into(),
            ..Recipe::default()
        };
        let known: Vec<Recipe> = std::iter::once(own).chain(self.recipes.iter().cloned()).collect();
        Ok(Null::new(wanted, &known, |recipes| Self {
            phases: phases.to_vec(),
            windows: redrawn(&self.windows, draws),
            reference_cuts: Some(1),
            recipes: recipes.into_iter().filter(|recipe| recipe.name != REFERENCE).collect(),
            ..self.clone()
        }))
    }

    fn uses_gpu(&self) -> bool {
        let kernels = |recipe: &Recipe| !recipe.kernels.is_empty() || recipe.step.is_some();
        self.recipes.iter().any(kernels)
    }
}

#[derive(Default)]
struct ReadyRecipe<'a> {
    rounding: Rounding,
    step: Option<WholeStep>,
    calls: Option<Calls>,
    /// Name of the recipe that this recipe is compared with; `None` if it is compared with the reference.
    against: Option<&'a str>,
}

impl<'a> ReadyRecipe<'a> {
    fn new(recipe: &'a Recipe, config: &dyn Config, seed: u64) -> Result<Self, Mistake> {
        let rounding = recipe.resolve(config, seed)?;
        let find =
            |name: &String| WholeStep::find(name, &recipe.rounds, recipe.weights.as_deref(), recipe.index.as_deref());
        Ok(Self {
            step: recipe.step.as_ref().map(find).transpose()?,
            calls: recipe.calls(seed),
            against: recipe.against.as_deref(),
            rounding,
        })
    }

    /// If the recipe rounds weights, loads a model with rounded weights, and returns it with records of the weights' sizes.
    fn loaded(&self, bench: &Bench, blank: &Record) -> Result<Option<(Box<dyn Model<f32>>, Vec<Record>)>> {
        if !self.rounding.rounds_weights {
            return Ok(None);
        }
        let mut weighing = Weighing::new(&self.rounding);
        let model = bench.inputs.open()?.load_by(&mut weighing)?;
        let sizes = weighing.records(model.config(), blank);
        Ok(Some((model, sizes)))
    }

    /// Runs the recipe on a text, and returns the records of `probe`, which compares the tensors at the model's sites with the
    /// reference's.
    fn read(&self, bench: &Bench, text: Text, probe: Probe<impl Real>) -> Result<Vec<Record>> {
        let got = match (&self.step, self.calls) {
            (Some(step), _) => {
                let folder = bench.inputs.folder.as_deref().ok_or_else(|| none(bench, "model"))?;
                run_step(text, folder, step, &self.rounding)?
            }
            (None, Some(calls)) => run_recorded(text, &self.rounding, &calls.of(text.ids.len(), bench.window))?,
            (None, None) => return probe.run(text),
        };
        Ok(probe.replay(&got, text.ids))
    }
}

fn none(bench: &Bench, what: &str) -> Error {
    Error::Usage(format!("window '{}' has no {what}", bench.window))
}

/// Measures the cells (pairs of a recipe and a phase) of a window.
fn window(recipes: &HashMap<&str, ReadyRecipe>, bench: &Bench, cells: &[&Cell]) -> Result<()> {
    let text = bench.text.ok_or_else(|| none(bench, "text"))?;
    let want = run_finite(text.model, text.ids, bench.window)?;
    let measure = |ready: &ReadyRecipe, blank: Record| -> Result<Vec<Record>> {
        if blank.recipe == REFERENCE {
            let exact = run_reference(&*bench.inputs.open()?.load::<f64>()?, text.ids)?;
            return ready.read(bench, text, Probe::new(&ready.rounding, &exact, blank));
        }
        let (own, sizes) = ready.loaded(bench, &blank)?.unzip();
        let text = own.as_deref().map_or(text, |model| Text { model, ..text });
        let run_other = |other: &str| {
            let none = || none(bench, &format!("recipe '{other}'"));
            let other = recipes.get(other).ok_or_else(none)?;
            let (own, _) = other.loaded(bench, &blank)?.unzip();
            let text = own.as_deref().map_or(text, |model| Text { model, ..text });
            run_recorded(text, &other.rounding, &[text.ids.len()])
        };
        let other = ready.against.map(run_other).transpose()?;
        let probe = Probe::new(&ready.rounding, other.as_ref().unwrap_or(&want), blank);
        let mut records = ready.read(bench, text, probe)?;
        records.extend(sizes.into_iter().flatten());
        Ok(records)
    };
    bench.each(cells, recipes, |ready, blank| {
        let targets = text.ids.len() - 1;
        Ok(with_loss_per_byte(measure(ready, blank)?, targets, bench.bytes))
    })
}

/// Returns the names of the model's sites that match a pattern, each once, with the number of channels per token.
///
/// # Errors
/// Returns an error if the pattern matches none of the `usable` sites.
pub fn sites_at(
    at: &str,
    usable: impl Fn(&SiteInfo) -> bool,
    config: &dyn Config,
) -> Result<Vec<(&'static str, usize)>, String> {
    let places = config.places().into_iter().filter(|(site, _)| usable(site));
    let places = places.map(|(site, layer)| (site, Site::new(layer, site.name).to_string()));
    let places: Vec<_> = places.collect();
    let matching = places.iter().filter(|(_, place)| matches(at, place));
    let found = matching.map(|(site, _)| (site.name, config.cols_of_token(site)));
    let mut found: Vec<_> = found.collect();
    found.dedup();
    match found.is_empty() {
        true => Err(matches_nothing("site", at, places.iter().map(|(_, place)| &place[..]))),
        false => Ok(found),
    }
}

/// True if the model computes a tensor at this site while it runs, not when it is loaded.
pub fn passes_tensor(site: &SiteInfo) -> bool {
    site.kind == SiteKind::Tensor && site.when == When::Run
}
