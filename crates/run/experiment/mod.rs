//! Rust types of an experiment file: the keys that all experiments have, and the keys of the experiment's study (see `studies`).

pub mod file;
mod missing;
mod mistake;
mod text;

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value};

pub use mistake::{Mistake, Step};
pub use text::{MOST_DRAWS, Reading, Window, written_out};

use crate::json;
use ulplab_core::pattern::matches;
use ulplab_core::record::{Phase, place};

/// An experiment: a question, and the measurements that answer it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Experiment {
    #[serde(flatten)]
    pub head: Head,
    /// All other keys: the keys of the study that [`Head::kind`] names.
    #[serde(flatten)]
    pub body: Map<String, Value>,
}

/// Serializes the keys in the order in which people write experiment files: short values first, gates last.
impl Serialize for Experiment {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut file = json::keys(&self.head);
        let gates = file.shift_remove_entry("gate");
        file.extend(self.body.clone().into_iter().chain(gates));
        file.serialize(serializer)
    }
}

/// The keys of every kind of experiment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Head {
    /// Name of the experiment, and of the folder of its runs.
    pub name: String,
    /// The question, in a sentence; the report's title.
    pub question: String,
    /// Name of the study (the kind of experiment): an entry of `studies::STUDIES`, such as `model` or `kernels`.
    #[serde(default = "model")]
    pub kind: String,
    #[serde(default)]
    pub seed: u64,
    /// Keys of the model's `config.json` that ulplab does not know, and that do not change the model's result. Write a key within
    /// an object with the object's name and a dot before it, such as `text_config.foo`. A key that ulplab reads is an error.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub inert: Vec<String>,
    #[serde(default, rename = "gate")]
    pub gates: Vec<Rule>,
}

fn model() -> String {
    "model".into()
}

impl Head {
    /// Names of the head's keys in a file.
    pub const KEYS: [&str; 6] = ["name", "question", "kind", "seed", "inert", "gate"];
}

impl Experiment {
    /// Returns the recipes of the experiment with their names.
    pub fn recipes(&self) -> Vec<(&str, &Value)> {
        let recipes = self.body.get("recipe").and_then(Value::as_array);
        let recipes = recipes.into_iter().flatten();
        let named = recipes.filter_map(|recipe| Some((recipe.get("name")?.as_str()?, recipe)));
        named.collect()
    }
}

impl std::ops::Deref for Experiment {
    type Target = Head;

    fn deref(&self) -> &Head {
        &self.head
    }
}

/// A gate's demand.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("anyOf" = [{ "required": ["require"] }, { "required": ["flake"] }, { "required": ["calibration"] }]))]
pub struct Rule {
    /// Name of a metric.
    pub metric: String,
    /// Pattern of tensor names (sites), with the layer, e.g. `layers.*.output` or `logits`.
    pub at: String,
    pub phase: Phase,
    /// Statistic of the metric over the windows. If `at` matches several layers, the worst layer is compared with the bound.
    pub statistic: Statistic,
    /// Bound on the statistic, `>= 0.999` or `<= 1e-3`; left out if the gate has `flake`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub require: String,
    /// Highest rate of false alarms, in place of `require`. The bound is computed from `calibration` so that a correct candidate
    /// violates it at most at this rate.
    pub flake: Option<f64>,
    /// File that `ulplab gate --calibrate` wrote; the path is relative to the folder of the file with the gate.
    pub calibration: Option<PathBuf>,
    /// Patterns of the names of the recipes to which the gate applies.
    pub recipes: Vec<String>,
    /// True for a control: a gate on a recipe that is known to be bad, with a bound that only bad results meet. It shows that the
    /// measurement can detect a bad recipe. A control that holds does not count as a pass.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub control: bool,
    /// Reason for this bound, in a sentence.
    pub why: String,
}

impl Rule {
    /// True if the rule applies to a recipe of this name.
    pub fn binds(&self, recipe: &str) -> bool {
        self.recipes.iter().any(|pattern| matches(pattern, recipe))
    }

    /// True if the rule's bound applies to this metric at this layer and site.
    pub fn looks_at(&self, metric: &str, layer: Option<u32>, site: &str) -> bool {
        self.metric == metric && matches(&self.at, &place(layer, site))
    }

    /// Returns the rule as an experiment file states it: with either a bound or a false-alarm rate. If `require` has a bound
    /// (stated or calibrated), removes `flake` and `calibration`.
    pub fn stated(self) -> Self {
        match self.require.is_empty() {
            true => self,
            false => Self {
                flake: None,
                calibration: None,
                ..self
            },
        }
    }
}

/// Statistic that reduces the values of all windows to one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Statistic {
    Mean,
    Min,
    Max,
    /// Lower end of the 95 % bootstrap interval of the mean over windows.
    CiLow,
    /// Upper end of the 95 % bootstrap interval of the mean over windows.
    CiHigh,
    /// Lower limit of the mean over windows, one-sided with a confidence of 95 %, by the studentised bootstrap; from 6 windows on.
    LimitLow,
    /// Upper limit of the mean over windows, by the method of `limit_low`. If it is below a margin, the candidate is shown to be
    /// worse by less than the margin.
    LimitHigh,
    /// The mean over randomly drawn windows, tested after each window. The evidence so far decides for or against `require`; the
    /// probability of each wrong decision is at most 5 %.
    Sequential,
}

/// Input numbers on which recipes are tested. `name` is the site in the records of these tests, and `from` describes the origin
/// of the numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Source<T> {
    pub name: String,
    pub from: T,
}
