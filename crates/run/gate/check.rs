//! Gates, checked before anything is run.

use std::str::FromStr;

use super::direction;
use crate::experiment::{Mistake, Rule, Statistic, Window};
use crate::run::plan::Plan;
use ulplab_core::error::did_you_mean;
use ulplab_core::metrics::{Bound, METRICS, Metric};
use ulplab_core::pattern::{matches, matches_nothing};

/// The measurements that an experiment plans, for a check of its gates.
#[derive(Clone, Copy)]
pub struct GateContext<'a> {
    pub plan: &'a Plan,
    /// Windows of text.
    pub windows: &'a [Window],
    /// Checks that a pattern matches a site. Layer 0 stands for all layers.
    pub site: &'a dyn Fn(&str) -> Result<(), String>,
    /// Checks that the metric of a gate is measured at its place.
    pub metric: &'a dyn Fn(&Rule, &Metric) -> Result<(), Mistake>,
}

/// Checks gates before anything is run.
///
/// # Errors
/// If a gate binds no recipe, looks where nothing is measured, or states a bound that judges nothing; with its number.
pub fn check(rules: &[Rule], experiment: &GateContext) -> Result<(), Mistake> {
    let mut rules = rules.iter().enumerate();
    rules.try_for_each(|(at, rule)| check_rule(rule, experiment).map_err(|mistake| mistake.within("gate", at)))
}

fn check_rule(rule: &Rule, experiment: &GateContext) -> Result<(), Mistake> {
    let GateContext { plan, windows, .. } = *experiment;
    let wrong = |key: &str, why: &str| Err(Mistake::at(key, format!("gate on {}: {why}", rule.metric)));
    let Some(metric) = METRICS.iter().find(|metric| metric.name == rule.metric) else {
        let hint = did_you_mean(&rule.metric, METRICS.iter().map(|metric| metric.name));
        return Err(Mistake::at("metric", format!("unknown metric '{}'{hint}", rule.metric)).of("gate"));
    };
    if rule.control && rule.flake.is_some() {
        return wrong(
            "flake",
            "a control has a bound that something bad must meet, and no rate",
        );
    }
    if let Some(flake) = rule.flake.filter(|flake| !(*flake > 0.0 && *flake < 1.0)) {
        return wrong(
            "flake",
            &format!("{flake} is not a rate; expected a number between 0 and 1"),
        );
    }
    let found = match (&rule.flake, &rule.calibration) {
        (Some(_), Some(_)) if rule.require.is_empty() => None,
        (None, None) => None,
        (Some(_), Some(_)) => Some(("flake", "'require' is given too")),
        (Some(_), None) => Some(("flake", "'calibration' is missing")),
        (None, Some(_)) => Some(("calibration", "'flake' is missing")),
    };
    if let Some((key, found)) = found {
        let why = format!("'flake' and 'calibration' stand together, in place of 'require': {found}");
        return wrong(key, &why);
    }
    // A bound that is calibrated points the right way by itself.
    if rule.flake.is_none() {
        let bound = Bound::from_str(&rule.require).and_then(|bound| direction::check_rule(metric, bound, rule));
        bound.map_err(|message| Mistake::at("require", message).of("gate"))?;
    }
    let sequential = rule.statistic == Statistic::Sequential;
    if sequential && (rule.at.contains('*') || rule.flake.is_some()) {
        let decides = "statistic = \"sequential\" decides on one place and a stated bound";
        return wrong("statistic", &format!("{decides}, not on '{}'", rule.at));
    }
    let of_one_text = |window: &Window| window.draw.is_some() && window.text == windows[0].text;
    if sequential && (!windows.iter().all(of_one_text) || plan.by_case()) {
        let takes = "statistic = \"sequential\" takes windows that are drawn from one text";
        return wrong("statistic", &format!("{takes}: draws = N in one [[window]]"));
    }
    if !plan.phases.contains(&rule.phase) {
        return wrong("phase", &format!("the experiment has no {} phase", rule.phase));
    }
    if rule.why.trim().is_empty() {
        return wrong("why", "why is empty, expected the reason of its bound");
    }
    if rule.recipes.is_empty() {
        return wrong("recipes", "recipes = [] binds no recipe; expected patterns of names");
    }
    let recipes = || plan.measured_in(rule.phase);
    let idle = |pattern: &String| !recipes().any(|name| matches(pattern, name));
    if let Some(at) = rule.recipes.iter().position(idle) {
        let (pattern, phase) = (&rule.recipes[at], rule.phase);
        let other = plan.recipes.iter().find(|recipe| matches(pattern, &recipe.name));
        let message = match other.map(|recipe| &recipe.name) {
            Some(other) => {
                format!("'{pattern}' matches no recipe of the {phase} phase: '{other}' has the other one only")
            }
            None => matches_nothing("recipe", pattern, recipes()),
        };
        return Err(Mistake::new(message).of("gate").within("recipes", at));
    }
    if !rule.at.contains("**") {
        // One layer represents all.
        let layered = rule.at.strip_prefix("layers.").and_then(|rest| rest.split_once('.'));
        let at = layered.map_or(rule.at.clone(), |(_, name)| format!("layers.0.{name}"));
        (experiment.site)(&at).map_err(|message| Mistake::at("at", message).of("gate"))?;
    }
    (experiment.metric)(rule, metric).map_err(|mistake| mistake.of("gate"))
}
