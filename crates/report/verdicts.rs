//! Counts and describes the verdicts of a run (results of gates on recipes) for all reports.

use std::collections::HashSet;

use super::index::{self, Index, Quantity};
use super::number;
use super::recipes::{Candidate, Gate, Group, REFERENCE};
use ulplab_core::error::counted;
use ulplab_run::experiment::{Rule, Statistic};
use ulplab_run::gate;
use ulplab_run::run::Run;
pub use ulplab_run::run::verdict::Outcome;
use ulplab_run::run::verdict::{Status, Verdict};

/// Counts of verdicts; a verdict is the result of one rule (gate or control) for one recipe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tally {
    pub outcome: Outcome,
    /// Number of passed checks, without controls.
    pub pass: usize,
    pub fail: usize,
    /// Number of controls that hold. A control checks that a known bad recipe is measured as bad.
    pub controls: usize,
    pub not_judged: usize,
    /// Number of recipes that were not checked because they need another device.
    pub elsewhere: usize,
    /// Number of measured recipes without any gate or control; the reference is not counted.
    pub unbound: usize,
    /// Number of selected cells (recipe, phase and window) without a measurement.
    pub missing: usize,
    pub complete: bool,
    /// Description of the selection of cells; empty if all were selected.
    pub selection: String,
    /// Command-line options that change the settings of the experiment file; empty without such options.
    pub changes: String,
}

impl Tally {
    pub fn new(run: &Run, candidates: &[Candidate]) -> Self {
        let measured: HashSet<&str> = run.records.iter().map(|record| record.cell.as_str()).collect();
        let of = |status| run.verdicts.iter().filter(move |verdict| verdict.status == status);
        let controls = of(Status::Pass).filter(|verdict| verdict.rule.control).count();
        let elsewhere: HashSet<&str> = of(Status::NotForDevice).map(|verdict| &*verdict.recipe).collect();
        let unbound = |c: &&Candidate| c.gate == Gate::Unbound && c.group != Group::Reference;
        let cells = run.manifest.cells.iter();
        Self {
            outcome: run.outcome(),
            pass: of(Status::Pass).count() - controls,
            fail: of(Status::Fail).count(),
            controls,
            not_judged: of(Status::NotJudged).count(),
            elsewhere: elsewhere.len(),
            unbound: candidates.iter().filter(unbound).count(),
            missing: cells.filter(|cell| !measured.contains(cell.as_str())).count(),
            complete: run.manifest.complete,
            selection: selection(run),
            changes: run.manifest.invocation.changes(),
        }
    }

    /// Returns the counts in words, e.g. `7 checks pass, 2 fail; no gate binds 3 recipes`.
    pub fn counts(&self) -> String {
        let verb = |count: usize, one: &'static str, several: &'static str| if count == 1 { one } else { several };
        let (passes, holds) = (verb(self.pass, "passes", "pass"), verb(self.controls, "holds", "hold"));
        let is = verb(self.elsewhere, "is", "are");
        let [checks, controls] = [(self.pass, "check"), (self.controls, "control")].map(|(n, what)| counted(n, what));
        let [unbound, elsewhere] = [self.unbound, self.elsewhere].map(|recipes| counted(recipes, "recipe"));
        let parts = [
            (true, format!("{checks} {passes}, {} fail", self.fail)),
            (self.not_judged > 0, format!(", {} not judged", self.not_judged)),
            (self.controls > 0, format!("; {controls} {holds}")),
            (self.unbound > 0, format!("; no gate binds {unbound}")),
            (self.elsewhere > 0, format!("; {elsewhere} {is} not for this device")),
            (!self.selection.is_empty(), format!("; {}", self.selection)),
            (!self.changes.is_empty(), format!("; changed by {}", self.changes)),
            (!self.complete, format!("; {} missing", counted(self.missing, "cell"))),
        ];
        let said = parts.into_iter().filter(|(said, _)| *said);
        said.map(|(_, part)| part).collect()
    }

    /// Returns the verdict line: outcome and counts.
    pub fn line(&self) -> String {
        format!("{}: {}", self.outcome.name(), self.counts())
    }
}

