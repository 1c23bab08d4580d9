//! Prints comparisons as a table for people, or as JSON Lines for programs.

use std::fmt::Display;
use std::io::Write;
use std::time::Instant;

use comfy_table::{CellAlignment, ColumnConstraint, Table, presets};
use serde_json::{Map, Value, json};

use super::CompareArgs;
use super::judge::{Comparison, Unjudged, digits};
use crate::output::table_width;
use crate::run::verdict::{Outcome, Status};
use ulplab_checkpoint::parity::output::write;
use ulplab_core::error::{Exit, Result, counted};
use ulplab_core::metrics::{Metric, Show};
use ulplab_core::record::to_json;
use ulplab_core::tensorfile::Tensor;

/// Version of the JSON records.
const SCHEMA: u32 = 1;
/// Maximum number of failures below the table.
const FAILURES: usize = 50;

/// Prints a line.
pub(super) fn line(out: &mut dyn Write, text: impl Display) -> Result<()> {
    write(out, &format!("{text}\n"))
}

/// Returns the configuration as a JSON record.
pub(super) fn config(args: &CompareArgs, metrics: &[&Metric]) -> Value {
    json!({
        "type": "config",
        "schema": SCHEMA,
        "version": env!("CARGO_PKG_VERSION"),
        "want": args.want.display().to_string(),
        "got": args.got.display().to_string(),
        "metrics": metrics.iter().map(|metric| metric.name).collect::<Vec<_>>(),
        "gates": args.gates,
    })
}

/// Prints the end of the output. As text, this is the table of all comparisons and the verdict; as JSON, the records of unmatched
/// tensors and the summary.
pub(super) fn finish(
    json: bool,
    metrics: &[&Metric],
    unmatched: &[(&str, &str)],
    all: &[Comparison],
    start: Instant,
    out: &mut dyn Write,
) -> Result<Exit> {
    let statuses: Vec<Status> = all.iter().map(Comparison::status).collect();
    let count = |status| statuses.iter().filter(|other| **other == status).count();
    let (passed, failed, unjudged) = (count(Status::Pass), count(Status::Fail), count(Status::NotJudged));
    let outcome = Outcome::from_statuses(&statuses, true, true);
    let (verdict, exit) = (outcome.name(), outcome.exit());
    let gates: usize = all.iter().map(|one| one.gates.len()).sum();
    let seconds = start.elapsed().as_secs_f64();
    if json {
        for (side, name) in unmatched {
            line(out, json!({ "type": "unmatched", "name": name, "in": side }))?;
        }
        let summary = json!({
            "type": "summary",
            "verdict": verdict.to_lowercase().replace(' ', "_"),
            "compared": all.len(),
            "passed": passed,
            "failed": failed,
            "not_judged": unjudged,
            "gates": gates,
            "seconds": seconds,
        });
        line(out, summary)?;
        return Ok(exit);
    }
    let mut lines = rows(metrics, all, table_width());
    lines.extend(unmatched.iter().map(|(side, name)| format!("only in {side}: {name}")));
    let texts = |begin: &str, of: for<'c> fn(&'c Comparison) -> &'c [String]| -> Vec<String> {
        let texts = all
            .iter()
            .flat_map(|one| of(one).iter().map(move |text| (one.want.name, text)));
        texts.map(|(name, text)| format!("{begin} {name}: {text}")).collect()
    };
    for (mut texts, what) in [
        (texts("FAIL", |one| &one.failures), "failures"),
        (texts("not judged", |one| &one.idle), "gates that nothing can break"),
    ] {
        let hidden = texts.len().saturating_sub(FAILURES);
        texts.truncate(FAILURES);
        lines.extend(texts);
        if hidden > 0 {
            lines.push(format!("and {hidden} more {what}"));
        }
    }
    let judged = match gates {
        0 => "no gates".into(),
        _ => format!("{gates} gate results"),
    };
    let open = [
        (Unjudged::NoGate, "that no gate binds"),
        (Unjudged::Empty, "empty"),
        (Unjudged::NotFinite, "without a finite number"),
    ];
    let open = open.map(
        |(why, what)| match all.iter().filter(|one| one.unjudged() == Some(why)).count() {
            0 => String::new(),
            count => format!("{count} {what}, "),
        },
    );
    let (passed, open) = (counted(passed, "tensor"), open.concat());
    lines.push(format!(
        "{verdict}: {passed} passed, {failed} failed, {open}{judged}, {seconds:.2} s"
    ));
    line(out, lines.join("\n"))?;
    Ok(exit)
}

