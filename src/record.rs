//! What a run measures: the one type between the runner and everything after it.

use serde::{Deserialize, Serialize};

/// Whether a layer is fed the reference's input or the candidate's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Every layer is fed the reference's input, so that its own error shows.
    Local,
    /// The candidate runs free, so that errors add up.
    Cumulative,
}

impl std::fmt::Display for Phase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Local => "local",
            Self::Cumulative => "cumulative",
        })
    }
}

/// One measured number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// `<recipe>/<phase>/<window>`: filter key, test name and JUnit name of the cell that measured it.
    pub cell: String,
    pub recipe: String,
    pub phase: Phase,
    /// Name of the input window, e.g. `alice@4096`.
    pub window: String,
    /// Decoder layer, 0-based; `None` outside the layers.
    pub layer: Option<u32>,
    /// Site name without the layer, e.g. `attention.kv.window`, `output`, `logits`.
    pub site: String,
    /// Name of one of `metrics::METRICS`.
    pub metric: String,
    /// NaN is a measurement too (and fails every gate); JSON stores it as null.
    #[serde(with = "nullable")]
    pub value: f64,
    /// Elements (or rows, for decisions) behind the number.
    pub n: u64,
    /// NaN and infinite elements of the reference's tensor.
    pub nonfinite_want: u64,
    /// NaN and infinite elements of the candidate's tensor.
    pub nonfinite_got: u64,
    /// The element with the largest absolute error, where the metric has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worst: Option<Worst>,
}

/// Full name of a site: `layers.12.output`, or `logits`.
pub fn place(layer: Option<u32>, site: &str) -> String {
    match layer {
        Some(layer) => format!("layers.{layer}.{site}"),
        None => site.to_string(),
    }
}

/// One element, with both values.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Worst {
    pub index: Vec<u64>,
    #[serde(with = "nullable")]
    pub want: f64,
    #[serde(with = "nullable")]
    pub got: f64,
}

/// JSON has no NaN and no infinities: NaN is stored as null, infinities as strings.
pub(crate) mod nullable {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    #[serde(untagged)]
    enum Repr {
        Number(f64),
        Text(String),
        Null,
    }

    pub fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        if value.is_nan() {
            Repr::Null
        } else if value.is_infinite() {
            Repr::Text(if *value > 0.0 { "Infinity" } else { "-Infinity" }.into())
        } else {
            Repr::Number(*value)
        }
        .serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        match Repr::deserialize(deserializer)? {
            Repr::Number(value) => Ok(value),
            Repr::Null => Ok(f64::NAN),
            Repr::Text(text) if text == "Infinity" => Ok(f64::INFINITY),
            Repr::Text(text) if text == "-Infinity" => Ok(f64::NEG_INFINITY),
            Repr::Text(text) => Err(serde::de::Error::custom(format!("not a number: '{text}'"))),
        }
    }
}
