//! A report on a checkpoint as text and as JSON Lines.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::{Value, json};

use crate::run::verdict::Outcome;
use ulplab_checkpoint::checkpoint::{Judged, Report, Severity};
use ulplab_core::error::counted;
use ulplab_core::record::to_json;
use ulplab_core::text::shown;

/// Formats the report as text, with at most `top` matrices and tensors. Replaces line breaks and other hidden characters in texts
/// from files.
pub fn page(path: &Path, report: &Report, verdict: Outcome, top: usize) -> String {
    let mut lines = vec![format!("{}: {}", path.display(), subject(report))];
    for (format, count) in formats(report) {
        lines.push(format!("  {format}: {}", matrices(count)));
    }
    let worst = report.worst();
    if !worst.is_empty() {
        lines.extend([String::new(), "Findings, worst first:".into()]);
    }
    for (matrix, findings) in worst.iter().take(top) {
        let head = if matrix.is_empty() {
            "files and configuration"
        } else {
            matrix
        };
        let judged = report.judged(matrix);
        let judged = judged.map_or(String::new(), |judged| format!("  {}", line(judged)));
        lines.push(format!("  {head}{judged}"));
        for finding in findings {
            let (severity, check) = (finding.check.severity.name(), finding.check.name);
            let (subject, found, expected) = (&finding.subject, &finding.found, &finding.expected);
            lines.push(format!(
                "    {severity} {check}: {subject}: {found}; expected {expected}"
            ));
        }
    }
    lines.extend(more(worst.len(), top, "with findings"));
    if report.matrices.iter().any(|judged| judged.sqnr.is_some()) {
        lines.extend([String::new(), "Against the source, least SQNR first:".into()]);
        let ranked = by_sqnr(report);
        for judged in ranked.iter().take(top) {
            let rule = judged.rule.as_ref().map_or(String::new(), |rule| format!("  {rule}"));
            lines.push(format!("  {}  {}{rule}", judged.name, line(judged)));
        }
        lines.extend(more(ranked.len(), top, "against the source"));
    }
    if !report.unread.is_empty() {
        lines.extend([String::new(), "Not understood, and not judged:".into()]);
        let unread = report.unread.iter().take(top);
        lines.extend(unread.map(|unread| format!("  {}: {}", unread.tensor, unread.why)));
        lines.extend(more(report.unread.len(), top, "not understood"));
    }
    lines.extend([String::new(), format!("{}: {}", verdict.name(), summary(report))]);
    lines.iter().map(|line| shown(line) + "\n").collect()
}

fn more(all: usize, top: usize, what: &str) -> Option<String> {
    (all > top).then(|| format!("  … and {} more {what}: --top N or --all shows them", all - top))
}

/// Describes the naming convention of the checkpoint, and the files that state it.
pub fn subject(report: &Report) -> String {
    let Some(convention) = report.convention else {
        return "no tensor is quantized".into();
    };
    let by: Vec<String> = report
        .stated
        .iter()
        .map(|(file, method)| format!("{file} says '{method}'"))
        .collect();
    let by = match by.is_empty() {
        true => "no configuration names a method".into(),
        false => by.join(", "),
    };
    format!("named as by {} ({by})", convention.name)
}

/// Returns the number of matrices in each format.
pub fn formats(report: &Report) -> BTreeMap<&str, usize> {
    let mut formats = BTreeMap::new();
    for judged in &report.matrices {
        *formats.entry(judged.format.as_str()).or_default() += 1;
    }
    formats
}

/// Formats a count, as in `1 quantized matrix or stack` or `2 quantized matrices or stacks`.
fn matrices(count: usize) -> String {
    match count {
        1 => "1 quantized matrix or stack".into(),
        _ => format!("{count} quantized matrices or stacks"),
    }
}

