//! An experiment as data: the common keys, and the keys of its study (see `studies`).

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

/// Writes keys in the order of a file: short values first, gates last.
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
    /// Also the name of the run's folder.
    pub name: String,
    /// The question, in a sentence; the report's title.
    pub question: String,
    /// The kind of question: a name of `studies::STUDIES`.
    #[serde(default = "model")]
    pub kind: String,
    #[serde(default)]
    pub seed: u64,
    /// Keys of the model's `config.json` that change nothing, and that ulplab does not know: whole names, those within an object with its
    /// name and a dot before them, such as `text_config.foo`. A key that ulplab reads is an error.
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
    /// Site pattern, layers included, e.g. `layers.*.output` or `logits`.
    pub at: String,
    pub phase: Phase,
    /// Over the windows; over layers the worst counts.
    pub statistic: Statistic,
    /// `>= 0.999` or `<= 1e-3`; with `flake` it is left out.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub require: String,
    /// In place of `require`: a bound that a right candidate breaks at most at this rate, from `calibration`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flake: Option<f64>,
    /// The file that `ulplab gate --calibrate` wrote, next to the file with the gate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibration: Option<PathBuf>,
    /// Patterns of the recipes it binds.
    pub recipes: Vec<String>,
    /// The rule is a control: it requires that a recipe that is known to be bad measures as bad, so that the measurement can
    /// fail. A recipe that passes it does not count as passing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub control: bool,
    /// Why this bound.
    pub why: String,
}

impl Rule {
    /// True if the rule applies to a recipe of this name.
    pub fn binds(&self, recipe: &str) -> bool {
        self.recipes.iter().any(|pattern| matches(pattern, recipe))
    }

    /// True if the rule judges this metric at this layer and site.
    pub fn looks_at(&self, metric: &str, layer: Option<u32>, site: &str) -> bool {
        self.metric == metric && matches(&self.at, &place(layer, site))
    }

    /// Returns the rule in a form that is valid in an experiment file: if `require` has a bound, even one from a calibration,
    /// removes `flake` and `calibration`.
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

/// Statistic that makes one value of the windows' values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Statistic {
    Mean,
    Min,
    Max,
    /// Lower end of the 95 % bootstrap interval of the mean over windows.
    CiLow,
    /// Upper end of it.
    CiHigh,
    /// Lower limit of the mean over windows, one-sided with a confidence of 95 %, by the studentised bootstrap; from 6 windows on.
    LimitLow,
    /// Upper limit of it: below a margin, it shows that the candidate is not inferior by more than that.
    LimitHigh,
    /// The mean over windows that are drawn one after the other, looked at after each: evidence decides for or against `require`, each
    /// wrongly with a probability of at most 5 %.
    Sequential,
}

/// Numbers that recipes are tried on, under the name that their records have as site; `T` says how they come about.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Source<T> {
    pub name: String,
    pub from: T,
}
