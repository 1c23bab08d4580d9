//! Checks that a model has the site (named tensor) of a gate (pass/fail check), and that the gate's metric is measured there.
//! The model's weights are read only after this check.

use reference::paths::Config;
use reference::sites::{Decision, Flow};
use reference::{SiteInfo, SiteKind};

use crate::experiment::{Mistake, Rule};
use ulplab_core::metrics::{Eval, Metric};
use ulplab_core::pattern::{matches, matches_nothing};
use ulplab_core::record::{Phase, place};

/// Checks that a gate's pattern matches a site of this model, and that its metric is measured at such a site.
pub fn check(rule: &Rule, metric: &Metric, config: &dyn Config) -> Result<(), Mistake> {
    let name = |site: &SiteInfo, layer: Option<usize>| place(layer.map(|layer| layer as u32), site.name);
    let places = config.places().into_iter();
    let places: Vec<(&SiteInfo, String)> = places.map(|(site, layer)| (site, name(site, layer))).collect();
    let mut here = places.iter().filter(|(_, place)| matches(&rule.at, place)).peekable();
    if here.peek().is_none() {
        let names = places.iter().map(|(_, place)| &place[..]);
        let nothing = matches_nothing("site of the model", &rule.at, names);
        let message = format!("{nothing}; its layers are 0 to {}", config.layers().saturating_sub(1));
        return Err(Mistake::at("at", message));
    }
    let has = |site: &SiteInfo| has(site, metric, rule.phase);
    let measured = here.any(|(site, _)| has(site));
    let others = places.iter().filter(|(site, _)| has(site));
    let mut others: Vec<&str> = others.map(|(site, _)| site.name).collect();
    others.dedup();
    let others = match others.is_empty() {
        true => format!("nowhere in a model's {} phase", rule.phase),
        false => others.join(", "),
    };
    let message = format_args!("{} is not measured at '{}'; measured at {others}", metric.name, rule.at);
    Mistake::refuse(!measured, "metric", message)
}

/// True if a metric is measured at a site.
fn has(site: &SiteInfo, metric: &Metric, phase: Phase) -> bool {
    let choice = matches!(site.kind, SiteKind::Choice(_));
    let flow = site.flow;
    match metric.eval {
        Eval::Pair(_) => {
            let kept = site.compared || site.kind == SiteKind::Watch || matches!(flow, Flow::Leaves | Flow::Output);
            kept && !choice
        }
        // In a model, metrics of the kind `Kernel` count flipped predictions, which exist only at the output.
        Eval::Logits(_) | Eval::Kernel => flow == Flow::Output,
        Eval::Choice(_) => choice,
        Eval::Threshold(_) => matches!(site.kind, SiteKind::Choice(Decision::TopK { .. })),
        Eval::Gain(_) => flow == Flow::Leaves && phase == Phase::Cumulative,
        Eval::Decisions(_) | Eval::Growth(_) | Eval::History(_) | Eval::RoundTrip(_) => false,
    }
}
