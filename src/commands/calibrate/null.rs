//! The experiment that draws what right candidates measure as, and what faults of a stated size do.

use crate::experiment::{Experiment, Head, Rule, Statistic};
use crate::gate::calibration::direction;
use crate::run::runs::NULL;
use crate::studies::Study;
use crate::studies::null::Wanted;
use ulplab_core::list::distinct;
use ulplab_core::metrics::Metric;

/// Metrics that noise of no size changes, and what they notice.
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

/// A gate on a recipe, and the recipes of the null experiment that say something of it.
pub struct Trial<'a> {
    pub rule: &'a Rule,
    pub recipe: String,
    /// The recipe as right code computes it; or why there is none.
    pub null: Result<String, String>,
    /// Its error as noise so many times as large; or why there is none.
    pub effects: Result<Vec<(f64, String)>, String>,
}

/// The null experiment, and what each of its recipes stands for.
pub struct Null<'a> {
    pub experiment: Experiment,
    /// Patterns of its cells that a gate looks at.
    pub cells: Vec<String>,
    pub trials: Vec<Trial<'a>>,
}

/// The null experiment of all gates of an experiment: so many draws of each statistic, and effects in multiples of a recipe's own error.
///
/// # Errors
/// Why gates of its kind are not calibrated.
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

/// The reason why a gate is not calibrated, on any metric.
fn not_asked(rule: &Rule) -> Option<&'static str> {
    if rule.control {
        return Some("it is a control, which something bad must meet");
    }
    if rule.statistic == Statistic::Sequential {
        return Some("its rate of false alarms follows from its construction");
    }
    None
}

/// The sizes of noise at which a gate is measured. If it bounds how good a recipe may be, the error is as many times smaller.
fn gains(rule: &Rule, effects: &[f64]) -> impl Iterator<Item = f64> {
    let unmoved = UNMOVED.iter().any(|(metric, _)| *metric == rule.metric);
    let inverted = Metric::find(&rule.metric).is_ok_and(|metric| direction(&rule.require, metric) != metric.better);
    let each = if unmoved { &[][..] } else { effects };
    each.iter().map(move |gain| if inverted { 1.0 / gain } else { *gain })
}
