//! The recipes of a run as reports see them: sorted, grouped, and with what the gates say.

use super::index::Index;
use super::overview;
use crate::sweep::experiment::{Kind, Recipe};
use crate::sweep::run::{RecipeInfo, Run};

pub use crate::sweep::plan::REFERENCE;

/// What kind of candidate a recipe is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Group {
    /// The reference against its own check.
    Reference,
    /// A format wherever it would be used.
    Plain,
    /// A format on some channels, one reader or some layers only.
    Narrowed,
    /// Kernels in the place of the reference's operations, and no format.
    Kernels,
    /// Gaussian noise of a format's energy.
    Noise,
}

/// What the gates say of one recipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    Pass,
    Fail,
    /// No rule binds the recipe.
    Unbound,
}

/// A recipe of the run.
#[derive(Clone, Debug)]
pub struct Candidate<'a> {
    pub name: &'a str,
    pub doc: &'a str,
    pub group: Group,
    pub gate: Gate,
    pub bytes_per_vector: Option<f64>,
    /// For a noise control the recipe it controls, for a narrowed recipe the plain one of the same format.
    pub origin: Option<&'a str>,
    /// Place among the recipes of the plain group, in the experiment's order: its colour in all charts.
    pub slot: usize,
}

/// All recipes: the reference first, then by error, NaN and not measured last.
pub fn candidates<'a>(run: &'a Run, index: &Index) -> Vec<Candidate<'a>> {
    let mut candidates: Vec<Candidate> = names(run).into_iter().map(|name| candidate(run, name)).collect();
    let plain = candidates
        .iter_mut()
        .filter(|candidate| candidate.group == Group::Plain);
    plain.enumerate().for_each(|(slot, candidate)| candidate.slot = slot);
    let error = |name: &str| overview::sort_key(&run.manifest.experiment, index, name);
    candidates.sort_by(|a, b| {
        let key = |c: &Candidate| (c.group != Group::Reference, error(c.name).is_none());
        let size =
            |c: &Candidate| error(c.name).map_or(0.0, |error| if error.is_nan() { f64::INFINITY } else { error });
        key(a).cmp(&key(b)).then(size(a).total_cmp(&size(b)))
    });
    candidates
}

/// Names in the manifest's order, then what was measured besides.
fn names(run: &Run) -> Vec<&str> {
    let mut names: Vec<&str> = run.manifest.recipes.iter().map(|recipe| recipe.name.as_str()).collect();
    let measured = run
        .summaries
        .iter()
        .map(|s| &s.recipe)
        .chain(run.verdicts.iter().map(|v| &v.recipe));
    for name in measured {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    names
}

fn candidate<'a>(run: &'a Run, name: &'a str) -> Candidate<'a> {
    let info = run.manifest.recipes.iter().find(|info| info.name == name);
    let recipes = &run.manifest.experiment.recipes;
    let recipe = recipes.iter().find(|recipe| recipe.name == name);
    let noise = info.is_some_and(|info| info.noise) || recipe.is_some_and(|recipe| recipe.noise);
    let group = match recipe {
        _ if name == REFERENCE => Group::Reference,
        _ if noise => Group::Noise,
        Some(recipe) if recipe.rounds.is_empty() && !recipe.kernels.is_empty() => Group::Kernels,
        Some(recipe) if is_narrowed(run, recipe) => Group::Narrowed,
        _ => Group::Plain,
    };
    let doc = match info {
        Some(info) if !info.doc.is_empty() => &info.doc,
        _ if group == Group::Reference => "the reference's own error: f32 against f64",
        _ => "",
    };
    Candidate {
        name,
        doc,
        group,
        gate: gate(run, name),
        bytes_per_vector: info.and_then(|info| info.bytes_per_vector),
        origin: recipe
            .and_then(|recipe| origin(run, recipe, group))
            .map(|recipe| recipe.name.as_str()),
        slot: 0,
    }
}

fn gate(run: &Run, name: &str) -> Gate {
    let mut verdicts = run.verdicts.iter().filter(|verdict| verdict.recipe == name);
    match verdicts.next() {
        None => Gate::Unbound,
        Some(first) if first.pass && verdicts.all(|verdict| verdict.pass) => Gate::Pass,
        Some(_) => Gate::Fail,
    }
}

/// What a cache could store has a size; a recipe that has none rounds only a part of it.
fn is_narrowed(run: &Run, recipe: &Recipe) -> bool {
    let sized = |info: &RecipeInfo| info.name == recipe.name && info.bytes_per_vector.is_some();
    run.manifest.experiment.kind == Kind::Model && !run.manifest.recipes.iter().any(sized)
}

fn origin<'a>(run: &'a Run, recipe: &Recipe, group: Group) -> Option<&'a Recipe> {
    let mut others = run
        .manifest
        .experiment
        .recipes
        .iter()
        .filter(|other| !other.noise && other.name != recipe.name);
    match group {
        Group::Noise => others.find(|other| other.rounds == recipe.rounds),
        Group::Narrowed => others.find(|other| !is_narrowed(run, other) && widens(other, recipe)),
        Group::Reference | Group::Plain | Group::Kernels => None,
    }
}

/// Whether every format of `narrow` is one of `wide`.
fn widens(wide: &Recipe, narrow: &Recipe) -> bool {
    let formats = |recipe: &Recipe| {
        recipe
            .rounds
            .iter()
            .map(|r| (r.format.clone(), r.hadamard))
            .collect::<Vec<_>>()
    };
    let wide = formats(wide);
    formats(narrow).iter().all(|format| wide.contains(format))
}