/// Describes the selection of cells: `2 of 9 cells selected by --only bf16/**`; empty if all are selected.
fn selection(run: &Run) -> String {
    let manifest = &run.manifest;
    let (cells, left_out) = (manifest.cells.len(), manifest.left_out.len());
    let by = match manifest.invocation.selection() {
        options if options.is_empty() => "run".into(),
        options => format!("selected by {options}"),
    };
    match left_out {
        0 => String::new(),
        _ => format!("{cells} of {} {by}", counted(cells + left_out, "cell")),
    }
}

/// A verdict, with its texts for reports.
pub struct Check<'a> {
    pub verdict: &'a Verdict,
    /// Rule without its bound, e.g. `cosine at layers.*.output, cumulative`.
    pub rule: String,
    /// Description of the rule's statistic over windows, e.g. `mean over windows, worst layer`.
    pub statistic: String,
    /// Text with the number of windows if the statistic is the end of a confidence interval; else empty.
    pub over: String,
    pub measured: String,
    /// Layer of the measured value.
    pub layer: String,
    /// Value of the rule's metric for the reference (f32 against f64); `—` if it was not measured.
    pub reference: String,
}

impl Check<'_> {
    /// Returns the verdict in a word or two.
    pub fn label(&self) -> &'static str {
        match self.verdict.status {
            Status::Pass if self.verdict.rule.control => "control holds",
            Status::Pass => "PASS",
            Status::Fail => "FAIL",
            Status::NotJudged => "not judged",
            Status::NotForDevice => "not for this device",
        }
    }

    /// Returns the quantity that is compared with the bound, and the reason for the bound.
    pub fn reason(&self) -> String {
        let own = match self.reference.as_str() {
            "—" => String::new(),
            own => format!("; the reference’s own is {own}"),
        };
        let follows = match self.verdict.consequence() {
            Some(text) => format!("; the control fails: {text}"),
            None => String::new(),
        };
        format!("{}{own}; {}{follows}", self.statistic, self.verdict.rule.why)
    }
}

/// Returns all verdicts: failures first, then rules that were not checked, then the rest. Within each group, verdicts are in the
/// order of the run.
pub fn checks<'a>(run: &'a Run, index: &Index) -> Vec<Check<'a>> {
    let mut verdicts: Vec<&Verdict> = run.verdicts.iter().collect();
    verdicts.sort_by_key(|verdict| verdict.status);
    let check = |verdict: &'a Verdict| {
        let rule = &verdict.rule;
        Check {
            verdict,
            rule: format!("{} at {}, {}", rule.metric, rule.at, rule.phase),
            statistic: statistic(rule),
            over: match rule.statistic.is_interval() && verdict.windows > 0 {
                true => format!(", {}", counted(verdict.windows as usize, "window")),
                false => String::new(),
            },
            measured: match (verdict.windows, verdict.value) {
                (0, _) => "—".into(),
                (_, value) => gate::beside(&rule.require, number::of_metric(&rule.metric, value), value),
            },
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
        Statistic::LimitLow => "lower limit, 95 %",
        Statistic::LimitHigh => "upper limit, 95 %",
        Statistic::Sequential => "mean, decided by evidence",
    };
    match rule.at.contains('*') {
        true if rule.at.starts_with("layers.") => format!("{windows}, worst layer"),
        true => format!("{windows}, worst site"),
        false => windows.into(),
    }
}

/// Returns the site that a rule names, without the prefix `layers.*.`, which selects all layers.
pub fn site(rule: &Rule) -> &str {
    rule.at.strip_prefix("layers.*.").unwrap_or(&rule.at)
}

/// Returns the reference's value of the rule's metric at the rule's site: the mean over windows in the layer where this mean is
/// worst.
fn reference(index: &Index, rule: &Rule) -> Option<f64> {
    let values = index.means(REFERENCE, Quantity::new(rule.phase, site(rule), &rule.metric));
    match rule.require.trim_start().starts_with('<') {
        true => values.into_iter().reduce(number::larger),
        false => index::min(&values),
    }
}
