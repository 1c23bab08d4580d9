//! Judges the rules (gates and controls) of an experiment on a run. A rule gets one verdict for each recipe to which it applies.

pub mod calibration;
mod check;
mod decided;
pub mod direction;
mod failures;
mod paired;

pub use calibration::resolve;
pub use check::{GateContext, check};
pub use decided::{UntilDecided, check_sequential, records};
pub use paired::{Paired, paired, silent_zone};

use std::collections::HashMap;
use std::str::FromStr;

use crate::experiment::{Rule, Statistic};
use crate::run::summary::{LEAST_WINDOWS, Summary};
use crate::run::verdict::{Failures, Status, Verdict};
use crate::run::{Hindrance, Manifest, by_recipe};
use crate::statistics::{self, Decision, Evidence};
use ulplab_core::error::counted;
use ulplab_core::metrics::{BOUND_RATIO, Better, Bound, VIOLATIONS};
use ulplab_core::record::{Record, place};
use ulplab_core::vacuous::vacuous;

/// A rule (gate or control), and one of the recipes to which it applies.
#[derive(Clone, Debug)]
pub struct Binding<'a> {
    pub rule: &'a Rule,
    pub recipe: &'a str,
    /// Number of planned cells of the recipe in the rule's phase.
    pub planned: usize,
    /// Number of planned cells that were not selected.
    pub left_out: usize,
    /// Verdict and reason in case nothing was measured at the rule's site; `None` if missing measurements are an error.
    pub unmeasured: Option<(Status, String)>,
}

/// Pairs each rule with each recipe to which the rule applies. Recipes without a selected cell are included.
pub fn bind<'m>(manifest: &'m Manifest) -> Vec<Binding<'m>> {
    let (run, left_out) = (counts(&manifest.cells), counts(&manifest.left_out));
    let binding = |rule: &'m Rule, recipe: &'m str| {
        let cells = (recipe, rule.phase.name());
        let [run, left_out] = [&run, &left_out].map(|counts| counts.get(&cells).copied().unwrap_or(0));
        let not_judged = |why: String| Some((Status::NotJudged, why));
        let unmeasured = match manifest.hindered.get(recipe) {
            Some(Hindrance::OtherDevice(why)) => Some((Status::NotForDevice, why.clone())),
            Some(Hindrance::Missing(why)) => not_judged(why.clone()),
            None if run == 0 => not_judged("none of its cells was selected".into()),
            None if manifest.plan.by_case() => not_judged(format!("it takes none of {}", counted(run, "case"))),
            None if left_out > 0 => not_judged(format!(
                "nothing was measured there in {run} of {}, and the others were not selected",
                counted(run + left_out, "cell")
            )),
            None => None,
        };
        Binding {
            rule,
            recipe,
            planned: run + left_out,
            left_out,
            unmeasured,
        }
    };
    let of_rule = |rule: &'m Rule| {
        let bound = manifest.plan.bound_by(rule);
        bound.map(|recipe| binding(rule, recipe)).collect::<Vec<_>>()
    };
    manifest.experiment.gates.iter().flat_map(of_rule).collect()
}

/// Counts the cells of each recipe in each phase.
fn counts(cells: &[String]) -> HashMap<(&str, &str), usize> {
    let mut counts = HashMap::new();
    for id in cells {
        let mut parts = id.splitn(3, '/');
        if let (Some(recipe), Some(phase)) = (parts.next(), parts.next()) {
            *counts.entry((recipe, phase)).or_insert(0) += 1;
        }
    }
    counts
}

impl<'a> Binding<'a> {
    /// Pairs a rule with a recipe, for a run in which all planned cells were measured.
    pub fn whole(rule: &'a Rule, recipe: &'a str) -> Self {
        Self {
            rule,
            recipe,
            planned: 0,
            left_out: 0,
            unmeasured: None,
        }
    }

