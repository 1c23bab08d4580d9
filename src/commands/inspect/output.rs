//! Statistics of a tensor as text and as JSON.

use std::fmt::Write;

use serde_json::{Value, json};

use super::Inspection;
use super::stats::{Histogram, Stats};
use ulplab_checkpoint::packed::{Grid, leading};
use ulplab_core::metrics::{COSINE, Metric, SQNR, measure_all, unravel};
use ulplab_core::record::to_json;

/// Length of the longest bar of a histogram, in characters.
const BAR: f64 = 40.0;

/// Formats all statistics of a tensor.
pub fn page(shown: &Inspection) -> String {
    let (name, format, shape, stats) = (&shown.of.name, &shown.of.format, &shown.of.shape, &shown.stats);
    let bits = stats.bits_per_element();
    let mut page = format!("{name}  {format}  {shape:?}  {bits:.4} bits per element\n");
    let mut line = |what: &str, text: String| {
        let _ = writeln!(page, "  {what:14} {text}");
    };
    let of_elements = |count| share(count, stats.elements);
    line("largest code", of_elements(stats.saturated));
    line("zero codes", of_elements(stats.zeros));
    line("negative", of_elements(stats.negative));
    if stats.nonfinite > 0 {
        line("decodes to NaN", of_elements(stats.nonfinite));
    }
    if format.scaling.is_some() {
        line("zero blocks", share(stats.zero_blocks, stats.blocks));
        line("NaN scales", share(stats.nan_scales, stats.blocks));
    }
    match &stats.globals[..] {
        [] => {}
        [global] => line("global scale", format!("{global:e}")),
        several => {
            let all = || several.iter().copied();
            let (least, most) = (all().fold(f32::NAN, f32::min), all().fold(f32::NAN, f32::max));
            line("global scales", format!("{least:e} to {most:e}"));
        }
    }
    if let Some(against) = &stats.against {
        line("clipped", of_elements(against.clipped));
        line("underflow", of_elements(against.underflow));
        if against.nonfinite > 0 {
            line("NaN or Inf", of_elements(against.nonfinite));
        }
        for (metric, value) in metrics(stats) {
            let digits = if metric.name == SQNR.name { 2 } else { 8 };
            let text = format!("{value:.digits$} {}", metric.unit);
            line(metric.name, text.trim_end().into());
        }
        for worst in &against.worst {
            let matrix = match leading(shape) {
                [] => String::new(),
                leading => format!("matrix {:?}, ", unravel(worst.expert, leading)),
            };
            let place = place(&stats.grid, worst.group);
            let (sqnr, amax, scale) = (worst.sqnr, worst.amax, worst.scale);
            let text = format!("{matrix}{place}: SQNR {sqnr:.2} dB, amax {amax:e}, scale {scale:e}");
            line("worst block", text);
        }
    }
    bars(&mut page, "code", &stats.codes, format.element.bits >= 8);
    bars(&mut page, "scale", &stats.scales, true);
    page.push('\n');
    page
}

/// Formats a count and its share, as in `3 (6.250 %)`.
pub(super) fn share(count: u64, of: u64) -> String {
    format!("{count} ({:.3} %)", percent(count, of))
}

pub(super) fn percent(count: u64, of: u64) -> f64 {
    100.0 * count as f64 / of.max(1) as f64
}

/// Returns the SQNR and the cosine of a tensor against its source.
pub(super) fn metrics(stats: &Stats) -> impl Iterator<Item = (&'static Metric, f64)> {
    let pair = stats.against.as_ref().map(|against| &against.pair);
    let all = pair.into_iter().flat_map(measure_all);
    all.filter(|(metric, _)| [SQNR.name, COSINE.name].contains(&metric.name))
}

fn place(grid: &Grid, group: usize) -> String {
    let [down, across] = grid.place(group);
    let (rows, cols) = (down * grid.tile.0, across * grid.tile.1);
    format!("row {rows}, channel {cols}")
}

fn bars(page: &mut String, what: &str, histogram: &Histogram, binades: bool) {
    let total = histogram.values().sum::<u64>() as f64;
    let largest = histogram.values().copied().max().unwrap_or(1) as f64;
    for (value, count) in histogram {
        let label = label(f32::from_bits(*value), binades);
        let bar = "#".repeat((*count as f64 / largest * BAR).ceil() as usize);
        let share = 100.0 * *count as f64 / total;
        let _ = writeln!(page, "  {what:5} {label:>8} {share:8.3} %  {bar}");
    }
}

fn label(value: f32, binades: bool) -> String {
    match value {
        _ if value.is_nan() => "NaN".into(),
        _ if value.is_infinite() => "Inf".into(),
        _ if value == 0.0 => "0".into(),
        _ if binades => format!("2^{}", value.log2()),
        _ => value.to_string(),
    }
}

/// Formats the statistics of a tensor as one line (a record) of JSON Lines.
pub fn record(shown: &Inspection) -> String {
    let stats = &shown.stats;
    let bin = |(value, count): (&u32, &u64)| json!([to_json(f64::from(f32::from_bits(*value))), count]);
    let histogram = |histogram: &Histogram| -> Vec<Value> { histogram.iter().map(bin).collect() };
    let mut record = json!({
        "type": "tensor",
        "name": shown.of.name,
        "format": shown.of.format.to_string(),
        "shape": shown.of.shape,
        "bits_per_element": stats.bits_per_element(),
        "elements": stats.elements,
        "blocks": stats.blocks,
        "decoded_nonfinite": stats.nonfinite,
        "saturated": stats.saturated,
        "zeros": stats.zeros,
        "negative": stats.negative,
        "zero_blocks": stats.zero_blocks,
        "nan_scales": stats.nan_scales,
        "codes": histogram(&stats.codes),
        "scales": histogram(&stats.scales),
        "globals": stats.globals.iter().map(|global| to_json(f64::from(*global))).collect::<Vec<_>>(),
    });
    if let Some(against) = &stats.against {
        record["clipped"] = json!(against.clipped);
        record["underflow"] = json!(against.underflow);
        record["nonfinite"] = json!(against.nonfinite);
        for (metric, value) in metrics(stats) {
            record[metric.name] = to_json(value);
        }
        let worst = against.worst.iter().map(|worst| {
            let mut block = json!({
                "block": stats.grid.place(worst.group),
                "sqnr": to_json(worst.sqnr),
                "amax": to_json(f64::from(worst.amax)),
                "scale": to_json(f64::from(worst.scale)),
            });
            if let leading @ [_, ..] = leading(&shown.of.shape) {
                block["matrix"] = json!(unravel(worst.expert, leading));
            }
            block
        });
        record["worst"] = worst.collect();
    }
    format!("{record}\n")
}
