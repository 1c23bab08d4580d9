//! Changes of verdicts and gates between two runs.

use std::str::FromStr;

use serde::Serialize;

use super::Check;
use crate::experiment::Rule;
use crate::run::Run;
use crate::run::plan::REFERENCE;
use crate::run::verdict::{Status, Verdict};
use ulplab_core::list::grouped;
use ulplab_core::metrics::Bound;

/// A verdict whose status changed. `base` or `new` is `None` if that run has no such verdict.
#[derive(Debug, Serialize)]
pub struct ChangedVerdict {
    pub recipe: String,
    /// The gate with its bound in NEW; with its bound in BASE if NEW does not have the gate.
    pub gate: String,
    pub base: Option<Status>,
    pub new: Option<Status>,
    /// The message in NEW, or the reason why NEW has no verdict.
    pub message: String,
}

/// A gate of BASE that NEW removed or relaxed for some recipes.
#[derive(Debug, Serialize)]
pub struct LoosenedGate {
    /// The gate with its bound in BASE.
    pub gate: String,
    pub recipes: Vec<String>,
    /// The bound in NEW; `None` if the gate was removed.
    pub now: Option<String>,
}

/// The counterpart in NEW of a verdict of BASE: the verdict on the same recipe and statistic, or the reason why NEW has none.
pub enum Counterpart<'a> {
    Kept(&'a Verdict),
    /// NEW has the gate, but not the recipe.
    NoRecipe,
    /// NEW does not apply the gate to the recipe.
    Removed,
}

/// Formats a gate in short, as in `min of cosine at layers.*.output (local) >= 0.99`.
pub fn text(rule: &Rule) -> String {
    let control = if rule.control { ", a control" } else { "" };
    let (statistic, metric, at, phase) = (rule.statistic.name(), &rule.metric, &rule.at, rule.phase);
    format!("{statistic} of {metric} at {at} ({phase}{control}) {}", rule.require)
}

fn bound(rule: &Rule) -> Option<Bound> {
    Bound::from_str(&rule.require).ok()
}

/// True if two rules (gates) bound the same statistic of the same metric from the same side.
pub fn alike(a: &Rule, b: &Rule) -> bool {
    let of = |rule: &Rule| {
        let side = bound(rule).map(|bound| bound.better);
        (rule.statistic, rule.phase, rule.control, side)
    };
    a.metric == b.metric && a.at == b.at && of(a) == of(b)
}

/// True if `a` accepts a number that `b` rejects.
fn looser(a: &Rule, b: &Rule) -> bool {
    match (bound(a), bound(b)) {
        (Some(a), Some(b)) => b.worse(a.value, b.value),
        _ => a.require != b.require,
    }
}

/// Finds the verdict in `others` on the same recipe and statistic. If several match, prefers the same bound, then the strictest
/// bound.
fn partner<'a>(verdict: &Verdict, others: &'a [Verdict]) -> Option<&'a Verdict> {
    let same = |other: &&Verdict| other.recipe == verdict.recipe && alike(&other.rule, &verdict.rule);
    let exact = |other: &&Verdict| other.rule.require == verdict.rule.require;
    let strictest = |a: &'a Verdict, b: &'a Verdict| if looser(&a.rule, &b.rule) { b } else { a };
    let found = others.iter().filter(same).find(exact);
    found.or_else(|| others.iter().filter(same).reduce(strictest))
}

/// Returns every verdict of BASE with its counterpart in NEW.
pub fn counterparts<'a>(base: &'a Run, new: &'a Run) -> Vec<(&'a Verdict, Counterpart<'a>)> {
    let recipes = &new.manifest.recipes;
    let has = |name: &str| name == REFERENCE || recipes.iter().any(|recipe| recipe.name == name);
    let stated = |rule: &Rule| new.manifest.experiment.gates.iter().any(|other| alike(other, rule));
    let counterpart = |verdict: &'a Verdict| match partner(verdict, &new.verdicts) {
        Some(kept) => Counterpart::Kept(kept),
        None if stated(&verdict.rule) && !has(&verdict.recipe) => Counterpart::NoRecipe,
        None => Counterpart::Removed,
    };
    let verdicts = base.verdicts.iter();
    verdicts.map(|verdict| (verdict, counterpart(verdict))).collect()
}

