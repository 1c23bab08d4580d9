//! The recipes (choices of formats or kernels) of a run, as reports show them: sorted, grouped, and with their verdicts.

use std::collections::{HashMap, HashSet};

use super::Show;
use super::chart::{GREY, SLOTS};
use super::index::Index;
use ulplab_run::run::verdict::Verdict;
use ulplab_run::run::{CacheBytes, RecipeInfo, Run, by_recipe};

pub use ulplab_run::run::plan::REFERENCE;

/// The kind of a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Group {
    /// The reference, which is computed in f32 and compared with f64.
    Reference,
    /// A format that rounds all channels of a tensor, in all layers, for all operations that read the tensor.
    Plain,
    /// A format that rounds only some channels, only in some layers, or only for one operation that reads the tensor.
    Narrowed,
    /// Kernels replace operations of the reference; no tensor is rounded to a format.
    Kernels,
    /// Gaussian noise in place of a format's rounding error, with the energy of this error.
    Noise,
}

/// Combined verdict on one recipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate<'a> {
    /// All gates on the recipe pass. Controls, which check that a bad recipe is measured as bad, are not counted.
    Pass(Rules<'a>),
    /// At least one gate or control on the recipe fails.
    Fail(Rules<'a>),
    /// No gate or control on the recipe fails, but only `judged` of all `all` gates and controls were checked.
    NotJudged { judged: usize, all: usize },
    /// The recipe has controls only, and all of them hold: the run measures this known bad recipe as bad.
    Control,
    /// The recipe has neither gates nor controls.
    Unbound,
}

/// A set of gates: their number, and the metric of the first gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules<'a> {
    pub count: usize,
    pub metric: &'a str,
}

impl std::fmt::Display for Rules<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.count {
            1 => f.write_str(self.metric),
            count => write!(f, "{count} gates"),
        }
    }
}

/// A recipe of the run, as reports show it.
#[derive(Clone, Debug)]
pub struct Candidate<'a> {
    pub name: &'a str,
    pub doc: &'a str,
    pub group: Group,
    pub gate: Gate<'a>,
    pub bytes: CacheBytes,
    /// For a recipe of noise, the recipe whose error the noise replaces; for a narrowed recipe, the plain recipe of the same
    /// format.
    pub origin: Option<&'a str>,
    /// Index of the recipe's colour in all charts that show all recipes; [`GREY`] if the recipe has no colour of its own.
    pub slot: usize,
}

/// Returns the measured recipes: the reference first, then the others in ascending order of [`Show::sort_key`], which is usually
/// the error; NaN and unknown keys last.
pub fn candidates<'a>(run: &'a Run, show: &'a dyn Show, index: &Index) -> Vec<Candidate<'a>> {
    let recipes = run.manifest.recipes.iter().enumerate();
    let infos: HashMap<&str, (usize, &RecipeInfo)> =
        recipes.map(|(at, info)| (info.name.as_str(), (at, info))).collect();
    let verdicts = by_recipe(&run.verdicts, |verdict| &verdict.recipe);
    let info = |name: &str| infos.get(name).map(|(_, info)| *info);
    let candidate = |name| candidate(name, show, &info, verdicts.get(name).map_or(&[], Vec::as_slice));
    let mut candidates: Vec<Candidate> = names(run).into_iter().map(candidate).collect();
    let key = |name| show.sort_key(index, name, infos.get(name).map_or(usize::MAX, |(at, _)| *at));
    let errors: HashMap<&str, Option<f64>> = names(run).into_iter().map(|name| (name, key(name))).collect();
    let error = |name: &str| errors.get(name).copied().flatten();
    candidates.sort_by(|a, b| {
        let key = |c: &Candidate| (c.group != Group::Reference, error(c.name).is_none());
        let size =
            |c: &Candidate| error(c.name).map_or(0.0, |error| if error.is_nan() { f64::INFINITY } else { error });
        key(a).cmp(&key(b)).then(size(a).total_cmp(&size(b)))
    });
    colour(run, show, &mut candidates, &|name| {
        error(name).filter(|error| !error.is_nan()).unwrap_or(f64::INFINITY)
    });
    candidates
}

