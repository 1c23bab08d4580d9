//! What the gates say of a run: counted once, for all reports.

use std::collections::HashSet;

use super::failures::{self, Line};
use super::index::{self, Index, Quantity};
use super::number;
use super::recipes::{Candidate, Gate, Group, REFERENCE};
use crate::gate::Verdict;
use crate::sweep::experiment::{Rule, Statistic};
use crate::sweep::run::Run;

/// What a run comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Pass,
    Fail,
    /// Cells are missing, so that nothing can be said of the whole.
    Incomplete,
    /// No rule binds any recipe.
    NotJudged,
}

impl Outcome {
    pub fn name(self) -> &'static str {
        match self {
            Self::Pass => "PASS",
            Self::Fail => "FAIL",
            Self::Incomplete => "INCOMPLETE",
            Self::NotJudged => "NOT JUDGED",
        }
    }
}

/// Counts of verdicts; a verdict is one rule judged on one recipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tally {
    pub pass: usize,
    pub fail: usize,
    /// Recipes that no rule binds, the reference left aside.
    pub unbound: usize,
    /// Planned cells without a record.
    pub missing: usize,
    pub complete: bool,
}

impl Tally {
    pub fn new(run: &Run, candidates: &[Candidate]) -> Self {
        let measured: HashSet<&str> = run.records.iter().map(|record| record.cell.as_str()).collect();
        let fail = run.verdicts.iter().filter(|verdict| !verdict.pass).count();
        let unbound = |c: &&Candidate| c.gate == Gate::Unbound && c.group != Group::Reference;
        Self {
            pass: run.verdicts.len() - fail,
            fail,
            unbound: candidates.iter().filter(unbound).count(),
            missing: run
                .manifest
                .cells
                .iter()
                .filter(|cell| !measured.contains(cell.as_str()))
                .count(),
            complete: run.manifest.complete,
        }
    }

    pub fn outcome(&self) -> Outcome {
        match self {
            Self { complete: false, .. } => Outcome::Incomplete,
            Self { fail: 1.., .. } => Outcome::Fail,
            Self { pass: 0, .. } => Outcome::NotJudged,
            _ => Outcome::Pass,
        }
    }

    /// The counts in words, e.g. `7 checks pass, 2 fail; no gate binds 3 recipes`.
    pub fn counts(&self) -> String {
        let plural = |n: usize, noun: &str| format!("{n} {noun}{}", if n == 1 { "" } else { "s" });
        let verb = if self.pass == 1 { "passes" } else { "pass" };
        let mut text = format!("{} {verb}, {} fail", plural(self.pass, "check"), self.fail);
        if self.unbound > 0 {
            text += &format!("; no gate binds {}", plural(self.unbound, "recipe"));
        }
        if !self.complete {
            text += &format!("; {} missing", plural(self.missing, "cell"));
        }
        text
    }

    /// The verdict line: outcome and counts.
    pub fn line(&self) -> String {
        format!("{}: {}", self.outcome().name(), self.counts())
    }
}

/// A verdict in words.
pub struct Check<'a> {
    pub verdict: &'a Verdict,
    /// Rule without its bound, e.g. `cosine at layers.*.output, cumulative`.
    pub rule: String,
    /// Over windows, and over layers where there are any.
    pub statistic: String,
    pub measured: String,
    /// Layer of the measured value.
    pub layer: String,
    /// The reference's own value of the same thing (f32 against f64), if the run has it.
    pub reference: String,
}

impl Check<'_> {
    /// What makes it fail.
    pub fn wrong(&self) -> Vec<Line<'_>> {
        failures::lines(&self.verdict.failures)
    }

    /// How many cells fail besides; empty if none does.
    pub fn more(&self) -> String {
        failures::more(&self.verdict.failures)
    }
}

/// All verdicts, failures first, else in the order they were judged.
pub fn checks<'a>(run: &'a Run, index: &Index) -> Vec<Check<'a>> {
    let mut verdicts: Vec<&Verdict> = run.verdicts.iter().collect();
    verdicts.sort_by_key(|verdict| verdict.pass);
    let check = |verdict: &'a Verdict| {
        let rule = &verdict.rule;
        Check {
            verdict,
            rule: format!("{} at {}, {}", rule.metric, rule.at, rule.phase),
            statistic: statistic(rule),
            measured: number::of_metric(&rule.metric, verdict.value),
            layer: verdict.layer.map_or("—".into(), |layer| layer.to_string()),
            reference: reference(index, rule).map_or("—".into(), |value| number::of_metric(&rule.metric, value)),
        }
    };
    verdicts.into_iter().map(check).collect()
}

fn statistic(rule: &Rule) -> String {
    let windows = match rule.statistic {
        Statistic::Mean => "mean over windows",
        Statistic::Min => "least window",
        Statistic::Max => "greatest window",
        Statistic::CiLow => "lower end of 95 % interval",
        Statistic::CiHigh => "upper end of 95 % interval",
    };
    match rule.at.contains('*') {
        true if rule.at.starts_with("layers.") => format!("{windows}, worst layer"),
        true => format!("{windows}, worst site"),
        false => windows.into(),
    }
}

/// The site of a rule's pattern, if it is one site in all layers or one outside of them.
pub fn site(rule: &Rule) -> &str {
    rule.at.strip_prefix("layers.*.").unwrap_or(&rule.at)
}

/// The number in a rule's `require`.
pub fn bound(rule: &Rule) -> Option<f64> {
    rule.require
        .trim_start_matches(['<', '>', '=', ' '])
        .trim()
        .parse()
        .ok()
}

/// The reference's value at the rule's site, mean over windows, worst over layers.
fn reference(index: &Index, rule: &Rule) -> Option<f64> {
    let mut values = index.means(REFERENCE, Quantity::new(rule.phase, site(rule), &rule.metric));
    if rule.require.trim_start().starts_with('<') {
        values.iter_mut().for_each(|value| *value = -*value);
        index::min(&values).map(|value| -value)
    } else {
        index::min(&values)
    }
}