/// Returns the gates of BASE that NEW removed or relaxed. A gate has one entry with all recipes for which it changed in the same
/// way.
pub fn loosened(counterparts: &[(&Verdict, Counterpart)]) -> Vec<LoosenedGate> {
    let mut found = Vec::new();
    for (verdict, counterpart) in counterparts {
        let now = match counterpart {
            Counterpart::Kept(new) if looser(&new.rule, &verdict.rule) => Some(new.rule.require.clone()),
            Counterpart::Removed => None,
            Counterpart::Kept(_) | Counterpart::NoRecipe => continue,
        };
        found.push(((text(&verdict.rule), now), verdict.recipe.clone()));
    }
    let gates = grouped(found).into_iter();
    let gates = gates.map(|((gate, now), recipes)| LoosenedGate { gate, recipes, now });
    gates.collect()
}

/// Returns the verdicts whose status changed (first new failures, then verdicts that are no longer judged, then the others), and
/// the number of unchanged verdicts.
pub fn moved(counterparts: &[(&Verdict, Counterpart)], base: &Run, new: &Run) -> (Vec<ChangedVerdict>, usize) {
    let mut moved = Vec::new();
    let mut same = 0;
    for (verdict, counterpart) in counterparts {
        let (now, message) = match counterpart {
            Counterpart::Kept(new) if new.status == verdict.status => {
                same += 1;
                continue;
            }
            Counterpart::Kept(new) => (Some(*new), new.message.clone()),
            Counterpart::NoRecipe => (None, "NEW does not have the recipe".into()),
            Counterpart::Removed => (None, "NEW does not hold the recipe to this gate".into()),
        };
        moved.push(ChangedVerdict {
            recipe: verdict.recipe.clone(),
            gate: text(&now.unwrap_or(*verdict).rule),
            base: Some(verdict.status),
            new: now.map(|now| now.status),
            message,
        });
    }
    let added = new.verdicts.iter().filter(|now| partner(now, &base.verdicts).is_none());
    moved.extend(added.map(|now| ChangedVerdict {
        recipe: now.recipe.clone(),
        gate: text(&now.rule),
        base: None,
        new: Some(now.status),
        message: now.message.clone(),
    }));
    moved.sort_by_key(|moved| match moved.new {
        Some(Status::Fail) => 0,
        Some(Status::NotJudged | Status::NotForDevice) => 1,
        None => 2,
        Some(Status::Pass) => 3,
    });
    (moved, same)
}

/// Returns the results of the two gates that apply to every comparison; none if BASE has no verdicts. In NEW, each passing
/// verdict of BASE must still pass, and no gate of BASE may be removed or relaxed.
pub fn checks(counterparts: &[(&Verdict, Counterpart)]) -> Vec<Check> {
    let passing = || {
        let passing = counterparts.iter().filter(|(verdict, _)| verdict.passes());
        passing.filter(|(_, counterpart)| !matches!(counterpart, Counterpart::Removed))
    };
    let kept = |counterpart: &Counterpart, which: fn(&Verdict) -> bool| matches!(counterpart, Counterpart::Kept(new) if which(new));
    let count = |which| passing().filter(|(_, counterpart)| kept(counterpart, which)).count();
    let (all, pass, fail) = (passing().count(), count(Verdict::passes), count(Verdict::fails));
    let unknown = all - pass - fail;
    // A control (a gate that holds if a bad recipe measures as bad) does not count as a pass.
    let holds = |(verdict, now): &(&Verdict, Counterpart)| !verdict.rule.control && kept(now, Verdict::passes);
    let judging = passing().any(holds);
    let loosened = loosened(counterparts);
    let weaker: usize = loosened.iter().map(|loosened| loosened.recipes.len()).sum();
    if counterparts.is_empty() {
        return Vec::new();
    }
    let check = |gate: &str, status, message: String| Check {
        gate: gate.into(),
        why: String::new(),
        status,
        message,
        worst: None,
    };
    let fails = if fail == 1 { "fails" } else { "fail" };
    let was = if unknown == 1 { "was" } else { "were" };
    let passed = check(
        "a check that passes in BASE passes in NEW",
        match (fail, unknown) {
            (1.., _) => Status::Fail,
            (0, 0) if judging => Status::Pass,
            _ => Status::NotJudged,
        },
        format!("{all} passed in BASE; of these {fail} {fails} in NEW, {unknown} {was} not judged"),
    );
    let all = counterparts.len();
    let (status, message) = match weaker {
        0 => (Status::Pass, "none is".into()),
        _ => (
            Status::Fail,
            format!("in NEW, {weaker} of {all} verdicts of BASE have a weaker gate or none"),
        ),
    };
    vec![passed, check("no gate of BASE is removed or relaxed", status, message)]
}
