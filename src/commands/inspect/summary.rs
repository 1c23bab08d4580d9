//! A summary of many tensors: total counts, and a line for each of the worst tensors.

use std::collections::BTreeMap;

use super::Inspection;
use super::output::{metrics, percent};
use super::stats::Stats;
use ulplab_core::error::counted;
use ulplab_core::metrics::SQNR;

/// Formats the summary, with a line for each of the `top` worst tensors.
pub fn text(all: &[Inspection], top: usize) -> String {
    let sum = |of: fn(&Stats) -> u64| all.iter().map(|shown| of(&shown.stats)).sum::<u64>();
    let having = |of: fn(&Stats) -> u64| all.iter().filter(|shown| of(&shown.stats) > 0).count();
    let (tensors, elements, bytes) = (
        counted(all.len(), "tensor"),
        sum(|stats| stats.elements),
        sum(|stats| stats.bytes),
    );
    let mut text = format!("{tensors}, {elements} elements, {bytes} bytes of codes and scales\n");
    let mut formats: BTreeMap<String, usize> = BTreeMap::new();
    for shown in all {
        *formats.entry(shown.of.format.to_string()).or_default() += 1;
    }
    for (format, count) in formats {
        text += &format!("  {format}: {}\n", counted(count, "tensor"));
    }
    let (nan, largest) = (having(|stats| stats.nonfinite), having(|stats| stats.saturated));
    let zero = having(|stats| stats.zero_blocks);
    text += &format!("  {nan} that decode to NaN in part, {largest} with codes of the largest magnitude, ");
    text += &format!("{zero} with blocks of zeros\n");
    let measure = match all.iter().all(|shown| shown.stats.against.is_some()) {
        true => "SQNR",
        false => "the shares of NaN, of largest codes and of zero codes",
    };
    text += &format!("\nWorst first, by {measure}:\n");
    let mut ranked: Vec<&Inspection> = all.iter().collect();
    ranked.sort_by(|a, b| badness(b).partial_cmp(&badness(a)).unwrap_or(std::cmp::Ordering::Equal));
    let shown = &ranked[..top.min(all.len())];
    let width = shown
        .iter()
        .map(|shown| shown.of.name.chars().count())
        .max()
        .unwrap_or(0);
    for shown in shown {
        text += &fit(&line(shown, width), crate::output::table_width());
    }
    if let rest @ 1.. = all.len() - shown.len() {
        text += &format!("  … and {rest} more: --top N or --all shows them\n");
    }
    text + "\n--only NAME shows a tensor with its histograms.\n"
}

/// Wraps a line to `width` characters. Breaks only between two parts (separated by two spaces), and indents all lines after the
/// first.
pub fn fit(line: &str, width: usize) -> String {
    let mut text = String::new();
    let mut used = 0;
    let parts = line.trim_start().split("  ").map(str::trim);
    for part in parts.filter(|part| !part.is_empty()) {
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
    let (name, format, shape, stats) = (&shown.of.name, &shown.of.format, &shown.of.shape, &shown.stats);
    let clipped = stats.against.as_ref().map_or(0, |against| against.clipped);
    let mut text = format!("  {name:width$}  {format}  {shape:?}");
    if stats.against.is_some() {
        text += &format!("  SQNR {:.2} dB", sqnr(shown));
    }
    let counts = [
        ("NaN", stats.nonfinite, stats.elements),
        ("largest codes", stats.saturated, stats.elements),
        ("clipped", clipped, stats.elements),
        ("zero codes", stats.zeros, stats.elements),
        ("zero blocks", stats.zero_blocks, stats.blocks),
    ];
    for (what, count, of) in counts.into_iter().filter(|(_, count, _)| *count > 0) {
        text += &format!("  {what} {:.3} %", percent(count, of));
    }
    text
}

/// Returns the SQNR in dB; NaN if an element is not finite, or if there is no source.
fn sqnr(shown: &Inspection) -> f64 {
    let sqnr = metrics(&shown.stats).find(|(metric, _)| metric.name == SQNR.name);
    sqnr.map_or(f64::NAN, |(_, value)| value)
}

/// Returns the key by which tensors are ranked; a larger key is worse. It has the negative SQNR, then the shares of NaN and
/// infinities, of largest codes and of zeros.
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
