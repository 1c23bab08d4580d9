//! Reports on kernels: correctness and times.

use std::fmt::Write;

use super::draws::DRAWS;
use super::{KernelStudy, TIME};
use crate::experiment::Reading;
use crate::report::figures::{Section, wide};
use crate::report::index::{Index, Quantity};
use crate::report::overview::Column;
use crate::report::recipes::Candidate;
use crate::report::table::{Row, Table};
use crate::report::{Show, Summarized, cases, number};
use crate::run::Run;
use crate::run::summary::Summary;
use crate::statistics::rate_above;
use ulplab_core::metrics::{self, BOUND_RATIO, Metric, US_CLAIMED, US_COLD, US_COLD_P10, US_COLD_P90, VIOLATIONS};
use ulplab_core::record::Phase::Local;
use ulplab_core::record::Record;

impl Show for KernelStudy {
    fn reading(&self) -> Reading<'_> {
        Reading::new(self.model.as_deref(), self.tokens, &self.windows)
    }

    fn columns(&self) -> Vec<Column> {
        let mut all = columns();
        all.extend(self.draws.filter(|draws| *draws > 1).map(draws));
        all
    }

    /// Sections with the table of all timed cases, and the table of all cases.
    fn sections(&self, run: &Summarized) -> Vec<Section> {
        let ceilings = run.run.manifest.ceilings;
        let ceilings = ceilings.map(|ceilings| format!("In this run: {ceilings}."));
        let intro = "Median (10th to 90th percentile) of each timed case: cold with the second-level cache flushed before every run, hot \
                     back to back, graph as one of many launches in a graph, rotated the same on other memory each time, none of it in \
                     that cache, cached with all of it there, however large it is. Shares are of the copy bandwidth of the same run, \
                     by the bytes that must move. Kernels are timed only where nothing was wrong with them. What a program claims is \
                     its own figure. A peer is the fastest of other people's code timed on the case on the same kind of card, and × \
                     peer how many times as fast as it the kernel is, cold.";
        let times = vec![wide(table(run.run), ceilings.unwrap_or_default())];
        vec![cases_section(run), Section::new("times", "Times", intro, times)]
    }

    fn by_case(&self) -> bool {
        true
    }

    fn noun(&self) -> &'static str {
        "variant"
    }
}

/// Returns the largest value over all outputs and cases; NaN if any value is NaN.
fn worst(index: &Index, candidate: &Candidate, metric: &Metric) -> Option<String> {
    let all = index.sites(candidate.name, Local, metric.name);
    let all = all.map(|summary| summary.max);
    Some(number::of_metric(metric.name, all.reduce(number::larger)?))
}

fn columns() -> Vec<Column> {
    let time = |title, doc: &str, weight, metric: &'static Metric, choose: fn(&Summary) -> f64| {
        Column::new(title, doc, weight, move |index, candidate| {
            let found = index.whole(candidate.name, Quantity::new(Local, TIME, metric.name))?;
            Some(number::of_metric(metric.name, choose(found)))
        })
    };
    let doc = "Shapes, types and kinds of inputs it was run on.";
    let cases = Column::new(["", "cases"], doc, 20, |index, candidate| {
        let violations = index.sites(candidate.name, Local, VIOLATIONS.name);
        let cases = violations.map(|summary| summary.windows).max()?;
        Some(cases.to_string())
    });
    let doc = "Elements that are not what they must be, bytes written where none may be, bytes that differ between two runs: in the \
               worst case.";
    let violations = Column::new(["vio-", "lations"], doc, 30, |index, candidate| {
        worst(index, candidate, &VIOLATIONS)
    });
    let doc = "Largest error over its derived bound, in the worst case; — where bits must be equal.";
    let ratio = Column::new(["error/", "bound"], doc, 10, |index, candidate| {
        worst(index, candidate, &BOUND_RATIO)
    });
    let doc = "Median time of the slowest timed case, second-level cache flushed before each run.";
    let cold = time(["slowest", "µs cold"], doc, 25, &US_COLD, |time| time.max);
    let doc = "Bytes that must move over the cold time, as a share of the copy bandwidth of the same run, in the timed case where it is \
               largest.";
    let copy = time(["best", "of copy"], doc, 28, &metrics::OF_COPY, |share| share.max);
    let doc = "Median time of one of many launches in a graph, in the timed case where it is least.";
    let graph = time(["fastest", "µs graph"], doc, 24, &metrics::US_GRAPH, |time| time.min);
    let doc = "How many times as fast as the fastest of other people's code timed on the same case, cold, in the case where it is most.";
    let peer = time(["best", "× peer"], doc, 26, &metrics::TIMES_PEER, |times| times.max);
    vec![cases, violations, ratio, cold, copy, graph, peer]
}

/// Returns the column with the number of random inputs (draws) that led to wrong outputs, over all cases, and the upper limit of
/// the failure rate at 95 % confidence.
fn draws(draws: u64) -> Column {
    let doc =
        "Draws of the inputs in which something is wrong, and the largest rate that is compatible with them (95 %).";
    Column::new(["wrong", "draws"], doc, 29, move |index, candidate| {
        let found = index.whole(candidate.name, Quantity::new(Local, DRAWS, VIOLATIONS.name))?;
        let all = draws as usize * found.windows as usize;
        let wrong = (found.mean * f64::from(found.windows)).round() as usize;
        let rate = number::error(rate_above(wrong, all, 0.95));
        Some(format!("{wrong} of {all} (≤ {rate})"))
    })
}

