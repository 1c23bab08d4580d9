//! The null experiment: measures correct code on other data of the same distribution, to calibrate the gates (pass/fail checks)
//! of a study. Its recipes are the study's recipes, computed correctly; noise may replace their rounding errors.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::study::Keys;
use crate::experiment::{Mistake, Window};
use crate::run::plan::Plan;
use ulplab_core::record::Phase;

/// A pair of recipe and phase that a gate checks.
#[derive(Clone, Debug, PartialEq)]
pub struct Wanted {
    pub recipe: String,
    pub phase: Phase,
    /// Size of the noise that replaces the recipe's rounding errors, as a multiple of these errors; `None` for the recipe as
    /// correct code computes it, without noise.
    pub gain: Option<f64>,
}

/// The null experiment, which measures correct code to calibrate gates.
pub struct Null {
    /// Keys of the null experiment: several times as much data as the study has, and one recipe for each wanted recipe.
    pub body: Map<String, Value>,
    /// For each wanted recipe, the name of the recipe that replaces it in the null experiment, or the reason why it has no
    /// replacement.
    pub names: Vec<Result<String, String>>,
}

/// Message for a recipe that rounds nothing, so that noise cannot replace a rounding error.
pub const ROUNDS_NOTHING: &str = "it rounds nothing, so that no noise stands for its error";

/// A recipe whose rounding errors may be replaced by noise.
pub trait Candidate: Clone {
    fn name(&self) -> &str;

    /// Returns the name of the other recipe that this recipe is compared with, if any.
    fn against(&self) -> Option<&str> {
        None
    }

    /// Returns the recipe under the name `name`, with its errors replaced by noise that is `gain` times as large.
    #[must_use]
    fn with_noise(&self, name: String, gain: f64) -> Self;

    /// Returns the recipe as correct code computes it, and a flag: true if the recipe rounds, so that noise can replace its
    /// rounding errors.
    ///
    /// # Errors
    /// Returns the reason if correct code on the CPU cannot compute the recipe.
    fn right(&self, _phase: Phase) -> Result<(Self, bool), String> {
        Ok((self.clone(), true))
    }
}

/// Calls `make` for each recipe, and returns the results by recipe name. An error points to the recipe's entry in the file.
pub fn each<'a, R: Candidate, T>(
    recipes: &'a [R],
    make: impl Fn(&'a R) -> Result<T, Mistake>,
) -> Result<HashMap<&'a str, T>, Mistake> {
    let one = |(at, recipe): (usize, &'a R)| match make(recipe) {
        Ok(made) => Ok((recipe.name(), made)),
        Err(mistake) => Err(mistake.in_recipe(recipe.name(), at)),
    };
    recipes.iter().enumerate().map(one).collect()
}

/// Returns the plan that runs all recipes in all windows.
pub fn plan<R: Candidate>(phases: &[Phase], windows: impl Iterator<Item = String>, recipes: &[R]) -> Plan {
    Plan::whole(phases, windows.collect(), recipes.iter().map(Candidate::name))
}

impl Null {
    /// Makes the null experiment. `study` makes its study from its recipes. These recipes, each once, replace the wanted recipes,
    /// or are compared with the replacements. `known` has the recipes of the original study.
    pub fn new<R: Candidate, S: Keys>(wanted: &[Wanted], known: &[R], study: impl FnOnce(Vec<R>) -> S) -> Self {
        let find = |name: &str| known.iter().find(|recipe| recipe.name() == name);
        let mut all: Vec<R> = Vec::new();
        let names = wanted.iter().map(|wanted| {
            let recipe = find(&wanted.recipe).ok_or_else(|| "the experiment's file does not have it".to_string())?;
            let found = match (recipe.right(wanted.phase)?, wanted.gain) {
                ((right, _), None) => right,
                ((_, false), Some(_)) => return Err(ROUNDS_NOTHING.into()),
                ((right, true), Some(gain)) => right.with_noise(format!("{}.noise{gain}", right.name()), gain),
            };
            let name = found.name().to_string();
            if !all.iter().any(|other| other.name() == name) {
                all.push(found);
            }
            Ok(name)
        });
        let names = names.collect();
        let mut at = 0;
        while at < all.len() {
            let rival = all[at].against().and_then(find).cloned();
            all.extend(rival.filter(|rival| !all.iter().any(|other| other.name() == rival.name())));
            at += 1;
        }
        let body = study(all).body();
        Self { body, names }
    }
}

/// Returns `draws` times as many windows as `own`, at other random positions of the same texts.
pub fn redrawn(own: &[Window], draws: usize) -> Vec<Window> {
    let mut all: Vec<Window> = Vec::with_capacity(draws * own.len());
    for window in own.iter().cycle().take(draws * own.len()) {
        let of_text = own.iter().chain(&all).filter(|other| other.text == window.text);
        let last = of_text.filter_map(|other| other.draw).max().unwrap_or(0);
        all.push(Window {
            text: window.text.clone(),
            draw: Some(last + 1),
            ..Window::default()
        });
    }
    all
}
