//! What reports show of kernels: whether they are right, and how long they take.

use std::borrow::Cow;
use std::fmt::Write;

use super::draws::DRAWS;
use super::{KernelStudy, TIME};
use crate::experiment::Reading;
use crate::report::cases;
use crate::report::chart::escape;
use crate::report::figures::{Figure, Section, Size};
use crate::report::index::{Index, Quantity};
use crate::report::number;
use crate::report::overview::Column;
use crate::report::recipes::Candidate;
use crate::report::{Show, Summarized};
use crate::run::Run;
use crate::run::summary::Summary;
use crate::statistics::rate_above;
use ulplab_core::metrics;
use ulplab_core::metrics::{Metric, US_CLAIMED, US_COLD, US_COLD_P10, US_COLD_P90};
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

    fn sections(&self, run: &Summarized) -> Vec<Section> {
        sections(run)
    }

    fn by_case(&self) -> bool {
        true
    }

    fn noun(&self) -> &'static str {
        "variant"
    }
}

/// All summaries of a metric, one for each output.
fn summaries<'a>(index: &'a Index, kernel: &'a str, metric: &'a str) -> impl Iterator<Item = &'a Summary> {
    index.sites(kernel, Local, metric)
}

/// The largest; NaN if any is.
fn worst(index: &Index, candidate: &Candidate, metric: &str) -> Option<f64> {
    let all = summaries(index, candidate.name, metric).map(|summary| summary.max);
    all.reduce(number::larger)
}

fn column(
    title: [&'static str; 2],
    doc: &'static str,
    weight: u8,
    cell: fn(&Index, &Candidate) -> Option<String>,
) -> Column {
    Column {
        title: title.map(Cow::Borrowed),
        doc: doc.into(),
        weight,
        cell: Box::new(cell),
    }
}

fn columns() -> Vec<Column> {
    vec![
        column(
            ["", "cases"],
            "Shapes, types and kinds of inputs it was run on.",
            20,
            |index, candidate| {
                let cases = summaries(index, candidate.name, "violations")
                    .map(|summary| summary.windows)
                    .max()?;
                Some(cases.to_string())
            },
        ),
        column(
            ["vio-", "lations"],
            "Elements that are not what they must be, bytes written where none may be, bytes that differ between two runs: in the \
             worst case.",
            30,
            |index, candidate| worst(index, candidate, "violations").map(number::tenths),
        ),
        column(
            ["error/", "bound"],
            "Largest error over its derived bound, in the worst case; — where bits must be equal.",
            10,
            |index, candidate| worst(index, candidate, "bound_ratio").map(number::error),
        ),
        column(
            ["slowest", "µs cold"],
            "Median time of the slowest timed case, second-level cache flushed before each run.",
            25,
            |index, candidate| {
                let time = index.whole(candidate.name, Quantity::new(Local, TIME, "us_cold"))?;
                Some(number::tenths(time.max))
            },
        ),
        column(
            ["best", "of copy"],
            "Bytes that must move over the cold time, as a share of the copy bandwidth of the same run, in the timed case where it is \
             largest.",
            28,
            |index, candidate| {
                let share = index.whole(candidate.name, Quantity::new(Local, TIME, "of_copy"))?;
                Some(number::share(share.max))
            },
        ),
        column(
            ["fastest", "µs graph"],
            "Median time of one of many launches in a graph, in the timed case where it is least.",
            24,
            |index, candidate| {
                let time = index.whole(candidate.name, Quantity::new(Local, TIME, "us_graph"))?;
                Some(number::tenths(time.min))
            },
        ),
        column(
            ["best", "× peer"],
            "How many times as fast as the fastest of other people's code timed on the same case, cold, in the case where it is most.",
            26,
            |index, candidate| {
                let times = index.whole(candidate.name, Quantity::new(Local, TIME, "times_peer"))?;
                Some(number::error(times.max))
            },
        ),
    ]
}

/// How many draws of all cases are wrong, and the rate that this allows.
fn draws(draws: u64) -> Column {
    Column {
        title: ["wrong", "draws"].map(Cow::Borrowed),
        doc:
            "Draws of the inputs in which something is wrong, and the largest rate that is compatible with them (95 %)."
                .into(),
        weight: 29,
        cell: Box::new(move |index, candidate| {
            let found = index.whole(candidate.name, Quantity::new(Local, DRAWS, "violations"))?;
            let all = draws as usize * found.windows as usize;
            let wrong = (found.mean * f64::from(found.windows)).round() as usize;
            let rate = number::error(rate_above(wrong, all, 0.95));
            Some(format!("{wrong} of {all} (≤ {rate})"))
        }),
    }
}

/// The table of all timed cases.
fn sections(run: &Summarized) -> Vec<Section> {
    vec![
        cases_section(run),
        Section {
            id: "times",
            title: "Times",
            intro: "Median (10th to 90th percentile) of each timed case: cold with the second-level cache flushed before every run, hot \
                back to back, graph as one of many launches in a graph, rotated the same on other memory each time, none of it in \
                that cache, cached with all of it there, however large it is. Shares are of the copy bandwidth of the same run, \
                by the bytes that must move. Kernels are timed only where nothing was wrong with them. What a program claims is \
                its own figure. A peer is the fastest of other people's code timed on the case on the same kind of card, and × \
                peer how many times as fast as it the kernel is, cold.",
            figures: vec![Figure {
                markup: markup(run.run),
                caption: run
                    .run
                    .manifest
                    .ceilings
                    .map_or(String::new(), |ceilings| format!("In this run: {ceilings}.")),
                size: Size::Whole,
                folded: false,
            }],
        },
    ]
}

/// The table of all cases.
fn cases_section(run: &Summarized) -> Section {
    let rows = cases::rows(run.run, run.show);
    let heads = cases::HEADS.map(String::from);
    let cells: Vec<Vec<String>> = rows.iter().map(|row| row.cells().into()).collect();
    let wrong = rows.iter().filter(|row| !row.right).count();
    Section {
        id: "cases",
        title: "Cases",
        intro: "Each kernel on each case, what is wrong first: elements or bytes that are not what they must be, in the output where \
                they are most; the largest error over its bound; the cold time, or what a program claims.",
        figures: vec![Figure {
            markup: if rows.is_empty() {
                String::new()
            } else {
                rows_markup(&heads, &cells)
            },
            caption: format!("{wrong} of {} are wrong.", rows.len()),
            size: Size::Whole,
            folded: false,
        }],
    }
}

/// Further columns of a row of times: head and metric.
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

/// One of the times of a cell, as it is shown; none if these records do not have it.
fn shown<'a>(mut records: impl Iterator<Item = &'a Record>, metric: &Metric) -> Option<String> {
    let found = records.find(|record| record.site == TIME && record.metric == metric.name)?;
    Some(number::shown(metric.show, found.value))
}