    /// Judges the rule by the summaries of the recipe.
    fn judge(&self, summaries: &[&Summary]) -> Result<Verdict, String> {
        let rule = self.rule;
        let bound = Bound::from_str(&rule.require)?;
        // Stored gates and calibrated bounds may come from a program version that accepted this bound: check it again.
        vacuous(&rule.metric, bound).map_or(Ok(()), |why| Err(format!("gate on {why}")))?;
        let here = summaries.iter().copied().filter(|s| {
            let at = rule.looks_at(&s.metric, s.layer, &s.site);
            let wrong = !(s.min == 0.0 && s.max == 0.0);
            s.phase == rule.phase && (at || wrong && binds_always(rule, &s.site, &s.metric, s.mean))
        });
        if rule.statistic == Statistic::Sequential
            && let Some(verdict) = self.decided(bound, here.clone())
        {
            return Ok(verdict);
        }
        // Separate the summaries whose statistic is undefined (`thin`), for example with too few windows. NaN counts as defined:
        // it fails with any number of windows.
        let (thin, firm): (Vec<&Summary>, Vec<&Summary>) = here.partition(|s| rule.statistic.undefined(s).is_some());
        let worst = worst(rule.statistic, bound.better, firm.into_iter());
        if let Some(worst) = worst.filter(|worst| !bound.admits(rule.statistic.value(worst))) {
            let control = if rule.control { "control fails: " } else { "" };
            let message = format!("{control}{}", measured(rule, worst));
            return Ok(self.verdict(Status::Fail, Some(worst), message));
        }
        if let Some(why) = thin.first().and_then(|first| rule.statistic.undefined(first)) {
            return Ok(self.verdict(Status::NotJudged, None, why));
        }
        match (worst, &self.unmeasured) {
            (Some(worst), _) if self.left_out > 0 => {
                let (run, planned, measured) = (self.planned - self.left_out, self.planned, measured(rule, worst));
                let why = format!("holds on {run} of {planned} cells, and the others were not selected: {measured}");
                Ok(self.verdict(Status::NotJudged, Some(worst), why))
            }
            (Some(worst), _) => Ok(self.verdict(Status::Pass, Some(worst), measured(rule, worst))),
            (None, Some((status, why))) => Ok(self.verdict(*status, None, why.clone())),
            (None, None) => Err(format!(
                "gate on {} at '{}' ({}): nothing was measured there for '{}'",
                rule.metric, rule.at, rule.phase, self.recipe
            )),
        }
    }

    /// Returns the verdict of a sequential test, which is valid after every window. Returns `None` if nothing was measured or the
    /// mean is NaN; the caller then judges the rule in the same way as rules with other statistics.
    fn decided<'s>(&self, bound: Bound, mut here: impl Iterator<Item = &'s Summary>) -> Option<Verdict> {
        // A sequential rule applies to exactly one site.
        let found = here.next().filter(|s| !s.mean.is_nan())?;
        let lower = bound.better == Better::Lower;
        let (decision, windows, evidence) = found.decide(bound.value, lower);
        let status = match decision {
            // The mean over all windows must also meet the bound: windows after the decision may have moved the mean.
            Decision::Right if self.left_out == 0 && bound.admits(found.mean) => Status::Pass,
            Decision::Wrong => Status::Fail,
            // An infinite value ends the test without a decision, but it may violate the bound.
            Decision::Undecided if !bound.admits(found.mean) && found.mean.is_infinite() => Status::Fail,
            // Either the test is undecided, or it decided that the bound holds, but this decision does not count: windows were
            // left out (the test is valid only for the whole sequence of draws), or the mean over all windows violates the
            // bound.
            Decision::Right | Decision::Undecided => Status::NotJudged,
        };
        let (above, below) = (evidence.against_above, evidence.against_below);
        let (for_it, against_it) = if lower { (above, below) } else { (below, above) };
        let (enough, most, after) = (Evidence::ENOUGH, for_it.max(against_it), counted(windows, "window"));
        let message = match decision {
            Decision::Undecided => format!(
                "undecided after {after}: the evidence is {for_it:.3} for it and {against_it:.3} against, {enough:.0} decides"
            ),
            _ => format!("decided after {after}, evidence {most:.3} of {enough:.0}"),
        };
        let message = format!("{message}: {}", measured(self.rule, found));
        Some(Verdict {
            windows: windows as u32,
            ..self.verdict(status, Some(found), message)
        })
    }

    fn verdict(&self, status: Status, worst: Option<&Summary>, message: String) -> Verdict {
        Verdict {
            rule: self.rule.clone(),
            recipe: self.recipe.to_string(),
            status,
            value: worst.map_or(f64::NAN, |worst| self.rule.statistic.value(worst)),
            site: worst.map(|worst| worst.site.clone()),
            layer: worst.and_then(|worst| worst.layer),
            window: None,
            windows: worst.map_or(0, |worst| worst.windows),
            message,
            failures: Failures::default(),
        }
    }
}

