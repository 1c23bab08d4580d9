//! Rules, and what they say of a run.

mod failures;

pub use failures::{Failed, Failures, explain};

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::metrics::Bound;
use crate::pattern::matches;
use crate::record::place;
use crate::sweep::experiment::{Rule, Statistic};
use crate::sweep::summary::Summary;

/// One rule judged on one recipe.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    pub rule: Rule,
    pub recipe: String,
    pub pass: bool,
    /// The statistic the bound is compared with: the worst over layers.
    #[serde(with = "crate::record::nullable")]
    pub value: f64,
    /// Layer the value is from.
    pub layer: Option<u32>,
    /// A sentence: what was measured where, against which bound.
    pub message: String,
    /// What [`explain`] says of a rule that does not hold.
    #[serde(default)]
    pub failures: Failures,
}

/// Judges every rule on every recipe it binds. A rule that finds nothing measured where it looks is an error.
pub fn judge(rules: &[(&Rule, Vec<&str>)], summaries: &[Summary]) -> Result<Vec<Verdict>, String> {
    let mut verdicts = Vec::new();
    for (rule, recipes) in rules {
        let bound = Bound::from_str(&rule.require)?;
        for recipe in recipes {
            let (metric, at, phase) = (&rule.metric, &rule.at, rule.phase);
            let worst = worst(rule, bound, recipe, summaries).ok_or_else(|| {
                format!("gate on {metric} at '{at}' ({phase}): nothing was measured there for '{recipe}'")
            })?;
            verdicts.push(verdict(rule, bound, recipe, worst));
        }
    }
    Ok(verdicts)
}

/// The summary furthest on the wrong side of the bound among those the rule looks at.
fn worst<'a>(rule: &Rule, bound: Bound, recipe: &str, summaries: &'a [Summary]) -> Option<&'a Summary> {
    summaries
        .iter()
        .filter(|s| {
            s.recipe == recipe
                && s.phase == rule.phase
                && s.metric == rule.metric
                && matches(&rule.at, &place(s.layer, &s.site))
        })
        .reduce(|a, b| {
            if bound.worse(rule.statistic.of(b), rule.statistic.of(a)) {
                b
            } else {
                a
            }
        })
}

fn verdict(rule: &Rule, bound: Bound, recipe: &str, worst: &Summary) -> Verdict {
    let value = rule.statistic.of(worst);
    let pass = bound.admits(value);
    let message = format!(
        "{recipe}: {} of {} at {} ({}) is {value:.6}, required {}",
        rule.statistic.name(),
        rule.metric,
        place(worst.layer, &worst.site),
        rule.phase,
        rule.require,
    );
    Verdict {
        rule: rule.clone(),
        recipe: recipe.to_string(),
        pass,
        value,
        layer: worst.layer,
        message,
        failures: Failures::default(),
    }
}

impl Statistic {
    pub fn of(self, summary: &Summary) -> f64 {
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
}