/// The times of one cell, in a line; none if it has no cold time.
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

/// Heads and rows of the table of all timed cells, with the columns that any of them has.
fn table(run: &Run) -> (Vec<&'static str>, Vec<Vec<String>>) {
    let records: Vec<&Record> = run.records.iter().filter(|record| record.site == TIME).collect();
    let columns = TIMES
        .iter()
        .filter(|(_, metric)| records.iter().any(|record| record.metric == metric.name));
    let columns: Vec<_> = columns.collect();
    // A cell has one of the two.
    let timed = |record: &&&Record| [US_COLD.name, US_CLAIMED.name].contains(&record.metric.as_str());
    let mut firsts: Vec<&Record> = records.iter().filter(timed).copied().collect();
    // Operation by operation, their cases and the variants of a case in the run's order.
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
        cells
    };
    let rows = firsts.into_iter().map(row).collect();
    let mut heads = vec!["kernel", "case", "cold µs"];
    heads.extend(columns.iter().map(|(head, ..)| *head));
    heads.extend((!run.manifest.peers.is_empty()).then_some("peer"));
    (heads, rows)
}

/// The table of all timed cells for a terminal, and what its shares are of.
pub fn times(run: &Run) -> String {
    let (heads, rows) = table(run);
    if rows.is_empty() {
        return "nothing was timed\n".into();
    }
    let mut text = comfy_table::Table::new();
    text.load_preset(comfy_table::presets::NOTHING);
    text.set_header(heads);
    text.add_rows(rows);
    let lines = text.to_string();
    let mut lines: Vec<&str> = lines.lines().map(str::trim_end).collect();
    let ceilings = run
        .manifest
        .ceilings
        .map(|ceilings| format!("{}: {ceilings}", run.manifest.device));
    lines.extend(ceilings.as_deref());
    lines.join("\n") + "\n"
}

fn markup(run: &Run) -> String {
    let (heads, rows) = table(run);
    if rows.is_empty() {
        return String::new();
    }
    let heads: Vec<String> = heads.into_iter().map(String::from).collect();
    rows_markup(&heads, &rows)
}

fn rows_markup(heads: &[String], rows: &[Vec<String>]) -> String {
    let of = |tag: &str, cells: &[String]| -> String {
        let cell = |cell: &String| format!("<{tag}>{}</{tag}>", escape(cell));
        cells.iter().map(cell).collect()
    };
    let rows: String = rows.iter().map(|row| format!("<tr>{}</tr>", of("td", row))).collect();
    format!(
        "<div class=\"wide\"><table><thead><tr>{}</tr></thead><tbody>{rows}</tbody></table></div>",
        of("th", heads)
    )
}