/// Returns the summary (statistics over windows at one layer and site) with the worst value of the statistic.
pub fn worst<'s>(
    statistic: Statistic,
    better: Better,
    summaries: impl Iterator<Item = &'s Summary>,
) -> Option<&'s Summary> {
    let bound = Bound { better, value: 0.0 };
    let worse = |a, b| bound.worse(statistic.value(a), statistic.value(b));
    summaries.reduce(|a, b| if worse(b, a) { b } else { a })
}

/// Judges every rule on every recipe to which it applies, and returns one verdict for each binding (pair of a rule and a recipe).
/// Returns an error if nothing was measured at a rule's site, unless [`Binding::unmeasured`] gives a reason.
pub fn judge(bindings: &[Binding], summaries: &[Summary]) -> Result<Vec<Verdict>, String> {
    let of = by_recipe(summaries, |summary| &summary.recipe);
    let verdict = |binding: &Binding| binding.judge(of.get(binding.recipe).map_or(&[], Vec::as_slice));
    bindings.iter().map(verdict).collect()
}

/// Completes verdicts from the records: withdraws a pass if too few elements were compared, finds the window of each value, and
/// lists the measurements that violate each failed rule.
pub fn explain(verdicts: &mut [Verdict], records: &[Record]) {
    let of = by_recipe(records, |record| &record.recipe);
    for verdict in verdicts {
        let here = of.get(verdict.recipe.as_str()).map_or(&[][..], Vec::as_slice);
        withhold(verdict, here);
        locate(verdict, here);
        failures::explain(verdict, here);
    }
}

/// Name of the metric that counts elements that are NaN or infinite.
pub const NONFINITE: &str = "nonfinite";

/// Replaces a pass by "not judged" if no elements were compared, or if so few were compared that the bound would allow all of
/// them to be wrong.
fn withhold(verdict: &mut Verdict, records: &[&Record]) {
    let rule = &verdict.rule;
    let of_outputs = [VIOLATIONS.name, BOUND_RATIO.name].contains(&rule.metric.as_str());
    if !verdict.passes() || !of_outputs && rule.metric != NONFINITE {
        return;
    }
    let here = records.iter().filter(|record| {
        let at = rule.looks_at(&record.metric, record.layer, &record.site);
        record.phase == rule.phase && at && !CHECKS.contains(&&*record.site)
    });
    let elements = here.map(|record| record.n).max().unwrap_or(0);
    // `nonfinite` counts the elements of both tensors, the expected one and the measured one.
    let most = match rule.metric.as_str() {
        name if name == VIOLATIONS.name => elements as f64,
        NONFINITE => 2.0 * elements as f64,
        _ => f64::INFINITY,
    };
    let idle = Bound::from_str(&rule.require).is_ok_and(|bound| bound.better == Better::Lower && bound.value >= most);
    let why = match elements {
        0 if of_outputs => format!("no element was compared at '{}': its outputs are empty", rule.at),
        1.. if idle => format!(
            "no measurement can break {} {}: what it judges has {} at most",
            rule.metric,
            rule.require,
            counted(elements as usize, "element")
        ),
        _ => return,
    };
    (verdict.status, verdict.message) = (Status::NotJudged, why);
}

/// Sites of records about faults other than wrong outputs: the kernel did not run, wrote outside its outputs, or gave different
/// results in a second run.
pub const CHECKS: [&str; 9] = [
    "program", "launch", "inputs", "guards", "rerun", "graph", "batch", "large", "draws",
];

/// True if the rule also judges this record, although the rule's `at` names another site. These are records of faults that one
/// of the [`CHECKS`] counts as violations, such as a write outside the outputs. Thus a rule on violations fails even if all
/// outputs are within bounds. If the program did not run, the value is NaN, and every rule fails.
fn binds_always(rule: &Rule, site: &str, metric: &str, value: f64) -> bool {
    metric == VIOLATIONS.name && CHECKS.contains(&site) && (rule.metric == metric || value.is_nan())
}

