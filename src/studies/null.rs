//! What the gates of a study are calibrated on: its recipes as right code computes them, on other data of the same distribution, and
//! with their errors as noise.

use serde_json::{Map, Value};

use crate::experiment::Window;
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

/// The recipes that stand for the wanted ones, each once, and their names; `stand_in` is given the recipe and the name that it has to have
/// with noise.
pub fn recipes<R>(
    wanted: &[Wanted],
    known: &[R],
    name: impl Fn(&R) -> &str,
    stand_in: impl Fn(&R, &Wanted) -> Result<R, String>,
) -> (Vec<R>, Vec<Result<String, String>>) {
    let mut all: Vec<R> = Vec::new();
    let names = wanted.iter().map(|wanted| {
        let recipe = known.iter().find(|recipe| name(recipe) == wanted.recipe);
        let recipe = recipe.ok_or_else(|| "the experiment's file does not have it".to_string())?;
        let found = stand_in(recipe, wanted)?;
        let called = name(&found).to_string();
        if !all.iter().any(|other| name(other) == called) {
            all.push(found);
        }
        Ok(called)
    });
    let names = names.collect();
    (all, names)
}

/// The name of a recipe with noise in the place of its errors.
pub fn louder(name: &str, gain: f64) -> String {
    format!("{name}.noise{gain}")
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
