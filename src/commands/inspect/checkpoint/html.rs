//! A report on a checkpoint as an HTML page.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use askama::Template;

use super::output::{by_sqnr, formats, subject, summary};
use crate::report::chart::{Chart, Dot, DotRow, Dots, Mark};
use crate::run::verdict::Outcome;
use ulplab_checkpoint::checkpoint::{CHECKS, Check, Finding, Judged, Report, kin};

/// Maximum number of matrices in a table.
const LISTED: usize = 200;
/// Maximum number of rows in a chart.
const ROWS: usize = 40;

#[derive(Template)]
#[template(path = "checkpoint.html")]
struct Page<'a> {
    path: String,
    verdict: Outcome,
    summary: String,
    subject: String,
    formats: Vec<(&'a str, usize)>,
    /// Findings (such as errors and warnings) by matrix, the worst matrix first.
    worst: Vec<(&'a str, Vec<&'a Finding>)>,
    /// Number of matrices that have findings but do not fit into the table of at most [`LISTED`] matrices.
    more: usize,
    /// SVG chart of the gain of each matrix: rms · √K, with K input channels.
    gains: String,
    /// SVG chart of the SQNR of each matrix against its source; empty without a source.
    sqnrs: String,
    /// Matrices whose source is known, the lowest SQNR first.
    ranked: Vec<&'a Judged>,
    report: &'a Report,
    checks: &'static [&'static Check],
}

/// Renders the page. It has no script and refers to no external resource.
pub fn page(path: &Path, report: &Report, verdict: Outcome) -> String {
    let mut worst = report.worst();
    let more = worst.len().saturating_sub(LISTED);
    worst.truncate(LISTED);
    let mut ranked = by_sqnr(report);
    ranked.truncate(LISTED);
    let gain = |judged: &Judged| judged.measured.as_ref().map(|measured| measured.gain(measured.rms));
    let page = Page {
        path: path.display().to_string(),
        verdict,
        summary: summary(report),
        subject: subject(report),
        formats: formats(report).into_iter().collect(),
        worst,
        more,
        gains: chart(report, "Gain of matrices", "rms · √K", gain),
        sqnrs: chart(report, "SQNR against the source", "dB", |judged| judged.sqnr),
        ranked,
        report,
        checks: CHECKS,
    };
    let html = page.render().expect("the template has no fallible part");
    ulplab_core::text::lines(&html)
}

/// Draws a chart with a point for each matrix: `value` gives its position. Matrices whose names differ only in numbers, such as
/// the number of the layer, share a row. A cross marks a matrix with findings.
fn chart(report: &Report, title: &str, unit: &str, value: impl Fn(&Judged) -> Option<f64>) -> String {
    let wrong: BTreeSet<&str> = report.findings.iter().map(|finding| finding.matrix.as_str()).collect();
    let mut rows: BTreeMap<String, Vec<Dot>> = BTreeMap::new();
    for judged in &report.matrices {
        let Some(value) = value(judged) else { continue };
        let mark = match wrong.contains(judged.name.as_str()) {
            true => Mark::Cross,
            false => Mark::Filled,
        };
        let detail = format!("{}: {value:.4}", judged.name);
        let row = rows.entry(kin(&judged.name)).or_default();
        row.push(Dot { value, mark, detail });
    }
    let row = |(name, mut dots): (String, Vec<Dot>)| {
        dots.sort_by(|a, b| a.value.total_cmp(&b.value));
        DotRow {
            dots,
            name,
            ..DotRow::default()
        }
    };
    let dots = Dots {
        title: title.into(),
        unit: unit.into(),
        rows: rows.into_iter().take(ROWS).map(row).collect(),
        width: 1120.0,
    };
    dots.svg().unwrap_or_default()
}
