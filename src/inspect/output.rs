//! Statistics as text and as JSON.

use std::fmt::Write as _;
use std::io::Write;

use serde_json::{Value, json};

use super::stats::{Histogram, Stats};
use crate::error::{Error, Result};
use crate::formats::Format;
use crate::metrics::{Metric, measure_all};
use crate::packed::Grid;
use crate::record::to_json;

/// Characters of the longest bar.
const BAR: f64 = 40.0;

pub fn print(
    out: &mut dyn Write,
    json: bool,
    name: &str,
    format: &Format,
    shape: &[usize],
    stats: &Stats,
) -> Result<()> {
    let text = match json {
        true => format!("{}\n", record(name, format, shape, stats)),
        false => page(name, format, shape, stats),
    };
    out.write_all(text.as_bytes())
        .map_err(Error::io("standard output", "write"))
}

fn page(name: &str, format: &Format, shape: &[usize], stats: &Stats) -> String {
    let elements: u64 = stats.codes.values().sum();
    let blocks = stats.grid.len() as u64;
    let share = |count: u64, of: u64| format!("{count} ({:.3} %)", 100.0 * count as f64 / of.max(1) as f64);
    let bits = stats.bits_per_element;
    let mut page = format!("{name}  {format}  {shape:?}  {bits:.4} bits per element\n");
    let mut line = |what: &str, text: String| {
        let _ = writeln!(page, "  {what:14} {text}");
    };
    line("saturated", share(stats.saturated, elements));
    line("zero codes", share(stats.zeros, elements));
    line("negative", share(stats.negative, elements));
    if format.scaling.is_some() {
        line("zero blocks", share(stats.zero_blocks, blocks));
        line("NaN scales", share(stats.nan_scales, blocks));
    }
    if let [global] = stats.globals[..] {
        line("global scale", format!("{global:e}"));
    }
    if let Some(against) = &stats.against {
        line("underflow", share(against.underflow, elements));
        if against.nonfinite > 0 {
            line("NaN or Inf", share(against.nonfinite, elements));
        }
        for (metric, value) in shown(stats) {
            let unit = if metric.unit.is_empty() {
                String::new()
            } else {
                format!(" {}", metric.unit)
            };
            let text = if metric.name == "sqnr" {
                format!("{value:.2}")
            } else {
                format!("{value:.8}")
            };
            line(metric.name, text + &unit);
        }
        for worst in &against.worst {
            let place = place(&stats.grid, worst.group);
            let (sqnr, amax, scale) = (worst.sqnr, worst.amax, worst.scale);
            line(
                "worst block",
                format!("{place}: SQNR {sqnr:.2} dB, amax {amax:e}, scale {scale:e}"),
            );
        }
    }
    bars(&mut page, "code", &stats.codes, format.element.bits >= 8);
    bars(&mut page, "scale", &stats.scales, true);
    page.push('\n');
    page
}

/// Metrics of a tensor beside its source.
fn shown(stats: &Stats) -> impl Iterator<Item = (&'static Metric, f64)> {
    let pair = stats.against.as_ref().map(|against| &against.pair);
    let metrics = pair.into_iter().flat_map(measure_all);
    metrics.filter(|(metric, _)| ["sqnr", "cosine"].contains(&metric.name))
}

fn place(grid: &Grid, group: usize) -> String {
    let [down, across] = grid.place(group);
    let (rows, cols) = (down * grid.tile.0, across * grid.tile.1);
    format!("row {rows}, channel {cols}")
}

fn bars(page: &mut String, what: &str, histogram: &Histogram, binades: bool) {
    let (total, largest) = (
        histogram.values().sum::<u64>() as f64,
        histogram.values().copied().max(),
    );
    for (value, count) in histogram {
        let label = label(f32::from_bits(*value), binades);
        let bar = "#".repeat((*count as f64 / largest.unwrap_or(1) as f64 * BAR).ceil() as usize);
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

fn record(name: &str, format: &Format, shape: &[usize], stats: &Stats) -> Value {
    let histogram = |histogram: &Histogram| -> Vec<Value> {
        let bins = histogram.iter();
        bins.map(|(value, count)| json!([to_json(f64::from(f32::from_bits(*value))), count]))
            .collect()
    };
    let mut record = json!({
        "type": "tensor",
        "name": name,
        "format": format.to_string(),
        "shape": shape,
        "bits_per_element": stats.bits_per_element,
        "elements": stats.codes.values().sum::<u64>(),
        "blocks": stats.grid.len(),
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
        record["underflow"] = json!(against.underflow);
        record["nonfinite"] = json!(against.nonfinite);
        for (metric, value) in shown(stats) {
            record[metric.name] = to_json(value);
        }
        let worst = against.worst.iter().map(|worst| {
            json!({
                "block": stats.grid.place(worst.group),
                "sqnr": to_json(worst.sqnr),
                "amax": to_json(f64::from(worst.amax)),
                "scale": to_json(f64::from(worst.scale)),
            })
        });
        record["worst"] = worst.collect();
    }
    record
}
