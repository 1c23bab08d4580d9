//! Records as JSON Lines: one line for each tensor or decision measured, with all its metrics.

use std::collections::BTreeMap;
use std::io::{self, Write};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use ulplab_core::record::{Failure, Phase, Record, Worst, from_json, to_json};

/// Consecutive records of one thing.
#[derive(Serialize, Deserialize)]
#[serde(tag = "type", rename = "measurement")]
struct Measurement {
    cell: String,
    recipe: String,
    phase: Phase,
    window: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    layer: Option<u32>,
    site: String,
    n: u64,
    #[serde(default, skip_serializing_if = "zero")]
    nonfinite_want: u64,
    #[serde(default, skip_serializing_if = "zero")]
    nonfinite_got: u64,
    /// Metric to value; NaN is null, infinities are strings.
    metrics: Map<String, Value>,
    /// Belongs to `max_abs`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    worst: Option<Worst>,
    /// Belongs to the metric of that name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    failures: BTreeMap<String, Box<Failure>>,
}

fn zero(n: &u64) -> bool {
    *n == 0
}

/// Writes records in their order.
pub fn write(records: &[Record], out: &mut impl Write) -> io::Result<()> {
    let who = |r: &Record| (r.layer, r.n, r.nonfinite_want, r.nonfinite_got);
    let mut rest = records;
    while let Some(first) = rest.first() {
        // A metric that comes twice begins a new line, since a line has one value of each.
        let mut metrics = Map::new();
        let joins = |record: &&Record| {
            let same = who(record) == who(first) && record.site == first.site && record.cell == first.cell;
            same && !metrics.contains_key(&record.metric) && {
                metrics.insert(record.metric.clone(), to_json(record.value));
                true
            }
        };
        let group;
        (group, rest) = rest.split_at(rest.iter().take_while(joins).count());
        let Record {
            cell,
            recipe,
            phase,
            window,
            layer,
            site,
            n,
            nonfinite_want,
            nonfinite_got,
            ..
        } = first.clone();
        let worst = group.iter().find_map(|record| record.worst.clone());
        let failures = group
            .iter()
            .filter_map(|record| Some((record.metric.clone(), record.failure.clone()?)));
        let line = Measurement {
            cell,
            recipe,
            phase,
            window,
            layer,
            site,
            n,
            nonfinite_want,
            nonfinite_got,
            metrics,
            worst,
            failures: failures.collect(),
        };
        serde_json::to_writer(&mut *out, &line)?;
        out.write_all(b"\n")?;
    }
    Ok(())
}

/// Reads what [`write`] wrote; the error names the line.
pub fn read(text: &str) -> Result<Vec<Record>, String> {
    let mut records = Vec::new();
    for (number, text) in text.lines().enumerate() {
        let wrong = |message: String| format!("line {}: {message}", number + 1);
        let line: Measurement = serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
        for (metric, value) in &line.metrics {
            records.push(Record {
                cell: line.cell.clone(),
                recipe: line.recipe.clone(),
                phase: line.phase,
                window: line.window.clone(),
                layer: line.layer,
                site: line.site.clone(),
                metric: metric.clone(),
                value: from_json(value).ok_or_else(|| wrong(format!("{metric}: {value} is not a number")))?,
                n: line.n,
                nonfinite_want: line.nonfinite_want,
                nonfinite_got: line.nonfinite_got,
                worst: line
                    .worst
                    .clone()
                    .filter(|_| metric == ulplab_core::metrics::MAX_ABS.name),
                failure: line.failures.get(metric).cloned(),
            });
        }
    }
    Ok(records)
}
