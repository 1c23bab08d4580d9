//! The experiment that draws what right candidates measure as, and what faults of a stated size do.

use super::Asked;
use crate::experiment::{Experiment, Head, Rule, Statistic, Window};
use crate::run::plan::REFERENCE;
use crate::studies::body_of;
use crate::studies::model::{ModelStudy, Recipe};
use ulplab_core::pattern::matches;
use ulplab_core::record::Phase;

/// A gate on a recipe, and the recipes of the null experiment that say something of it.
pub struct Trial<'a> {
    pub rule: &'a Rule,
    pub recipe: String,
    /// The recipe, computed in drawn orders of sums; or why there is none.
    pub null: Result<String, String>,
    /// Its error as noise so many times as large.
    pub effects: Vec<(f64, String)>,
}

/// What is run, and what for.
pub struct Null<'a> {
    pub experiment: Experiment,
    /// Patterns of its cells that a gate looks at.
    pub cells: Vec<String>,
    pub trials: Vec<Trial<'a>>,
}

/// The null experiment of all gates of an experiment.
pub fn derive<'a>(head: &'a Head, study: &'a ModelStudy, asked: &Asked) -> Null<'a> {
    let mut recipes: Vec<Recipe> = Vec::new();
    let mut cells: Vec<String> = Vec::new();
    let mut run = |recipe: Recipe, phase: Phase| {
        let (name, cell) = (recipe.name.clone(), format!("{}/{phase}/*", recipe.name));
        if name != REFERENCE && !recipes.iter().any(|known| known.name == name) {
            recipes.push(recipe);
        }
        if !cells.contains(&cell) {
            cells.push(cell);
        }
        name
    };
    let mut trials = Vec::new();
    let own = Recipe {
        name: REFERENCE.into(),
        ..Recipe::default()
    };
    for rule in &head.gates {
        let bound = |recipe: &&Recipe| rule.recipes.iter().any(|pattern| matches(pattern, &recipe.name));
        let own = std::iter::once(&own).filter(|_| rule.phase == Phase::Cumulative);
        for recipe in own.chain(&study.recipes).filter(bound) {
            let reordered = reordered(recipe, rule);
            let effects = match &reordered {
                Ok(null) if !null.rounds.is_empty() => {
                    asked.effects.iter().map(|&gain| (gain, louder(null, gain))).collect()
                }
                _ => Vec::new(),
            };
            trials.push(Trial {
                rule,
                recipe: recipe.name.clone(),
                null: reordered.map(|null| run(null, rule.phase)),
                effects: effects
                    .into_iter()
                    .map(|(gain, recipe)| (gain, run(recipe, rule.phase)))
                    .collect(),
            });
        }
    }
    // What others are compared with.
    for recipe in &study.recipes {
        let wanted = recipes.iter().any(|other| other.against.as_ref() == Some(&recipe.name));
        if wanted && !recipes.iter().any(|known| known.name == recipe.name) {
            recipes.push(recipe.clone());
        }
    }
    let of_rules = |phase: &Phase| head.gates.iter().any(|rule| rule.phase == *phase);
    let body = ModelStudy {
        model: study.model.clone(),
        tokens: study.tokens,
        beyond_trained: study.beyond_trained,
        phases: study.phases.iter().copied().filter(of_rules).collect(),
        windows: windows(&study.windows, asked.draws),
        reference_cuts: Some(1),
        recipes,
    };
    let experiment = Experiment {
        head: Head {
            name: format!("{}-null", head.name),
            question: format!("What do right candidates measure as, at the gates of '{}'?", head.name),
            kind: head.kind.clone(),
            seed: head.seed,
            gates: Vec::new(),
        },
        body: body_of(&body),
    };
    Null {
        experiment,
        cells,
        trials,
    }
}

/// A recipe as right code computes it in another order of sums, different in each window.
fn reordered(recipe: &Recipe, rule: &Rule) -> Result<Recipe, String> {
    if rule.control {
        return Err("it is a control, which something bad must meet".into());
    }
    if rule.statistic == Statistic::Sequential {
        return Err("its rate of false alarms follows from its construction".into());
    }
    if recipe.step.is_some() && (recipe.weights.is_some() || recipe.index.is_some()) {
        return Err("kernels read weights or index keys as codes, which nothing on the CPU does".into());
    }
    if !recipe.kernels.is_empty() && !recipe.dtype.is_f32() {
        return Err("its kernels round to another type, which nothing on the CPU does".into());
    }
    let plain = Recipe {
        chunk: None,
        cuts: None,
        step: None,
        kernels: Vec::new(),
        ..recipe.clone()
    };
    // A layer alone is fed all tokens at once; a vector that is rounded for one reader is, too.
    let whole = rule.phase == Phase::Local || recipe.rounds.iter().any(|round| round.role.is_some());
    if whole || recipe.name == REFERENCE {
        return Ok(plain);
    }
    Ok(Recipe {
        name: format!("{}.null", recipe.name),
        cuts: Some(1),
        ..plain
    })
}

/// The recipe with noise in the place of its rounding errors, so many times as large.
fn louder(null: &Recipe, gain: f64) -> Recipe {
    Recipe {
        name: format!("{}.noise{gain}", null.name),
        noise: true,
        gain: Some(gain),
        ..null.clone()
    }
}

/// Windows drawn from the texts of the experiment, as many sets of them as are asked for.
fn windows(own: &[Window], draws: usize) -> Vec<Window> {
    let mut all: Vec<Window> = Vec::with_capacity(draws * own.len());
    let mut last: Vec<(String, usize)> = Vec::new();
    for window in own {
        if !last.iter().any(|(text, _)| *text == window.text) {
            let drawn = own
                .iter()
                .filter(|other| other.text == window.text)
                .filter_map(|other| other.draw);
            last.push((window.text.clone(), drawn.max().unwrap_or(0)));
        }
    }
    for _ in 0..draws {
        for window in own {
            let (_, last) = last
                .iter_mut()
                .find(|(text, _)| *text == window.text)
                .expect("it was put there");
            *last += 1;
            all.push(Window {
                text: window.text.clone(),
                draw: Some(*last),
                ..Window::default()
            });
        }
    }
    all
}