/// Formats the table for `width` characters. Hides columns until the table fits, the least important column first; `--json` has
/// all columns. Numbers are never wrapped.
fn rows(metrics: &[&Metric], all: &[Comparison], width: usize) -> Vec<String> {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    let names = metrics.iter().map(|metric| metric.name);
    let header = ["tensor", "type", "shape"].into_iter().chain(names);
    table.set_header(header.chain(["worst: want, got", "verdict"]));
    for column in table.column_iter_mut().skip(3).take(metrics.len()) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.add_rows(all.iter().map(|one| cells(one, metrics)));
    // Hides shapes, types, the worst element, and then metrics from the last. The name and the verdict stay.
    let metrics = metrics.len();
    let least = [2, 1, 3 + metrics].into_iter().chain((3..3 + metrics).rev());
    let draw = |table: &Table| -> Vec<String> { table.lines().map(|line| line.trim_end().into()).collect() };
    let wide = |rows: &[String]| rows.iter().any(|line| line.chars().count() > width);
    let mut rows = draw(&table);
    for column in least {
        if !wide(&rows) {
            break;
        }
        if let Some(column) = table.column_mut(column) {
            column.set_constraint(ColumnConstraint::Hidden);
        }
        rows = draw(&table);
    }
    rows
}

fn cells(comparison: &Comparison, metrics: &[&Metric]) -> Vec<String> {
    let both = |want: String, got: String| if want == got { want } else { format!("{want}/{got}") };
    let (want, got) = (&comparison.want, &comparison.got);
    let mut cells = vec![
        want.name.into(),
        both(want.dtype.to_string(), got.dtype.to_string()),
        both(format!("{:?}", want.shape), format!("{:?}", got.shape)),
    ];
    for metric in metrics {
        let value = comparison.metrics.iter().find(|(other, _)| other.name == metric.name);
        cells.push(value.map_or("-".into(), |&(metric, value)| show(metric, value)));
    }
    let worst = match (&comparison.worst, &comparison.exact) {
        (Some(worst), _) if worst.want == worst.got => "equal".into(),
        (Some(worst), _) => {
            let (x, y) = (digits(worst.want, want.dtype), digits(worst.got, got.dtype));
            format!("{:?}: {x}, {y}", worst.index)
        }
        (_, Some(exact)) => match &exact.first {
            Some((index, want, got)) => format!("{index:?}: {want}, {got} ({} differ)", exact.mismatches),
            None => "equal".into(),
        },
        _ => "-".into(),
    };
    let verdict = match comparison.status() {
        Status::NotJudged => "—",
        status => status.name(),
    };
    cells.extend([worst, verdict.into()]);
    cells
}

/// Formats a value with the digits that are meaningful for its metric.
fn show(metric: &Metric, value: f64) -> String {
    match metric.show {
        _ if value == 0.0 || !value.is_finite() => value.to_string(),
        Show::NearOne => format!("{value:.8}"),
        Show::Count => format!("{value}"),
        Show::Decibels | Show::DecibelsAbove => format!("{value:.2}"),
        _ => format!("{value:.3e}"),
    }
}

/// Returns a comparison as a JSON record.
pub(super) fn record(comparison: &Comparison) -> Value {
    let side = |tensor: Tensor, nonfinite: u64| json!({ "dtype": tensor.dtype.to_string(), "shape": tensor.shape, "nonfinite": nonfinite });
    let [nonfinite_want, nonfinite_got] = comparison.nonfinite;
    let metrics = comparison
        .metrics
        .iter()
        .map(|(metric, value)| (metric.name.into(), to_json(*value)));
    let gates = comparison.gates.iter().map(
        |judged| json!({ "gate": judged.gate.text, "value": judged.value.map_or(Value::Null, to_json), "pass": judged.pass }),
    );
    let mut record = json!({
        "type": "tensor",
        "name": comparison.want.name,
        "pass": comparison.status() == Status::Pass,
        "judged": comparison.status() != Status::NotJudged,
        "want": side(comparison.want, nonfinite_want),
        "got": side(comparison.got, nonfinite_got),
        "metrics": metrics.collect::<Map<_, _>>(),
        "gates": gates.collect::<Vec<_>>(),
        "failures": comparison.failures,
        "idle_gates": comparison.idle,
    });
    if let Some(worst) = &comparison.worst {
        record["worst"] = json!({ "index": worst.index, "want": to_json(worst.want), "got": to_json(worst.got) });
    }
    if let Some(exact) = &comparison.exact {
        record["mismatches"] = json!(exact.mismatches);
        if let Some((index, want, got)) = &exact.first {
            record["worst"] = json!({ "index": index, "want": want, "got": got });
        }
    }
    record
}
