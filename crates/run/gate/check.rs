//! Checks gates (pass/fail checks of a metric at a site) before an experiment runs.

use std::fmt;
use std::str::FromStr;

use super::direction;
use crate::experiment::{Mistake, Rule, Statistic, Window};
use crate::run::plan::Plan;
use ulplab_core::error::did_you_mean;
use ulplab_core::metrics::{Bound, METRICS, Metric};
use ulplab_core::pattern::{matches, matches_nothing};

/// The planned measurements of an experiment. Gates must refer to these measurements.
#[derive(Clone, Copy)]
pub struct GateContext<'a> {
    pub plan: &'a Plan,
    /// Windows of text that the experiment reads.
    pub windows: &'a [Window],
    /// Checks that a pattern matches a site of the model. The caller replaces the layer in the pattern by 0: all layers have the
    /// same sites.
    pub site: &'a dyn Fn(&str) -> Result<(), String>,
    /// Checks that the metric of a gate is measured at the gate's site.
    pub metric: &'a dyn Fn(&Rule, &Metric) -> Result<(), Mistake>,
}

/// Checks gates before an experiment runs.
///
/// # Errors
/// Returns an error with the gate's index if a gate applies to no recipe, if its metric is not measured at its site, or if its
/// bound does not separate good from bad values.
pub fn check(rules: &[Rule], experiment: &GateContext) -> Result<(), Mistake> {
    Mistake::each("gate", rules, |rule| check_rule(rule, experiment)).map(drop)
}

fn check_rule(rule: &Rule, experiment: &GateContext) -> Result<(), Mistake> {
    let GateContext { plan, windows, .. } = *experiment;
    let refuse = |wrong: bool, key: &str, why: fmt::Arguments| {
        Mistake::refuse(wrong, key, format_args!("gate on {}: {why}", rule.metric))
    };
    let Some(metric) = METRICS.iter().find(|metric| metric.name == rule.metric) else {
        let hint = did_you_mean(&rule.metric, METRICS.iter().map(|metric| metric.name));
        return Err(Mistake::at("metric", format!("unknown metric '{}'{hint}", rule.metric)).of("gate"));
    };
    let why = format_args!("a control has a bound that something bad must meet, and no rate");
    refuse(rule.control && rule.flake.is_some(), "flake", why)?;
    if let Some(flake) = rule.flake {
        let why = format_args!("{flake} is not a rate; expected a number between 0 and 1");
        refuse(!(flake > 0.0 && flake < 1.0), "flake", why)?;
    }
    let odd = match (&rule.flake, &rule.calibration) {
        (Some(_), Some(_)) if rule.require.is_empty() => None,
        (None, None) => None,
        (Some(_), Some(_)) => Some(("flake", "'require' is given too")),
        (Some(_), None) => Some(("flake", "'calibration' is missing")),
        (None, Some(_)) => Some(("calibration", "'flake' is missing")),
    };
    let (key, found) = odd.unwrap_or_default();
    let why = format_args!("'flake' and 'calibration' stand together, in place of 'require': {found}");
    refuse(odd.is_some(), key, why)?;
    // Check stated bounds only: a calibrated bound always has the right direction.
    if rule.flake.is_none() {
        let bound = Bound::from_str(&rule.require).and_then(|bound| direction::check_rule(metric, bound, rule));
        bound.map_err(|message| Mistake::at("require", message).of("gate"))?;
    }
    let sequential = rule.statistic == Statistic::Sequential;
    let several = rule.at.contains('*') || rule.flake.is_some();
    let decides = "statistic = \"sequential\" decides on one place and a stated bound";
    let why = format_args!("{decides}, not on '{}'", rule.at);
    refuse(sequential && several, "statistic", why)?;
    let of_one_text = |window: &Window| window.draw.is_some() && window.text == windows[0].text;
    let others = !windows.iter().all(of_one_text) || plan.by_case();
    let takes = "statistic = \"sequential\" takes windows that are drawn from one text";
    let why = format_args!("{takes}: draws = N in one [[window]]");
    refuse(sequential && others, "statistic", why)?;
    let why = format_args!("the experiment has no {} phase", rule.phase);
    refuse(!plan.phases.contains(&rule.phase), "phase", why)?;
    let why = format_args!("why is empty, expected the reason of its bound");
    refuse(rule.why.trim().is_empty(), "why", why)?;
    let why = format_args!("recipes = [] binds no recipe; expected patterns of names");
    refuse(rule.recipes.is_empty(), "recipes", why)?;
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
        // All layers have the same sites: check the pattern at layer 0.
        let layered = rule.at.strip_prefix("layers.").and_then(|rest| rest.split_once('.'));
        let at = layered.map_or(rule.at.clone(), |(_, name)| format!("layers.0.{name}"));
        (experiment.site)(&at).map_err(|message| Mistake::at("at", message).of("gate"))?;
    }
    (experiment.metric)(rule, metric).map_err(|mistake| mistake.of("gate"))
}
