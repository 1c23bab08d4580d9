//! Writes diagnoses as text and as JSON.

use std::fmt::Write as _;
use std::io::Write;

use serde_json::{Value, json};

use super::cost::Cost;
use super::maker::name as rule_name;
use super::{Candidate, Cause, Diagnosis, Finding, Scope};
use ulplab_core::error::{Error, Result, counted};
use ulplab_core::formats::Format;
use ulplab_core::record::to_json;

/// Writes the diagnosis of a tensor as text or as one line of JSON, with a warning if `cost` says that another rule has a far
/// smaller error.
pub fn print(
    out: &mut dyn Write,
    json: bool,
    name: &str,
    format: &Format,
    shape: &[usize],
    (diagnosis, cost): (&Diagnosis, Option<&Cost>),
) -> Result<()> {
    let warning = cost.map(Cost::words);
    let text = match json {
        true => {
            let mut record = record(name, format, shape, diagnosis);
            record["warning"] = warning.into();
            format!("{record}\n")
        }
        false => {
            let warning = warning.map(|warning| format!("  warning: {warning}\n"));
            page(name, format, shape, diagnosis) + &warning.unwrap_or_default()
        }
    };
    write(out, &text)
}

/// Prints the summary line. Returns true (PASS) if every tensor is explained and all unquantized tensors are equal.
pub fn summary(
    out: &mut dyn Write,
    json: bool,
    (explained, all): (usize, usize),
    copied: super::copies::Copied,
) -> Result<bool> {
    let pass = all > 0 && explained == all && copied.alike == copied.all;
    let text = match json {
        true => {
            let verdict = if pass { "pass" } else { "fail" };
            json!({
                "type": "summary",
                "verdict": verdict,
                "compared": all,
                "explained": explained,
                "copied": copied.all,
                "copied_alike": copied.alike,
                "unmatched": copied.unmatched,
            })
            .to_string()
        }
        false => {
            let verdict = if pass { "PASS" } else { "FAIL" };
            let mut text = format!("{verdict}: {explained} of {all} tensors explained");
            if copied.all > 0 {
                let _ = write!(text, ", {} of {} others alike", copied.alike, copied.all);
            }
            if copied.unmatched > 0 {
                let _ = write!(text, ", {} in one file only", copied.unmatched);
            }
            text
        }
    };
    write(out, &format!("{text}\n"))?;
    Ok(pass)
}

/// Writes text to `out`, which error messages call the standard output.
pub fn write(out: &mut dyn Write, text: &str) -> Result<()> {
    out.write_all(text.as_bytes())
        .map_err(Error::io("standard output", "write"))
}

fn names(candidates: &[Candidate]) -> String {
    let all = candidates.iter().map(|candidate| rule_name(&candidate.format));
    let all: Vec<String> = all.collect();
    // Append the rounding of scales (e.g. to bf16) only once: it is the same for all candidates.
    all.join(", ") + &candidates.first().map_or(String::new(), Candidate::rounded)
}

impl Diagnosis {
    /// Sums up the result in one sentence.
    pub fn conclusion(&self) -> String {
        let rule = self.reference.name();
        match &self.findings[..] {
            [] => match &self.exact[..] {
                [only] => format!("made by {}, to the last byte", only.name()),
                all => format!("{} agree on this tensor to the last byte", names(all)),
            },
            [first, ..] => {
                let also = match &self.exact[..] {
                    [] => String::new(),
                    exact if first.cause == Cause::GlobalScale => format!("; explained by {}", names(exact)),
                    exact => format!("; in this order of storage explained by {}", names(exact)),
                };
                format!("not {rule}: {}, {}{also}", first.cause, words(first))
            }
        }
    }
}

/// Describes a finding: its detail, the rows and columns of the mismatches, and other causes that fit equally well.
fn words(finding: &Finding) -> String {
    let mut words = finding.detail.clone();
    let (count, region) = (finding.count, finding.scope.region);
    if let Some(place) = &finding.scope.place {
        let _ = write!(words, ", in {place}");
        if count < region && finding.cause != Cause::Isolated {
            let _ = write!(words, " ({count} of {region} there)");
        }
    }
    for other in &finding.others {
        let _ = write!(words, "; or {other}");
    }
    if !finding.others.is_empty() {
        words.push_str(" (these cannot be told apart on this data)");
    }
    words
}

fn page(name: &str, format: &Format, shape: &[usize], diagnosis: &Diagnosis) -> String {
    let mut page = format!("{name}  {format}  {shape:?}\n  {}\n", diagnosis.conclusion());
    let mut line = |text: String| {
        let _ = writeln!(page, "  {text}");
    };
    if !diagnosis.tolerated.is_empty() {
        let names = names(&diagnosis.tolerated);
        line(format!(
            "within what the approximate reciprocals of {names} may change: numbers within 4 ulp of a border between two codes"
        ));
    }
    if diagnosis.foreign_globals > 0 {
        let globals = counted(diagnosis.foreign_globals, "global scale");
        let are = if diagnosis.foreign_globals == 1 { "is" } else { "are" };
        let not = "not of the largest magnitude beneath: calibrated, or wrong";
        line(format!("{globals} {are} {not}"));
    }
    for finding in &diagnosis.findings {
        let (cause, count, Scope { of, unit, .. }) = (finding.cause, finding.count, &finding.scope);
        line(format!("{cause:24} {count} of {of} {unit}: {}", words(finding)));
        if let Some(example) = &finding.example {
            // Show only as many source values as fit on a line of a terminal.
            let mut source: Vec<String> = example.source.iter().take(6).map(|x| format!("{x:?}")).collect();
            source.extend((example.source.len() > 6).then(|| "…".to_string()));
            let (place, stored, expected) = (&example.place, &example.stored, &example.expected);
            let indent = " ".repeat(24);
            line(format!(
                "{indent} first at {place:?}: stored {stored}, expected {expected}"
            ));
            line(format!("{indent} source {}", source.join(" ")));
        }
    }
    page
}

fn record(name: &str, format: &Format, shape: &[usize], diagnosis: &Diagnosis) -> Value {
    let finding = |finding: &Finding| {
        json!({
            "cause": finding.cause,
            "detail": finding.detail,
            "others": finding.others,
            "place": finding.scope.place,
            "count": finding.count,
            "of": finding.scope.of,
            "unit": finding.scope.unit,
            "example": finding.example.as_ref().map(|example| json!({
                "place": example.place,
                "source": example.source.iter().map(|x| to_json(f64::from(*x))).collect::<Vec<_>>(),
                "stored": example.stored,
                "expected": example.expected,
            })),
        })
    };
    let all = |candidates: &[Candidate]| candidates.iter().map(Candidate::name).collect::<Vec<_>>();
    json!({
        "type": "tensor",
        "name": name,
        "format": format.to_string(),
        "shape": shape,
        "explained": diagnosis.explained(),
        "conclusion": diagnosis.conclusion(),
        "reference": diagnosis.reference.name(),
        "exact": all(&diagnosis.exact),
        "tolerated": all(&diagnosis.tolerated),
        "foreign_globals": diagnosis.foreign_globals,
        "data_order": diagnosis.data_order,
        "scale_order": diagnosis.scale_order,
        "findings": diagnosis.findings.iter().map(finding).collect::<Vec<_>>(),
    })
}
