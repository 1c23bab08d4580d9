//! Failures of a rule (gate or control): lists the measurements that violate the rule, worst first.

use std::str::FromStr;

use super::binds_always;
use crate::run::verdict::{FailedMeasurement, Failures, Verdict};
use ulplab_core::list::grouped;
use ulplab_core::metrics::{Bound, MAX_ABS};
use ulplab_core::record::{Failure, Record, Worst, place};

/// Number of cells (one recipe, phase and window) shown for a failed rule, and number of measurements shown for each cell.
const CELLS: usize = 5;
const OF_CELL: usize = 3;

/// If the rule failed, stores in its verdict the measurements that violate the rule. `records` are the records of the verdict's
/// recipe.
pub fn explain(verdict: &mut Verdict, records: &[&Record]) {
    if let Ok(bound) = Bound::from_str(&verdict.rule.require)
        && verdict.fails()
    {
        verdict.failures = failures(verdict, bound, records);
        // If the recipe did not run, the verdict has no numbers: begin the message with the reason.
        let first = verdict.failures.worst.first().filter(|failed| failed.value.is_nan());
        if let Some(why) = first.and_then(not_run) {
            verdict.message = format!("{why}: {}", verdict.message);
        }
        // A failed control means that the recipe measured too well: do not list its worst elements, which explain nothing.
        if verdict.consequence().is_some() {
            verdict.failures = Failures::default();
        }
    }
}

/// Returns the first clause of the reason why a cell has no outputs; `None` for a failure of a cell that ran.
fn not_run(failed: &FailedMeasurement) -> Option<String> {
    let message = &failed.failure.message;
    let said = message.lines().next()?.split("; ").next()?;
    // A program's message begins with the program's name in quotation marks.
    let said = said
        .strip_prefix('\'')
        .and_then(|rest| rest.split_once("' "))
        .map_or(said, |(_, said)| said);
    match failed.site.as_str() {
        "program" if said.starts_with("left ") => Some(format!("nothing to judge, it {said}")),
        "program" | "launch" | "inputs" => Some(format!("did not run: {said}")),
        _ => None,
    }
}

fn failures(verdict: &Verdict, bound: Bound, records: &[&Record]) -> Failures {
    let rule = &verdict.rule;
    let mut wrong: Vec<&Record> = records.to_vec();
    wrong.retain(|record| {
        let at = || {
            let named = rule.looks_at(&record.metric, record.layer, &record.site);
            named || record.value != 0.0 && binds_always(rule, &record.site, &record.metric, record.value)
        };
        record.phase == rule.phase && !bound.admits(record.value) && at()
    });
    wrong.sort_by(|a, b| bound.worse(b.value, a.value).cmp(&bound.worse(a.value, b.value)));
    let cells = grouped(wrong.into_iter().map(|record| (&record.cell, record)));
    let shown = cells.iter().take(CELLS);
    let shown = shown.flat_map(|(_, wrong)| wrong.iter().take(OF_CELL));
    Failures {
        worst: shown.map(|record| failed(record, &rule.require, records)).collect(),
        cells: cells.len(),
    }
}

fn failed(record: &Record, require: &str, records: &[&Record]) -> FailedMeasurement {
    let failure = record.failure.as_deref().cloned();
    FailedMeasurement {
        cell: record.cell.clone(),
        window: record.window.clone(),
        layer: record.layer,
        site: record.site.clone(),
        value: record.value,
        n: record.n,
        failure: failure.unwrap_or_else(|| of_metric(record, require, records)),
    }
}

/// Describes in a sentence how a record violates the bound `require`, with the worst element if one was recorded.
fn of_metric(record: &Record, require: &str, records: &[&Record]) -> Failure {
    let same = |other: &&&Record| {
        other.cell == record.cell
            && other.layer == record.layer
            && other.site == record.site
            && other.metric == MAX_ABS.name
    };
    let of_site = || records.iter().find(same).and_then(|other| other.worst.clone());
    let worst = record.worst.clone().or_else(of_site);
    let (place, metric) = (place(record.layer, &record.site), &record.metric);
    let value = super::beside(require, digits(record.value), record.value);
    let mut message = format!("{place}: {metric} is {value}, required {require}");
    if let Some(Worst { index, want, got }) = &worst {
        let index: Vec<String> = index.iter().map(u64::to_string).collect();
        let (index, want, got) = (index.join(","), digits(*want), digits(*got));
        message += &format!("; furthest off is [{index}]: want {want}, got {got}");
    }
    Failure {
        message,
        worst,
        ..Failure::default()
    }
}

fn digits(x: f64) -> String {
    match x {
        x if x == 0.0 || (1e-4..1e7).contains(&x.abs()) => {
            format!("{x:.6}").trim_end_matches('0').trim_end_matches('.').into()
        }
        x => format!("{x:.3e}"),
    }
}
