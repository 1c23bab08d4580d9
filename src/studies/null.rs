//! The experiment that gates of a study are calibrated on: its recipes as right code computes them, on other data of the same
//! distribution, and with their errors as noise.

use std::borrow::Cow;
use std::collections::HashMap;

use serde_json::{Map, Value};

use super::study::Keys;
use crate::experiment::{Mistake, Window};
use crate::run::RecipeInfo;
use crate::run::plan::Plan;
use ulplab_core::record::Phase;

/// A recipe that a gate looks at in a phase.
#[derive(Clone, Debug, PartialEq)]
pub struct Wanted {
    pub recipe: String,
    pub phase: Phase,
    /// With its errors as noise so many times as large; `None` is the recipe as right code computes it.
    pub gain: Option<f64>,
}

/// The experiment that answers.
pub struct Null {
    /// Its keys: so many times as much data as the study has, and the recipes that stand for the wanted ones.
    pub body: Map<String, Value>,
    /// The name of the recipe that stands for each wanted one, or why there is none.
    pub names: Vec<Result<String, String>>,
}

/// Why a recipe has no error to make larger.
pub const ROUNDS_NOTHING: &str = "it rounds nothing, so that no noise stands for its error";

/// A recipe that may replace its errors by noise.
pub trait Candidate: Clone {
    /// Its name, its description in one line, and true if noise stands in the place of its errors.
    fn head(&self) -> (&str, Cow<'_, str>, bool);

    fn name(&self) -> &str {
        self.head().0
    }

    /// The recipe that it is compared with, if that is another one.
    fn against(&self) -> Option<&str> {
        None
    }

    /// Its keys `name`, `noise` and `gain`.
    fn noise_keys(&mut self) -> (&mut String, &mut bool, &mut Option<f64>);

    /// Returns the recipe under the name `name`, with its errors replaced by noise that is `gain` times as large.
    #[must_use]
    fn with_noise(&self, name: String, gain: f64) -> Self {
        louder(self, name, gain)
    }

    /// Returns the recipe as right code computes it, and whether it rounds anything.
    ///
    /// # Errors
    /// If there is none, with the reason.
    fn right(&self, _phase: Phase) -> Result<(Self, bool), String> {
        Ok((self.clone(), true))
    }
}

/// A recipe whose keys `noise` and `gain` ask for noise in the place of its errors.
pub fn louder<R: Candidate>(recipe: &R, name: String, gain: f64) -> R {
    let mut louder = recipe.clone();
    let (own_name, noise, own_gain) = louder.noise_keys();
    (*own_name, *noise, *own_gain) = (name, true, Some(gain));
    louder
}

/// The value that `make` gives for each recipe, by its name. A mistake is placed in its recipe.
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

/// The recipes as reports name them.
pub fn infos<R: Candidate>(recipes: &[R]) -> Vec<RecipeInfo> {
    let info = |(name, doc, noise): (&str, Cow<str>, bool)| RecipeInfo {
        noise,
        ..RecipeInfo::new(name, &doc)
    };
    recipes.iter().map(|recipe| info(recipe.head())).collect()
}

/// All recipes in all windows.
pub fn plan<R: Candidate>(phases: &[Phase], windows: impl Iterator<Item = String>, recipes: &[R]) -> Plan {
    Plan::whole(phases, windows.collect(), recipes.iter().map(Candidate::name))
}

impl Null {
    /// The experiment that `study` makes of the recipes that stand for the wanted ones, each once, and of those that they are compared
    /// with.
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
        Self {
            body: study(all).body(),
            names,
        }
    }
}

/// Windows drawn from the texts of some others, `draws` times as many; none of these is among them.
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