/// Sets the window of a verdict whose value is the minimum or maximum over windows: finds the record with this value. `records`
/// are the records of the verdict's recipe.
fn locate(verdict: &mut Verdict, records: &[&Record]) {
    let of_one = matches!(verdict.rule.statistic, Statistic::Min | Statistic::Max);
    let here = |record: &&&Record| {
        record.phase == verdict.rule.phase
            && record.layer == verdict.layer
            && Some(&record.site) == verdict.site.as_ref()
            && (record.metric == verdict.rule.metric
                || binds_always(&verdict.rule, &record.site, &record.metric, record.value))
            && (record.value == verdict.value || record.value.is_nan() && verdict.value.is_nan())
    };
    let found = records.iter().find(here).filter(|_| of_one);
    verdict.window = found.map(|record| record.window.clone());
}

/// Describes the measurement, its layer and site, and the bound.
fn measured(rule: &Rule, worst: &Summary) -> String {
    let over = match rule.statistic.is_interval() || rule.statistic == Statistic::Sequential {
        true => format!(" over {}", counted(worst.windows as usize, "window")),
        false => String::new(),
    };
    let calibrated = match rule.flake {
        Some(flake) => format!(" (calibrated: at most {flake:e} false alarms)"),
        None => String::new(),
    };
    let (statistic, metric, phase, require) = (rule.statistic.name(), &worst.metric, rule.phase, &rule.require);
    let (place, value) = (place(worst.layer, &worst.site), rule.statistic.value(worst));
    let value = beside(require, format!("{value:.6}"), value);
    format!("{statistic} of {metric} at {place} ({phase}){over} is {value}, required {require}{calibrated}")
}

/// Formats a value that is shown next to its bound. Returns `text` (the formatted value), or more digits of the value if `text`
/// does not show on which side of the bound it is ([`Bound::beside`]).
pub fn beside(require: &str, text: String, value: f64) -> String {
    match require.parse::<Bound>() {
        Ok(bound) => bound.beside(text, value),
        Err(_) => text,
    }
}

impl Statistic {
    pub fn value(self, summary: &Summary) -> f64 {
        match self {
            Self::Mean | Self::Sequential => summary.mean,
            Self::Min => summary.min,
            Self::Max => summary.max,
            Self::CiLow => summary.ci_low,
            Self::CiHigh => summary.ci_high,
            Self::LimitLow => summary.limits().map_or(f64::NAN, |limits| limits.low),
            Self::LimitHigh => summary.limits().map_or(f64::NAN, |limits| limits.high),
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Mean | Self::Sequential => "mean",
            Self::Min => "min",
            Self::Max => "max",
            Self::CiLow => "lower 95 % bound",
            Self::CiHigh => "upper 95 % bound",
            Self::LimitLow => "lower limit",
            Self::LimitHigh => "upper limit",
        }
    }

    /// True if the statistic is a confidence limit, which needs several windows.
    pub fn is_interval(self) -> bool {
        matches!(self, Self::CiLow | Self::CiHigh | Self::LimitLow | Self::LimitHigh)
    }

    /// Returns the reason why the statistic is undefined (too few windows, or too many equal values); `None` if it is defined. A
    /// statistic of values that are not finite counts as defined, so that the gate fails.
    fn undefined(self, summary: &Summary) -> Option<String> {
        let (windows, place, least) = (
            summary.windows,
            place(summary.layer, &summary.site),
            statistics::LEAST_WINDOWS,
        );
        let were = if windows == 1 { "was" } else { "were" };
        let why = match self {
            Self::CiLow | Self::CiHigh if windows < LEAST_WINDOWS && !summary.mean.is_nan() => {
                format!("an interval needs at least {LEAST_WINDOWS} windows, and one was measured at {place}")
            }
            Self::LimitLow | Self::LimitHigh if !summary.mean.is_finite() || summary.limits().is_some() => return None,
            Self::LimitLow | Self::LimitHigh if (windows as usize) < least => {
                format!("a limit needs at least {least} windows, and {windows} {were} measured at {place}")
            }
            Self::LimitLow | Self::LimitHigh => {
                format!("{windows} windows at {place} set no limit: too many of their values are equal")
            }
            _ => return None,
        };
        Some(why)
    }
}
