//! Digests of the definitions of metrics and formats, made from their results on a fixed sample of numbers. A changed digest
//! shows that a definition changed, so that the same experiment gives other numbers.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Run;
use ulplab_core::formats::codec;
use ulplab_core::metrics::{Choice, Logits, METRICS, Pair, RoundTrip, measure_all};

/// Number of columns of the sample, the numbers on which all digests are computed. 512 is the width of the widest cache record
/// that a format stores, and a multiple of the widths of all other records.
const COLS: usize = 512;
const ROWS: usize = 8;

/// Digests of the definitions that a run or a calibration relies on, by name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Definitions {
    /// For each format that recipes name, the blake3 of the encoded bytes and decoded values of a fixed sample of numbers.
    formats: BTreeMap<String, String>,
    /// blake3 of each metric's value on a fixed sample of numbers, or of the metric's description if the sample gives no value.
    metrics: BTreeMap<String, String>,
}

impl Definitions {
    /// Returns digests of this program's definitions of the metrics and formats of a run.
    pub fn of(run: &Run) -> Self {
        let recipes = run.manifest.experiment.recipes().into_iter().map(|(_, recipe)| recipe);
        Self::new(run.records.iter().map(|record| &*record.metric), recipes)
    }

    /// Returns digests of this program's definitions of the given metrics, and of the formats that the recipes name.
    pub fn new<'a>(metrics: impl Iterator<Item = &'a str>, recipes: impl Iterator<Item = &'a Value>) -> Self {
        let mut words = BTreeSet::new();
        recipes.for_each(|recipe| collect(recipe, &mut words));
        let formats = words.into_iter();
        let formats = formats.filter_map(|word| Some((word.clone(), of_format(&word)?)));
        let measured: BTreeSet<&str> = metrics.collect();
        let values = on_sample();
        let metrics = measured.into_iter().map(|name| (name.into(), of_metric(name, &values)));
        Self {
            formats: formats.collect(),
            metrics: metrics.collect(),
        }
    }

    /// True if the definition of a metric is stored.
    pub fn has(&self, metric: &str) -> bool {
        self.metrics.contains_key(metric)
    }

    /// Describes the definitions that differ between `self` and `now`. Ignores a name that only one of the two contains.
    pub fn changed(&self, now: &Self) -> Vec<String> {
        let mut all = Vec::new();
        for (noun, then, now) in [
            ("the rule of the format", &self.formats, &now.formats),
            ("the definition of the metric", &self.metrics, &now.metrics),
        ] {
            let differs = |(name, digest): &(&String, &String)| now.get(*name).is_some_and(|now| now != *digest);
            let changed = then.iter().filter(differs);
            all.extend(changed.map(|(name, _)| format!("{noun} '{name}' changed")));
        }
        all
    }
}

/// Collects all strings in a JSON value.
fn collect(value: &Value, words: &mut BTreeSet<String>) {
    match value {
        Value::String(word) => {
            words.insert(word.clone());
        }
        Value::Array(values) => values.iter().for_each(|value| collect(value, words)),
        Value::Object(values) => values.values().for_each(|value| collect(value, words)),
        _ => {}
    }
}

/// Returns numbers of both signs and many exponents, the same on all machines: only exact products and powers of two are used.
fn sample(seed: u32) -> Vec<f32> {
    let number = |at: u32| {
        let word = (at + seed * 7919).wrapping_mul(2_654_435_769) ^ (at >> 3);
        let (sign, exponent) = (word & 1, (word >> 1) % 9);
        let fraction = 1.0 + (word >> 8) as f32 / (1 << 24) as f32;
        let size = fraction * 2f32.powi(exponent as i32 - 6 + (at / COLS as u32 % 3) as i32);
        if sign == 1 { -size } else { size }
    };
    (0..(ROWS * COLS) as u32).map(number).collect()
}

/// Returns the digest of the sample's encoded bytes and decoded values; `None` if `word` does not name a format.
fn of_format(word: &str) -> Option<String> {
    let codec = codec(word).ok()?;
    let cols = [COLS, 128].into_iter().find(|cols| codec.check(*cols).is_ok())?;
    let mut values = sample(0);
    let encoded = codec.encode(&values, cols);
    codec.decode(&encoded, &mut values);
    let mut digest = blake3::Hasher::new();
    for part in &encoded.parts {
        digest.update(&part.bytes);
    }
    for value in &values {
        digest.update(&value.to_le_bytes());
    }
    Some(digest.finalize().to_hex().to_string())
}

/// Returns the value of each metric on two slightly different samples. Each metric reads the samples in the form that it needs:
/// tensors, logits, top-k choices, or tensors before and after a round trip.
fn on_sample() -> BTreeMap<&'static str, f64> {
    let want = sample(0);
    let got: Vec<f32> = want.iter().zip(sample(1)).map(|(x, other)| x + other / 256.0).collect();
    let pair = Pair::new(&want, &got).with_ulps(&want, &got);
    let targets: Vec<u32> = (0..ROWS as u32).map(|row| row * 61).collect();
    let logits = Logits::new(&want, &got, COLS, &targets);
    let chosen = |by: &[f32]| -> Vec<i32> {
        let row = |row: &[f32]| {
            let mut order: Vec<i32> = (0..COLS as i32).collect();
            order.sort_by(|a, b| row[*b as usize].total_cmp(&row[*a as usize]));
            order.truncate(32);
            order
        };
        by.chunks(COLS).flat_map(row).collect()
    };
    let choice = Choice::new(&chosen(&want), &chosen(&got), 32, &want, COLS, None);
    let trip = RoundTrip::new(&pair, &want, &got, COLS, 8.0);
    let all = measure_all(&pair).chain(measure_all(&logits));
    let all = all.chain(measure_all(&choice));
    let all = all.chain(measure_all(&trip));
    all.map(|(metric, value)| (metric.name, value)).collect()
}

/// Returns the digest of a metric: of its value on the sample, or of its description if the sample gives no value.
fn of_metric(name: &str, values: &BTreeMap<&'static str, f64>) -> String {
    let known = METRICS.iter().find(|metric| metric.name == name);
    let unit = known.map_or(String::new(), |metric| format!("[{}] {:?}", metric.unit, metric.better));
    // Round to eight digits after the point: other processors may add in another order, and that does not change the definition.
    let defined = match (values.get(name), known) {
        (Some(value), _) => format!("{value:.8e}"),
        (None, Some(metric)) => metric.doc.into(),
        (None, None) => String::new(),
    };
    let text = format!("{unit}\n{defined}");
    blake3::hash(text.as_bytes()).to_hex().to_string()
}
