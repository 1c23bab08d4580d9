//! Rules, and their verdicts on a run.

mod bind;
pub mod direction;
mod failures;

pub use bind::bind;
pub use failures::explain;

use std::str::FromStr;

use crate::experiment::{Rule, Statistic};
use crate::run::summary::{LEAST_WINDOWS, Summary};
use crate::run::verdict::{Failures, Status, Verdict};
use ulplab_core::metrics::{Bound, VIOLATIONS};
use ulplab_core::pattern::matches;
use ulplab_core::record::{Record, place};

/// A rule and one of the recipes that it binds.
#[derive(Clone, Debug)]
pub struct Binding<'a> {
    pub rule: &'a Rule,
    pub recipe: &'a str,
    /// Cells of the recipe in the rule's phase that the experiment plans.
    pub planned: usize,
    /// How many of them were not selected.
    pub left_out: usize,
    pub unmeasured: Unmeasured,
}

/// The consequence if nothing was measured at a rule's place.
#[derive(Clone, Debug, PartialEq)]
pub enum Unmeasured {
    /// The rule names a place that is never measured.
    NoSuchPlace,
    /// The rule is not judged, for this reason.
    NotJudged(String),
    /// The recipe cannot run on this device, for this reason.
    NotForDevice(String),
}

impl<'a> Binding<'a> {
    /// The gate in a run with all cells.
    pub fn whole(rule: &'a Rule, recipe: &'a str) -> Self {
        Self {
            rule,
            recipe,
            planned: 0,
            left_out: 0,
            unmeasured: Unmeasured::NoSuchPlace,
        }
    }

    fn judge(&self, summaries: &[Summary]) -> Result<Verdict, String> {
        let rule = self.rule;
        let bound = Bound::from_str(&rule.require)?;
        let here = summaries.iter().filter(|s| {
            let at = s.metric == rule.metric && matches(&rule.at, &place(s.layer, &s.site));
            let wrong = !(s.min == 0.0 && s.max == 0.0);
            s.recipe == self.recipe
                && s.phase == rule.phase
                && (at || wrong && binds_always(rule, &s.site, &s.metric, s.mean))
        });
        // A NaN over one window is a NaN that was measured, and fails.
        let (thin, firm): (Vec<&Summary>, Vec<&Summary>) =
            here.partition(|s| rule.statistic.is_interval() && s.windows < LEAST_WINDOWS && !s.mean.is_nan());
        let worst = firm.into_iter().reduce(|a, b| {
            if bound.worse(rule.statistic.value(b), rule.statistic.value(a)) {
                b
            } else {
                a
            }
        });
        if let Some(worst) = worst.filter(|worst| !bound.admits(rule.statistic.value(worst))) {
            return Ok(self.verdict(Status::Fail, Some(worst), measured(rule, worst)));
        }
        if let Some(first) = thin.first() {
            let place = place(first.layer, &first.site);
            let why = format!("an interval needs at least {LEAST_WINDOWS} windows, and one was measured at {place}");
            return Ok(self.verdict(Status::NotJudged, None, why));
        }
        match (worst, &self.unmeasured) {
            (Some(worst), _) if self.left_out > 0 => {
                let (run, planned) = (self.planned - self.left_out, self.planned);
                let why = format!("holds on {run} of {planned} cells, and the others were not selected");
                let message = format!("{why}: {}", measured(rule, worst));
                Ok(self.verdict(Status::NotJudged, Some(worst), message))
            }
            (Some(worst), _) => Ok(self.verdict(Status::Pass, Some(worst), measured(rule, worst))),
            (None, Unmeasured::NotJudged(why)) => Ok(self.verdict(Status::NotJudged, None, why.clone())),
            (None, Unmeasured::NotForDevice(why)) => Ok(self.verdict(Status::NotForDevice, None, why.clone())),
            (None, Unmeasured::NoSuchPlace) => Err(format!(
                "gate on {} at '{}' ({}): nothing was measured there for '{}'",
                rule.metric, rule.at, rule.phase, self.recipe
            )),
        }
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

/// Judges every rule on every recipe it binds: a verdict for each binding. A rule that finds nothing measured where it
/// looks is an error, unless the binding knows why.
pub fn judge(bindings: &[Binding], summaries: &[Summary]) -> Result<Vec<Verdict>, String> {
    bindings.iter().map(|binding| binding.judge(summaries)).collect()
}

/// Site of the records of faults other than wrong outputs: it did not run, wrote where it must not, or left something else
/// when it was run again.
pub const CHECKS: [&str; 8] = [
    "program", "launch", "inputs", "guards", "rerun", "graph", "batch", "large",
];

/// Whether a rule binds what went wrong in a check, whatever its `at` says: outputs that pass say nothing of a kernel that
/// fails one, and there are none of a program that did not run, which is a violation that is NaN and fails every rule.
fn binds_always(rule: &Rule, site: &str, metric: &str, value: f64) -> bool {
    metric == VIOLATIONS.name && CHECKS.contains(&site) && (rule.metric == metric || value.is_nan())
}

/// Finds the window that a verdict's value is from.
pub fn locate(verdict: &mut Verdict, records: &[Record]) {
    let of_one = matches!(verdict.rule.statistic, Statistic::Min | Statistic::Max);
    let here = |record: &&Record| {
        record.recipe == verdict.recipe
            && record.phase == verdict.rule.phase
            && record.layer == verdict.layer
            && Some(&record.site) == verdict.site.as_ref()
            && (record.metric == verdict.rule.metric
                || binds_always(&verdict.rule, &record.site, &record.metric, record.value))
            && (record.value == verdict.value || record.value.is_nan() && verdict.value.is_nan())
    };
    let found = records.iter().find(here).filter(|_| of_one);
    verdict.window = found.map(|record| record.window.clone());
}

/// The measurement, its place, and the bound.
fn measured(rule: &Rule, worst: &Summary) -> String {
    let over = match rule.statistic.is_interval() {
        true => format!(" over {} windows", worst.windows),
        false => String::new(),
    };
    format!(
        "{} of {} at {} ({}){over} is {:.6}, required {}",
        rule.statistic.name(),
        worst.metric,
        place(worst.layer, &worst.site),
        rule.phase,
        rule.statistic.value(worst),
        rule.require,
    )
}

impl Statistic {
    pub fn value(self, summary: &Summary) -> f64 {
        match self {
            Self::Mean => summary.mean,
            Self::Min => summary.min,
            Self::Max => summary.max,
            Self::CiLow => summary.ci_low,
            Self::CiHigh => summary.ci_high,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Mean => "mean",
            Self::Min => "min",
            Self::Max => "max",
            Self::CiLow => "lower 95 % bound",
            Self::CiHigh => "upper 95 % bound",
        }
    }

    /// Whether it is an end of the interval over windows.
    pub fn is_interval(self) -> bool {
        matches!(self, Self::CiLow | Self::CiHigh)
    }
}