/// Gives distinct colours to the [`SLOTS`] most important recipes; the others are grey. The order of importance is: recipes with
/// gates; then recipes that the fewest other recipes beat in both size and error; then recipes with the smallest error. Colours
/// are assigned in the experiment's order.
fn colour(run: &Run, show: &dyn Show, candidates: &mut [Candidate], error: &dyn Fn(&str) -> f64) {
    let drawn = |candidate: &&Candidate| candidate.group == Group::Plain || !show.ranks_sizes();
    // Two costs of a candidate, error and size: smaller is better.
    let costs = |candidate: &Candidate| [error(candidate.name), candidate.bytes.vector.unwrap_or(0.0)];
    let beats = |a: &[f64; 2], b: &[f64; 2]| a != b && a[0] <= b[0] && a[1] <= b[1];
    let all: Vec<&Candidate> = candidates.iter().filter(drawn).collect();
    let costs_of_all: Vec<[f64; 2]> = all.iter().map(|candidate| costs(candidate)).collect();
    let rank = |candidate: &&&Candidate| {
        let unjudged = matches!(candidate.gate, Gate::Unbound | Gate::Control);
        let own = costs(candidate);
        (unjudged, costs_of_all.iter().filter(|other| beats(other, &own)).count())
    };
    // Candidates are sorted by error, and the stable sort keeps this order for equal ranks.
    let mut ranked: Vec<&&Candidate> = all.iter().collect();
    ranked.sort_by_cached_key(rank);
    let chosen: HashSet<&str> = ranked.iter().take(SLOTS).map(|candidate| candidate.name).collect();
    let names: Vec<&str> = names(run).into_iter().filter(|name| chosen.contains(name)).collect();
    for candidate in candidates {
        let place = names.iter().position(|name| *name == candidate.name);
        candidate.slot = place.unwrap_or(GREY);
    }
}

/// Returns the names of the measured recipes in the manifest's order, the reference last.
fn names(run: &Run) -> Vec<&str> {
    let measured: HashSet<&str> = run.summaries.iter().map(|summary| summary.recipe.as_str()).collect();
    let names = run.manifest.recipes.iter().map(|recipe| recipe.name.as_str());
    let names = names.chain([REFERENCE]);
    names.filter(|name| measured.contains(name)).collect()
}

fn candidate<'a>(
    name: &'a str,
    show: &'a dyn Show,
    info: &dyn Fn(&str) -> Option<&'a RecipeInfo>,
    verdicts: &[&'a Verdict],
) -> Candidate<'a> {
    let sized = |name: &str| info(name).is_some_and(|info| info.bytes.vector.is_some());
    let (group, origin) = match name {
        REFERENCE => (Group::Reference, None),
        _ => show.group(name, &sized),
    };
    let info = info(name);
    let doc = match info {
        Some(info) if !info.doc.is_empty() => &info.doc,
        _ if group == Group::Reference => "the reference's own error: f32 against f64",
        _ => "",
    };
    Candidate {
        name,
        doc,
        group,
        gate: gate(verdicts),
        bytes: info.map_or(CacheBytes::default(), |info| info.bytes),
        origin,
        slot: GREY,
    }
}

/// Combines all verdicts on a recipe into one.
fn gate<'a>(verdicts: &[&'a Verdict]) -> Gate<'a> {
    let rules = |counts: &dyn Fn(&Verdict) -> bool| {
        let mut found = verdicts.iter().filter(|verdict| counts(verdict));
        let metric = &found.next()?.rule.metric;
        let count = 1 + found.count();
        Some(Rules { count, metric })
    };
    let judged = verdicts.iter().filter(|verdict| verdict.passes()).count();
    if verdicts.is_empty() {
        Gate::Unbound
    } else if let Some(failed) = rules(&Verdict::fails) {
        Gate::Fail(failed)
    } else if judged < verdicts.len() {
        let all = verdicts.len();
        Gate::NotJudged { judged, all }
    } else {
        rules(&|verdict| !verdict.rule.control).map_or(Gate::Control, Gate::Pass)
    }
}
