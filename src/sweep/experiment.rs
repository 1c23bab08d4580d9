//! The experiment file: one TOML per question.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::record::Phase;

/// A question, and what to run to answer it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// Also the name of the run's folder.
    pub name: String,
    /// The question, in a sentence; the report's title.
    pub question: String,
    /// Name of a checkpoint in `datasets/manifest.toml`, or a folder with `config.json` and safetensors.
    pub model: String,
    /// Tokens in each window.
    pub tokens: usize,
    #[serde(default)]
    pub seed: u64,
    pub phases: Vec<Phase>,
    #[serde(rename = "window")]
    pub windows: Vec<Window>,
    #[serde(rename = "recipe")]
    pub recipes: Vec<Recipe>,
    #[serde(default, rename = "gate")]
    pub gates: Vec<Rule>,
}

/// A piece of text fed to the model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Window {
    /// Name of a text in `datasets/manifest.toml`.
    pub text: String,
    /// First byte.
    pub offset: usize,
}

impl Window {
    pub fn name(&self) -> String {
        format!("{}@{}", self.text, self.offset)
    }
}

/// Formats by site: a candidate to measure against the reference.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    pub name: String,
    /// What it stands for, in a line.
    pub doc: String,
    /// Replace each rounding error by Gaussian noise of the same energy: size without structure.
    #[serde(default)]
    pub noise: bool,
    #[serde(default, rename = "round")]
    pub rounds: Vec<Round>,
}

/// Round what passes at some sites.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Round {
    /// Site pattern; `*` stands for one name between dots or a part of it, `**` for any number of them.
    pub at: String,
    /// A KV record (`v4_fp8`), a named format (`nvfp4`) or a format string (`e2m1/b16:e4m3/t:f32`).
    pub format: String,
    /// Only some channels: `nope` or `rope`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub segment: Option<Segment>,
    /// Only one reader of the tensor: `key` or `value`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
    /// Only some layers, e.g. `"0-9,30"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layers: Option<String>,
    /// Rotate by a Hadamard matrix before rounding, and leave the tensor rotated.
    #[serde(default)]
    pub hadamard: bool,
}

/// Some channels of a KV vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Segment {
    /// The channels without position.
    Nope,
    /// The trailing channels that RoPE rotates.
    Rope,
}

/// One reader of a KV vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    Key,
    Value,
}

/// What a gate demands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Name of a metric.
    pub metric: String,
    /// Site pattern, layers included, e.g. `layers.*.output` or `logits`.
    pub at: String,
    pub phase: Phase,
    /// Over the windows; over layers the worst counts.
    pub statistic: Statistic,
    /// `>= 0.999` or `<= 1e-3`.
    pub require: String,
    /// Patterns of the recipes it binds.
    pub recipes: Vec<String>,
    /// Why this bound.
    pub why: String,
}

/// How the values of the windows become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Statistic {
    Mean,
    Min,
    Max,
    /// Lower end of the 95 % bootstrap interval of the mean over windows.
    CiLow,
    /// Upper end of it.
    CiHigh,
}

impl Experiment {
    /// Finds what no model is needed to find: the offending text and what is wrong with it.
    pub fn check(&self) -> Result<(), (String, String)> {
        let wrong = |place: &str, message: String| Err((place.to_string(), message));
        if self.tokens < 2 {
            return wrong("tokens", format!("tokens = {}: a window needs at least 2", self.tokens));
        }
        for (what, empty) in [
            ("phases", self.phases.is_empty()),
            ("window", self.windows.is_empty()),
            ("recipe", self.recipes.is_empty()),
        ] {
            if empty {
                return wrong(what, format!("no {what} is given"));
            }
        }
        if let Some(name) = repeated(self.windows.iter().map(Window::name)) {
            return wrong(&name, format!("window '{name}' is given twice"));
        }
        let plain =
            |name: &str| !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c));
        for name in [&self.name]
            .into_iter()
            .chain(self.recipes.iter().map(|recipe| &recipe.name))
        {
            if !plain(name) {
                return wrong(
                    name,
                    format!("'{name}' is not a name: letters, digits, '_' and '-' only"),
                );
            }
        }
        let reserved = crate::sweep::plan::REFERENCE.to_string();
        let names = self.recipes.iter().map(|recipe| recipe.name.clone()).chain([reserved]);
        if let Some(name) = repeated(names) {
            return wrong(&name, format!("recipe name '{name}' is taken"));
        }
        Ok(())
    }
}

/// The first name that occurs a second time.
fn repeated(names: impl Iterator<Item = String>) -> Option<String> {
    let mut seen = std::collections::HashSet::new();
    names.into_iter().find(|name| !seen.insert(name.clone()))
}
