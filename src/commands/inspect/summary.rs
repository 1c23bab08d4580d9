//! Many tensors on a screen: counts of all, and a line for each of the worst.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::Inspection;
use super::output::{metrics, percent};
use ulplab_core::error::counted;

/// The whole text; `top` tensors get a line.
pub fn text(all: &[Inspection], top: usize) -> String {
    let sum = |of: fn(&Inspection) -> u64| all.iter().map(of).sum::<u64>();
    let having = |of: fn(&Inspection) -> u64| all.iter().filter(|shown| of(shown) > 0).count();
    let mut text = format!(
        "{}, {} elements, {} bytes of codes and scales\n",
        counted(all.len(), "tensor"),
        sum(|shown| shown.stats.elements),
        sum(|shown| shown.stats.bytes),
    );
    let mut formats: BTreeMap<String, usize> = BTreeMap::new();
    for shown in all {
        *formats.entry(shown.format.to_string()).or_default() += 1;
    }
    for (format, count) in formats {
        let _ = writeln!(text, "  {format}: {}", counted(count, "tensor"));
    }
    let _ = writeln!(
        text,
        "  {} that decode to NaN in part, {} with codes of the largest magnitude, {} with blocks of zeros",
        having(|shown| shown.stats.nonfinite),
        having(|shown| shown.stats.saturated),
        having(|shown| shown.stats.zero_blocks),
    );
    let known = all.iter().all(|shown| shown.stats.against.is_some());
    let measure = if known {
        "SQNR"
    } else {
        "the shares of NaN, of largest codes and of zero codes"
    };
    let _ = writeln!(text, "\nWorst first, by {measure}:");
    let mut ranked: Vec<&Inspection> = all.iter().collect();
    ranked.sort_by(|a, b| badness(b).partial_cmp(&badness(a)).unwrap_or(std::cmp::Ordering::Equal));
    let shown = &ranked[..top.min(all.len())];
    let width = shown.iter().map(|shown| shown.name.chars().count()).max().unwrap_or(0);
    shown
        .iter()
        .for_each(|shown| text += &fit(&line(shown, width), crate::output::table_width()));
    let rest = all.len() - shown.len();
    if rest > 0 {
        let _ = writeln!(text, "  … and {rest} more: --top N or --all shows them");
    }
    text.push_str("\n--only NAME shows a tensor with its histograms.\n");
    text
}

/// A line, or several if it is wider: it breaks only between two parts, and what follows is set in.
pub fn fit(line: &str, width: usize) -> String {
    let mut text = String::new();
    let mut used = 0;
    for part in line
        .trim_start()
        .split("  ")
        .map(str::trim)
        .filter(|part| !part.is_empty())
    {
        let size = part.chars().count();
        if line.chars().count() <= width {
            return format!("{line}\n");
        }
        let (gap, indent) = match used {
            0 => ("", "  "),
            _ if used + 2 + size > width => ("\n", "      "),
            _ => ("", "  "),
        };
        used = if gap.is_empty() { used } else { 0 } + indent.len() + size;
        text += &format!("{gap}{indent}{part}");
    }
    text + "\n"
}

fn line(shown: &Inspection, width: usize) -> String {
    let Inspection {
        name,
        format,
        shape,
        stats,
    } = shown;
    let mut text = format!("  {name:width$}  {format}  {shape:?}");
    if stats.against.is_some() {
        let _ = write!(text, "  SQNR {:.2} dB", sqnr(shown));
    }
    let counts = [
        ("NaN", stats.nonfinite, stats.elements),
        ("largest codes", stats.saturated, stats.elements),
        (
            "clipped",
            stats.against.as_ref().map_or(0, |against| against.clipped),
            stats.elements,
        ),
        ("zero codes", stats.zeros, stats.elements),
        ("zero blocks", stats.zero_blocks, stats.blocks),
    ];
    for (what, count, of) in counts.into_iter().filter(|(_, count, _)| *count > 0) {
        let _ = write!(text, "  {what} {:.3} %", percent(count, of));
    }
    text
}

/// In dB; NaN if an element is not finite, or if it is unknown.
fn sqnr(shown: &Inspection) -> f64 {
    let mut all = metrics(&shown.stats);
    all.find(|(metric, _)| metric.name == "sqnr")
        .map_or(f64::NAN, |(_, value)| value)
}

/// More is worse; the first that differs counts.
fn badness(shown: &Inspection) -> [f64; 4] {
    let stats = &shown.stats;
    let share = |count| percent(count, stats.elements);
    let loss = match (&stats.against, sqnr(shown)) {
        (None, _) => 0.0,
        (Some(_), sqnr) if sqnr.is_nan() => f64::INFINITY,
        (Some(_), sqnr) => -sqnr,
    };
    [loss, share(stats.nonfinite), share(stats.saturated), share(stats.zeros)]
}
