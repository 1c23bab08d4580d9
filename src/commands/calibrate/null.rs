//! The null experiment: it measures correct candidates (the null distribution), and candidates with noise of a stated size.

use crate::experiment::{Experiment, Head, Rule, Statistic};
use crate::gate::calibration::direction;
use crate::run::runs::NULL;
use crate::studies::Study;
use crate::studies::null::Wanted;
use ulplab_core::list::distinct;
use ulplab_core::metrics::Metric;

/// Metrics that noise of any size leaves unchanged, each with a text about the faults that the metric detects.
const UNMOVED: [(&str, &str); 2] = [
    (
        "nonfinite",
        "it counts numbers that are not finite, of which noise makes none: one is noticed by construction",
    ),
    (
        "cosine_excess",
        "it holds for any two vectors, whatever their distance, and notices mistakes of the measurement",
    ),
];

/// A gate on a recipe, and the recipes of the null experiment (correct ones, and ones with noise) that measure this gate.
pub struct Trial<'a> {
    pub rule: &'a Rule,
    pub recipe: String,
    /// Name of the recipe that measures correct results on new random inputs; or the reason why there is none.
    pub null: Result<String, String>,
    /// Recipes with noise in place of the rounding error, each with the size of the noise relative to this error; or the reason
    /// why there are none.
    pub effects: Result<Vec<(f64, String)>, String>,
}

/// The null experiment (correct recipes, and recipes with noise), and the gates that its recipes measure.
pub struct Null<'a> {
    pub experiment: Experiment,
    /// Patterns of the ids of all cells that the gates read.
    pub cells: Vec<String>,
    pub trials: Vec<Trial<'a>>,
}

/// Returns the null experiment (correct recipes, and recipes with noise) for all gates of an experiment, with `draws` random
/// samples of each statistic. `effects` are sizes of noise, in multiples of a recipe's own error.
///
/// # Errors
/// Returns the reason if gates of this kind of experiment are not calibrated.
pub fn derive<'a>(head: &'a Head, study: &dyn Study, draws: usize, effects: &[f64]) -> Result<Null<'a>, String> {
    let plan = study.plan();
    let bound = |rule: &'a Rule| plan.bound_by(rule).map(move |recipe| (rule, recipe.to_string()));
    let bound: Vec<(&Rule, String)> = head.gates.iter().flat_map(bound).collect();
    let asked = bound.iter().filter(|(rule, _)| not_asked(rule).is_none());
    let wanted: Vec<Wanted> = distinct(asked.flat_map(|(rule, recipe)| {
        let gains = std::iter::once(None).chain(gains(rule, effects).map(Some));
        gains.map(|gain| Wanted {
            recipe: recipe.clone(),
            phase: rule.phase,
            gain,
        })
    }));
    let mut phases = plan.phases;
    phases.retain(|phase| head.gates.iter().any(|rule| rule.phase == *phase));
    let null = study.null(draws, &phases, &wanted)?;
    let named = wanted.iter().zip(&null.names);
    let cells = named.filter_map(|(wanted, name)| Some(format!("{}/{}/*", name.as_ref().ok()?, wanted.phase)));
    let cells = distinct(cells);
    let find = |rule: &Rule, recipe: &str, gain: Option<f64>| {
        let same = |wanted: &Wanted| wanted.recipe == recipe && wanted.phase == rule.phase && wanted.gain == gain;
        let at = wanted.iter().position(same).expect("it was put there");
        null.names[at].clone()
    };
    let trial = |(rule, recipe): (&'a Rule, String)| {
        let found = match not_asked(rule) {
            Some(why) => Err(why.to_string()),
            None => find(rule, &recipe, None),
        };
        let unmoved = UNMOVED.iter().find(|(metric, _)| *metric == rule.metric);
        let effects = match (&found, unmoved) {
            (Err(_), _) => Ok(Vec::new()),
            (Ok(_), Some((_, why))) => Err(why.to_string()),
            (Ok(_), None) => {
                let each = gains(rule, effects).map(|gain| Ok((gain, find(rule, &recipe, Some(gain))?)));
                each.collect()
            }
        };
        Trial {
            rule,
            null: found,
            effects,
            recipe,
        }
    };
    let trials = bound.into_iter().map(trial).collect();
    let name = &head.name;
    let experiment = Experiment {
        head: Head {
            name: format!("{name}{NULL}"),
            question: format!("What do right candidates measure as, at the gates of '{name}'?"),
            gates: Vec::new(),
            ..head.clone()
        },
        body: null.body,
    };
    Ok(Null {
        experiment,
        cells,
        trials,
    })
}

/// Returns the reason why a gate cannot be calibrated, if the reason does not depend on the metric; `None` otherwise.
fn not_asked(rule: &Rule) -> Option<&'static str> {
    if rule.control {
        return Some("it is a control, which something bad must meet");
    }
    if rule.statistic == Statistic::Sequential {
        return Some("its rate of false alarms follows from its construction");
    }
    None
}

/// Returns the sizes of noise to test for a gate, in multiples of the recipe's error. For a gate that rejects too small errors,
/// returns the inverse sizes.
fn gains(rule: &Rule, effects: &[f64]) -> impl Iterator<Item = f64> {
    let unmoved = UNMOVED.iter().any(|(metric, _)| *metric == rule.metric);
    let inverted = Metric::find(&rule.metric).is_ok_and(|metric| direction(&rule.require, metric) != metric.better);
    let each = if unmoved { &[][..] } else { effects };
    each.iter().map(move |gain| if inverted { 1.0 / gain } else { *gain })
}
