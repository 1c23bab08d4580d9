//! Measurements of a run. The runner writes them as [`Record`]; gates (pass/fail checks) and reports read nothing else.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Source of the input of each layer: the reference, or the candidate's previous layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Each layer of the candidate gets the reference's input, so that only the layer's own error shows.
    Local,
    /// Each layer gets the output of the candidate's previous layer, so that errors accumulate.
    Cumulative,
}

impl Phase {
    /// The name in experiment files and records: `local` or `cumulative`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Cumulative => "cumulative",
        }
    }
}

impl std::fmt::Display for Phase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// One measured number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Name of the cell that measured the value: `<recipe>/<phase>/<window>`. Filters, test reports and JUnit files use this
    /// name.
    pub cell: String,
    /// Name of the recipe.
    pub recipe: String,
    /// Phase of the cell.
    pub phase: Phase,
    /// Name of the input window, e.g. `alice@4096`.
    pub window: String,
    /// Decoder layer, 0-based; `None` for a site (tensor) outside the layers.
    pub layer: Option<u32>,
    /// Name of the site (a tensor of the model) without the layer, e.g. `attention.kv.window`, `output`, `logits`.
    pub site: String,
    /// Name of a metric in `metrics::METRICS`.
    pub metric: String,
    /// Measured value. NaN is a valid measurement (and fails every gate); JSON stores it as null.
    #[serde(with = "nullable")]
    pub value: f64,
    /// Number of elements (or rows, for decisions) from which the value is computed.
    pub n: u64,
    /// Number of NaN and infinite elements in the reference's tensor.
    pub nonfinite_want: u64,
    /// Number of NaN and infinite elements in the candidate's tensor.
    pub nonfinite_got: u64,
    /// The element with the largest absolute error; `None` if the metric has no such element.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worst: Option<Worst>,
    /// Description of the failure; `None` if the value shows no failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Box<Failure>>,
}

impl Record {
    /// Creates a record of a cell; the caller then fills in site, metric and value.
    pub fn blank(cell: &str, recipe: &str, phase: Phase, window: &str) -> Self {
        Self {
            cell: cell.to_string(),
            recipe: recipe.to_string(),
            phase,
            window: window.to_string(),
            layer: None,
            site: String::new(),
            metric: String::new(),
            value: f64::NAN,
            n: 0,
            nonfinite_want: 0,
            nonfinite_got: 0,
            worst: None,
            failure: None,
        }
    }
}

/// Returns the full name of a site (a tensor of the model): `layers.12.output`, or `logits` without a layer.
pub fn place(layer: Option<u32>, site: &str) -> String {
    match layer {
        Some(layer) => format!("layers.{layer}.{site}"),
        None => site.to_string(),
    }
}

/// One element of a tensor, with the values of reference and candidate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Worst {
    /// Index of the element, one number per dimension of the tensor.
    pub index: Vec<u64>,
    /// Value in the reference's tensor.
    #[serde(with = "nullable")]
    pub want: f64,
    /// Value in the candidate's tensor.
    #[serde(with = "nullable")]
    pub got: f64,
}

/// Description of a wrong output, readable without the data.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Failure {
    /// Self-contained sentence. For a wrong output, it names an element, its expected and found value, its bound, and the number
    /// and pattern of wrong elements; for a failed program, it names the mistake.
    pub message: String,
    /// The worst element; `None` if no element can be named, for example if a program wrote no output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worst: Option<Worst>,
    /// Largest allowed error of `worst`; 0 if bits are compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bound: Option<f64>,
    /// Reason for the bound.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
    /// Location of the wrong elements, e.g. `all in columns 512..1024`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub pattern: String,
}

/// Converts a number to JSON, which has no NaN and no infinities: NaN becomes null, infinities become strings.
pub fn to_json(value: f64) -> Value {
    match serde_json::Number::from_f64(value) {
        Some(number) => Value::Number(number),
        None if value.is_nan() => Value::Null,
        None => Value::String(if value > 0.0 { "Infinity" } else { "-Infinity" }.into()),
    }
}

/// Reads a number that [`to_json`] wrote; `None` for any other JSON value.
pub fn from_json(value: &Value) -> Option<f64> {
    match value {
        Value::Number(number) => number.as_f64(),
        Value::Null => Some(f64::NAN),
        Value::String(text) if text == "Infinity" => Some(f64::INFINITY),
        Value::String(text) if text == "-Infinity" => Some(f64::NEG_INFINITY),
        _ => None,
    }
}

/// Serde functions that store numbers as [`to_json`] does.
pub mod nullable {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use serde_json::Value;

    /// Stores a number with [`to_json`](super::to_json).
    pub fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        super::to_json(*value).serialize(serializer)
    }

    /// Reads a number that `serialize` stored; any other value is an error.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        let value = Value::deserialize(deserializer)?;
        super::from_json(&value).ok_or_else(|| serde::de::Error::custom(format!("{value} is not a number")))
    }
}
