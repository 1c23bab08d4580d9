//! A table for people, or JSON Lines for programs.

use std::io::Write;
use std::time::Instant;

use comfy_table::{CellAlignment, ColumnConstraint, Table, presets};
use serde_json::{Map, Value, json};

use super::CompareArgs;
use super::judge::{Comparison, Side, digits};
use crate::output::table_width;
use ulplab_core::error::{Error, Exit, Result, counted};
use ulplab_core::metrics::{Metric, Show};
use ulplab_core::record::to_json;

/// Version of the JSON records.
const SCHEMA: u32 = 1;
/// Failures written out below the table.
const FAILURES: usize = 50;

/// Prints comparisons as they come, or gathers them for the table, and counts.
pub(super) struct Report<'a> {
    out: &'a mut dyn Write,
    json: bool,
    table: Table,
    metrics: Vec<&'static Metric>,
    unmatched: Vec<(&'static str, &'a str)>,
    failures: Vec<String>,
    /// Gates that nothing can break.
    idle: Vec<String>,
    passed: usize,
    failed: usize,
    /// Tensors that are not judged: that no gate binds, that are empty, that have no finite number.
    unjudged: [usize; 3],
    gates: usize,
}

impl<'a> Report<'a> {
    pub fn new(
        args: &CompareArgs,
        metrics: &[&'static Metric],
        unmatched: Vec<(&'static str, &'a str)>,
        out: &'a mut dyn Write,
    ) -> Result<Self> {
        let mut table = Table::new();
        table.load_preset(presets::NOTHING);
        let names = metrics.iter().map(|metric| metric.name);
        let header = ["tensor", "type", "shape"].into_iter().chain(names);
        table.set_header(header.chain(["worst: want, got", "verdict"]));
        for column in table.column_iter_mut().skip(3).take(metrics.len()) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        let mut report = Self {
            out,
            json: args.json,
            table,
            metrics: metrics.into(),
            unmatched,
            failures: Vec::new(),
            idle: Vec::new(),
            passed: 0,
            failed: 0,
            unjudged: [0; 3],
            gates: 0,
        };
        if args.json {
            report.line(json!({
                "type": "config",
                "schema": SCHEMA,
                "version": env!("CARGO_PKG_VERSION"),
                "want": args.want.display().to_string(),
                "got": args.got.display().to_string(),
                "metrics": report.metrics.iter().map(|metric| metric.name).collect::<Vec<_>>(),
                "gates": args.gates,
            }))?;
        }
        Ok(report)
    }

    pub fn add(&mut self, comparison: Comparison) -> Result<()> {
        let count = match (comparison.pass(), comparison.unjudged()) {
            (false, _) => &mut self.failed,
            (true, None) => &mut self.passed,
            (true, Some(why)) => &mut self.unjudged[why as usize],
        };
        *count += 1;
        self.gates += comparison.gates.len();
        if self.json {
            return self.line(record(&comparison));
        }
        let name = &comparison.name;
        let failures = comparison.failures.iter();
        self.failures
            .extend(failures.map(|failure| format!("FAIL {name}: {failure}")));
        let idle = comparison.idle.iter().map(|why| format!("not judged {name}: {why}"));
        self.idle.extend(idle);
        self.table.add_row(cells(&comparison, &self.metrics));
        Ok(())
    }

    /// Prints the rest; the last line is the verdict.
    pub fn finish(mut self, start: Instant) -> Result<Exit> {
        let (passed, failed, gates) = (self.passed, self.failed, self.gates);
        let unjudged: usize = self.unjudged.iter().sum();
        let (verdict, exit) = match (failed, unjudged) {
            (1.., _) => ("fail", Exit::GateFailed),
            (0, 1..) if passed > 0 => ("partly judged", Exit::NotJudged),
            (0, 1..) => ("not judged", Exit::NotJudged),
            (0, 0) => ("pass", Exit::Pass),
        };
        let seconds = start.elapsed().as_secs_f64();
        if self.json {
            for (side, name) in std::mem::take(&mut self.unmatched) {
                self.line(json!({ "type": "unmatched", "name": name, "in": side }))?;
            }
            self.line(json!({
                "type": "summary",
                "verdict": verdict.replace(' ', "_"),
                "compared": passed + failed + unjudged,
                "passed": passed,
                "failed": failed,
                "not_judged": unjudged,
                "gates": gates,
                "seconds": seconds,
            }))?;
        } else {
            let mut lines = self.rows(table_width());
            let unmatched = self.unmatched.iter();
            lines.extend(unmatched.map(|(side, name)| format!("only in {side}: {name}")));
            let idle = "gates that nothing can break";
            for (all, what) in [(&mut self.failures, "failures"), (&mut self.idle, idle)] {
                let hidden = all.len().saturating_sub(FAILURES);
                lines.extend(all.drain(..).take(FAILURES));
                if hidden > 0 {
                    lines.push(format!("and {hidden} more {what}"));
                }
            }
            let judged = match gates {
                0 => "no gates".into(),
                _ => format!("{gates} gate results"),
            };
            let why = ["that no gate binds", "empty", "without a finite number"];
            let open = self.unjudged.iter().zip(why).filter(|(count, _)| **count > 0);
            let open: String = open.map(|(count, why)| format!("{count} {why}, ")).collect();
            let (verdict, passed) = (verdict.to_uppercase(), counted(passed, "tensor"));
            lines.push(format!(
                "{verdict}: {passed} passed, {failed} failed, {open}{judged}, {seconds:.2} s"
            ));
            self.text(&lines.join("\n"))?;
        }
        Ok(exit)
    }

    /// The table within that width: columns that can be looked up in `--json` go until it fits, those that say least first.
    /// Numbers are never broken.
    fn rows(&mut self, width: usize) -> Vec<String> {
        let metrics = self.metrics.len();
        // Shapes, types, the worst element, then metrics from the last; name and verdict stay.
        let least = [2, 1, 3 + metrics].into_iter().chain((3..3 + metrics).rev());
        let draw = |table: &Table| -> Vec<String> { table.lines().map(|line| line.trim_end().into()).collect() };
        let wide = |rows: &[String]| rows.iter().any(|line| line.chars().count() > width);
        let mut rows = draw(&self.table);
        for column in least {
            if !wide(&rows) {
                break;
            }
            if let Some(column) = self.table.column_mut(column) {
                column.set_constraint(ColumnConstraint::Hidden);
            }
            rows = draw(&self.table);
        }
        rows
    }

    fn line(&mut self, record: Value) -> Result<()> {
        self.text(&record.to_string())
    }

    fn text(&mut self, text: &str) -> Result<()> {
        writeln!(self.out, "{text}").map_err(Error::io("standard output", "write"))
    }
}

fn cells(comparison: &Comparison, metrics: &[&Metric]) -> Vec<String> {
    let both = |want: String, got: String| if want == got { want } else { format!("{want}/{got}") };
    let (want, got) = (&comparison.want, &comparison.got);
    let mut cells = vec![
        comparison.name.clone(),
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
    cells.extend([worst, comparison.verdict().into()]);
    cells
}

/// A value in as many digits as mean something to people.
fn show(metric: &Metric, value: f64) -> String {
    match metric.show {
        _ if value == 0.0 || !value.is_finite() => value.to_string(),
        Show::NearOne => format!("{value:.8}"),
        Show::Count => format!("{value}"),
        Show::Decibels | Show::DecibelsAbove => format!("{value:.2}"),
        _ => format!("{value:.3e}"),
    }
}

fn record(comparison: &Comparison) -> Value {
    let side =
        |side: &Side| json!({ "dtype": side.dtype.to_string(), "shape": side.shape, "nonfinite": side.nonfinite });
    let metrics = comparison
        .metrics
        .iter()
        .map(|(metric, value)| (metric.name.into(), to_json(*value)));
    let gates = comparison.gates.iter().map(
        |judged| json!({ "gate": judged.gate, "value": judged.value.map_or(Value::Null, to_json), "pass": judged.pass }),
    );
    let mut record = json!({
        "type": "tensor",
        "name": comparison.name,
        "pass": comparison.pass() && comparison.judged(),
        "judged": comparison.judged(),
        "want": side(&comparison.want),
        "got": side(&comparison.got),
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