/// Returns the section with the table of all cases.
fn cases_section(run: &Summarized) -> Section {
    let rows = cases::rows(run.run, run.show);
    let wrong = rows.iter().filter(|row| !row.right).count();
    let table = Table {
        heads: cases::HEADS.map(String::from).into(),
        rows: rows.iter().map(|row| Row::new(row.cells())).collect(),
        numbers: false,
    };
    let intro = "Each kernel on each case, what is wrong first: elements or bytes that are not what they must be, in the output where \
                 they are most; the largest error over its bound; the cold time, or what a program claims.";
    let figure = wide(table, format!("{wrong} of {} are wrong.", rows.len()));
    Section::new("cases", "Cases", intro, vec![figure])
}

/// Further columns of the table of times: head and metric.
const TIMES: &[(&str, &Metric)] = &[
    ("hot µs", &metrics::US_HOT),
    ("graph µs", &metrics::US_GRAPH),
    ("rotated µs", &metrics::US_ROTATED),
    ("cached µs", &metrics::US_CACHED),
    ("MB", &metrics::MEGABYTES),
    ("of copy", &metrics::OF_COPY),
    ("of copy, rotated", &metrics::OF_COPY_ROTATED),
    ("of matmul", &metrics::OF_MATMUL),
    ("claimed µs", &metrics::US_CLAIMED),
    ("limit µs", &metrics::US_LIMIT),
    ("of limit", &metrics::OF_LIMIT),
    ("peer µs", &metrics::US_PEER),
    ("× peer", &metrics::TIMES_PEER),
];

/// Formats the value of a metric in the records of a cell's times; `None` if the metric was not recorded.
fn shown<'a>(mut records: impl Iterator<Item = &'a Record>, metric: &Metric) -> Option<String> {
    let found = records.find(|record| record.site == TIME && record.metric == metric.name)?;
    Some(number::shown(metric.show, found.value))
}

/// Returns the times of one cell as a line of text; `None` if the cell has no cold time.
pub fn line(records: &[Record]) -> Option<String> {
    let text = |metric: &Metric| shown(records.iter(), metric);
    let first = records.first()?;
    let [cold, low, high] = [&US_COLD, &US_COLD_P10, &US_COLD_P90].map(text);
    let mut line = format!(
        "{} {}: cold µs {} ({}–{})",
        first.recipe, first.window, cold?, low?, high?
    );
    for (head, metric) in TIMES {
        if let Some(value) = text(metric) {
            let _ = write!(line, ", {head} {value}");
        }
    }
    Some(line)
}

/// Returns the table of all timed cells, with every column that some cell has.
fn table(run: &Run) -> Table {
    let records: Vec<&Record> = run.records.iter().filter(|record| record.site == TIME).collect();
    let measured = |metric: &Metric| records.iter().any(|record| record.metric == metric.name);
    let columns: Vec<_> = TIMES.iter().filter(|(_, metric)| measured(metric)).collect();
    // Each timed cell has exactly one of these two metrics.
    let timed = |record: &&&Record| [US_COLD.name, US_CLAIMED.name].contains(&record.metric.as_str());
    let mut firsts: Vec<&Record> = records.iter().filter(timed).copied().collect();
    // Sort by operation. Within an operation, cases and variants keep the run's order.
    let op = |record: &Record| record.recipe.split('.').next().unwrap_or_default().to_string();
    firsts.sort_by_cached_key(|record| op(record));
    let row = |first: &Record| {
        let of_cell = || records.iter().copied().filter(|record| record.cell == first.cell);
        let text = |metric: &Metric| shown(of_cell(), metric).unwrap_or_else(|| "—".into());
        let [mut cold, low, high] = [&US_COLD, &US_COLD_P10, &US_COLD_P90].map(text);
        if first.metric == US_COLD.name {
            let _ = write!(cold, " ({low}–{high})");
        }
        let mut cells = vec![first.recipe.clone(), first.window.clone(), cold];
        cells.extend(columns.iter().map(|(_, metric)| text(metric)));
        if !run.manifest.peers.is_empty() {
            let peer = run.manifest.peers.get(&format!("{}/{}", op(first), first.window));
            cells.push(peer.map_or("—".into(), Clone::clone));
        }
        Row::new(cells)
    };
    let rows = firsts.into_iter().map(row).collect();
    let mut heads = vec!["kernel", "case", "cold µs"];
    heads.extend(columns.iter().map(|(head, ..)| *head));
    heads.extend((!run.manifest.peers.is_empty()).then_some("peer"));
    Table {
        heads: heads.into_iter().map(String::from).collect(),
        rows,
        numbers: false,
    }
}

/// Returns the table of all timed cells for a terminal, followed by the GPU's peak rates. The table gives speeds as fractions of
/// these rates.
pub fn times(run: &Run) -> String {
    let table = table(run);
    if table.rows.is_empty() {
        return "nothing was timed\n".into();
    }
    let mut lines = table.lines(usize::MAX);
    let ceilings = run.manifest.ceilings;
    lines.extend(ceilings.map(|ceilings| format!("{}: {ceilings}", run.manifest.device)));
    lines.join("\n") + "\n"
}
