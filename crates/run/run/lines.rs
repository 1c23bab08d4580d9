//! Records as JSON Lines: one line for each measured tensor or decision (such as a top-k selection), with all its metrics.

use std::collections::BTreeMap;
use std::io::{self, Write};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::json::is_default;
use ulplab_core::metrics::MAX_ABS;
use ulplab_core::record::{Failure, Phase, Record, Worst, from_json, to_json};

/// One line of the file: the values of several metrics, from consecutive records of one tensor or decision.
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
    #[serde(default, skip_serializing_if = "is_default")]
    nonfinite_want: u64,
    #[serde(default, skip_serializing_if = "is_default")]
    nonfinite_got: u64,
    /// Value of each metric, by the metric's name. NaN is null, infinities are strings.
    metrics: Map<String, Value>,
    /// Element with the largest absolute error (metric `max_abs`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    worst: Option<Worst>,
    /// Failures by metric name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    failures: BTreeMap<String, Box<Failure>>,
}

impl Measurement {
    /// True if the record can be added to this line: the record is about the same tensor or decision, and the line has no value
    /// of the record's metric yet.
    fn takes(&self, record: &Record) -> bool {
        let same = (self.n, self.nonfinite_want, self.nonfinite_got)
            == (record.n, record.nonfinite_want, record.nonfinite_got);
        same && self.layer == record.layer
            && self.site == record.site
            && self.cell == record.cell
            && !self.metrics.contains_key(&record.metric)
    }
}

/// Writes records as lines, in their order.
pub fn write(records: &[Record], out: &mut impl Write) -> io::Result<()> {
    let mut rest = records.iter().peekable();
    while let Some(first) = rest.peek() {
        let mut line = Measurement {
            cell: first.cell.clone(),
            recipe: first.recipe.clone(),
            phase: first.phase,
            window: first.window.clone(),
            layer: first.layer,
            site: first.site.clone(),
            n: first.n,
            nonfinite_want: first.nonfinite_want,
            nonfinite_got: first.nonfinite_got,
            metrics: Map::new(),
            worst: None,
            failures: BTreeMap::new(),
        };
        while let Some(record) = rest.next_if(|record| line.takes(record)) {
            line.metrics.insert(record.metric.clone(), to_json(record.value));
            line.worst = line.worst.or_else(|| record.worst.clone());
            let failure = record.failure.clone().map(|failure| (record.metric.clone(), failure));
            line.failures.extend(failure);
        }
        serde_json::to_writer(&mut *out, &line)?;
        out.write_all(b"\n")?;
    }
    Ok(())
}

/// Reads the output of [`write`]. An error names the line.
pub fn read(text: &str) -> Result<Vec<Record>, String> {
    let mut records = Vec::new();
    for (number, text) in text.lines().enumerate() {
        let wrong = |message: String| format!("line {}: {message}", number + 1);
        let line: Measurement = serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
        for (metric, value) in &line.metrics {
            records.push(Record {
                layer: line.layer,
                site: line.site.clone(),
                metric: metric.clone(),
                value: from_json(value).ok_or_else(|| wrong(format!("{metric}: {value} is not a number")))?,
                n: line.n,
                nonfinite_want: line.nonfinite_want,
                nonfinite_got: line.nonfinite_got,
                worst: line.worst.clone().filter(|_| metric == MAX_ABS.name),
                failure: line.failures.get(metric).cloned(),
                ..Record::blank(&line.cell, &line.recipe, line.phase, &line.window)
            });
        }
    }
    Ok(records)
}