/// Formats a line of counts: errors and warnings, quantized matrices that were read, and tensors that are not quantized or not
/// understood.
pub fn summary(report: &Report) -> String {
    let of = |severity| report.count(severity);
    let with: BTreeSet<&str> = report.findings.iter().map(|finding| finding.matrix.as_str()).collect();
    let (errors, warnings) = (of(Severity::Error), of(Severity::Warning));
    let mut text = format!("{} and {}", counted(errors, "error"), counted(warnings, "warning"));
    if let open @ 1.. = of(Severity::NotJudged) {
        text += &format!(", {open} not judged");
    }
    match with.iter().filter(|matrix| !matrix.is_empty()).count() {
        0 => {}
        1 => text += " about 1 matrix",
        several => text += &format!(" about {several} matrices"),
    }
    let (read, plain) = (matrices(report.matrices.len()), counted(report.plain, "tensor"));
    text += &format!("; {read} read, {plain} not quantized");
    if let unread @ 1.. = report.unread.len() {
        text += &format!(", {} not understood", counted(unread, "tensor"));
    }
    text
}

/// Returns the matrices whose source is known, the lowest SQNR first.
pub fn by_sqnr(report: &Report) -> Vec<&Judged> {
    let mut ranked: Vec<&Judged> = report.matrices.iter().filter(|judged| judged.sqnr.is_some()).collect();
    let key = |judged: &Judged| judged.sqnr.filter(|sqnr| !sqnr.is_nan()).unwrap_or(f64::NEG_INFINITY);
    ranked.sort_by(|a, b| key(a).total_cmp(&key(b)));
    ranked
}

/// Formats a matrix: format, shape, SQNR, and its source tensors if they have other names.
fn line(judged: &Judged) -> String {
    let (format, shape) = (&judged.format, &judged.shape);
    let sqnr = judged.sqnr.map_or(String::new(), |sqnr| format!("  SQNR {sqnr:.2} dB"));
    let through = match &judged.through[..] {
        [] => String::new(),
        [_] | [_, _] | [_, _, _] => format!(" (source: {})", judged.through.join(", ")),
        [first, others @ ..] => format!(" (source: {first} and {} more)", others.len()),
    };
    format!("{format}  {shape:?}{sqnr}{through}")
}

/// Formats the report as JSON Lines: a record for each finding, each matrix, and each tensor that could not be read; then a
/// summary.
pub fn records(report: &Report, verdict: Outcome) -> String {
    let mut records: Vec<Value> = Vec::new();
    for finding in &report.findings {
        records.push(json!({
            "type": "finding",
            "check": finding.check.name,
            "severity": finding.check.severity.name(),
            "tensor": finding.subject,
            "matrix": finding.matrix,
            "found": finding.found,
            "expected": finding.expected,
        }));
    }
    records.extend(report.matrices.iter().map(matrix));
    for unread in &report.unread {
        records.push(json!({ "type": "not_understood", "tensor": unread.tensor, "why": unread.why }));
    }
    records.push(json!({
        "type": "summary",
        "verdict": verdict.name().to_lowercase().replace(' ', "_"),
        "convention": report.convention.map(|convention| convention.name),
        "errors": report.count(Severity::Error),
        "warnings": report.count(Severity::Warning),
        "not_judged": report.count(Severity::NotJudged),
        "matrices": report.matrices.len(),
        "not_quantized": report.plain,
        "not_understood": report.unread.len(),
    }));
    records.iter().map(|record| format!("{record}\n")).collect()
}

fn matrix(judged: &Judged) -> Value {
    let mut record = json!({
        "type": "matrix",
        "name": judged.name,
        "format": judged.format,
        "shape": judged.shape,
    });
    if let Some(measured) = &judged.measured {
        record["elements"] = json!(measured.elements);
        record["saturated"] = json!(measured.saturated);
        record["nan_codes"] = json!(measured.nan_codes);
        record["blocks"] = json!(measured.blocks);
        record["zero_blocks"] = json!(measured.dead);
        record["rms"] = to_json(measured.rms);
        record["gain"] = to_json(measured.gain(measured.rms));
    }
    if let Some(sqnr) = judged.sqnr {
        record["sqnr"] = to_json(sqnr);
    }
    if !judged.through.is_empty() {
        record["source"] = json!(judged.through);
    }
    if let Some(rule) = &judged.rule {
        record["rule"] = json!(rule);
    }
    record
}
