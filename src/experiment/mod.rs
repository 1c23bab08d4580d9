//! The experiment file: one TOML per question.

pub mod keys;
pub mod load;
pub mod source;

use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::backend::program::{Mode, TIMEOUT};
use crate::studies::kernels::operations::{OwnCase, OwnOp};
use source::Source;
use ulplab_core::formats::Direction;
use ulplab_core::ops::call::Type;
use ulplab_core::record::Phase;

/// A question, and what to run to answer it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// Also the name of the run's folder.
    pub name: String,
    /// The question, in a sentence; the report's title.
    pub question: String,
    #[serde(default)]
    pub kind: Kind,
    /// Name of a checkpoint in `datasets/manifest.toml`, or the path of a folder with `config.json` and safetensors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Tokens in each window of text.
    #[serde(default)]
    pub tokens: usize,
    #[serde(default)]
    pub seed: u64,
    /// How a model, or Swap-FFN, is run; other kinds have no phases, and are recorded as local.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub phases: Vec<Phase>,
    /// Independent draws of each source that is drawn, a window each.
    #[serde(default)]
    pub draws: usize,
    /// Rows and columns of a draw; of a recall: queries and entries; of a recurrence: heads and steps; of Swap-FFN:
    /// sequences and tokens.
    #[serde(default)]
    pub shape: [usize; 2],
    #[serde(default, rename = "window")]
    pub windows: Vec<Window>,
    /// What formats are tried on, where it is not a model.
    #[serde(default, rename = "source", skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<Source>,
    /// Of kernels: patterns of variants, e.g. `rope.*`, in the place of recipes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kernels: Vec<String>,
    /// Of kernels: programs that are variants too.
    #[serde(default, rename = "command", skip_serializing_if = "Vec::is_empty")]
    pub commands: Vec<Command>,
    /// Of kernels: operations of the user's.
    #[serde(default, rename = "op", skip_serializing_if = "Vec::is_empty")]
    pub ops: Vec<OwnOp>,
    /// Of kernels: cases of the user's.
    #[serde(default, rename = "case", skip_serializing_if = "Vec::is_empty")]
    pub own_cases: Vec<OwnCase>,
    /// Of kernels: patterns of the cases to try them on; all of the operations, if empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cases: Vec<String>,
    /// Of a stored run of kernels: names of these cases. No experiment file says them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub case_names: Vec<String>,
    #[serde(default, rename = "recipe")]
    pub recipes: Vec<Recipe>,
    #[serde(default, rename = "gate")]
    pub gates: Vec<Rule>,
}

/// What recipes are tried on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A whole model: rounded at its sites, compared with itself.
    #[default]
    Model,
    /// Numbers from each source: stored in a format and read back.
    RoundTrip,
    /// Scores from each source: the best are selected, with and without an error in the scores.
    Recall,
    /// Operations with a state that is carried from step to step, with inputs from each source.
    Recurrence,
    /// Models that exchange vectors with banks by discrete decisions, with weights and tokens from each source.
    SwapFfn,
    /// GPU kernels: every variant on every case of its operation.
    Kernels,
}

/// A piece of text fed to the model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Window {
    /// Name of a text in `datasets/manifest.toml`, or the path of a text file.
    pub text: String,
    /// First byte.
    #[serde(default)]
    pub offset: usize,
}

impl Window {
    /// `alice@4096`. A path is named by its file without the extension; what is no letter, digit, `_` or `-` becomes `_`.
    pub fn name(&self) -> String {
        let stem = Path::new(&self.text).file_stem().unwrap_or_default().to_string_lossy();
        let plain = |c: char| {
            if c.is_ascii_alphanumeric() || "_-".contains(c) {
                c
            } else {
                '_'
            }
        };
        format!("{}@{}", stem.chars().map(plain).collect::<String>(), self.offset)
    }
}

/// A candidate to measure against the reference: formats by site, or one format (round trip), or noise (recall), or a form
/// (recurrence).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    pub name: String,
    /// What it stands for, in a line.
    pub doc: String,
    /// Replace each rounding error by Gaussian noise of the same energy: size without structure.
    #[serde(default)]
    pub noise: bool,
    #[serde(default, rename = "round", skip_serializing_if = "Vec::is_empty")]
    pub rounds: Vec<Round>,
    /// Kernels that stand in for operations of the model, as `op.variant`; of an operation's the first that takes the sizes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kernels: Vec<String>,
    /// Type of the tensors that these read and write.
    #[serde(default, skip_serializing_if = "Type::is_f32")]
    pub dtype: Type,
    /// Round trip: what numbers are stored in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<String>,
    /// Round trip: the recipe this one is compared with on the same numbers, by `sqnr_gain`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub against: Option<String>,
    /// Recall: Gaussian noise added to the scores, in standard deviations of the row's scores.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub score_noise: Option<f64>,
    /// Recurrence: how it is computed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub form: Option<Form>,
    /// Swap-FFN: how the router is read, where that is not as the reference reads it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub router: Option<Router>,
    /// Swap-FFN: decisions with a larger margin in the reference's logits must not fall otherwise (`flips_outside`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub margin: Option<f64>,
}

/// A reading of Swap-FFN's router.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Router {
    pub form: RouterForm,
    pub decides_on: DecidesOn,
}

/// How its logits are computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RouterForm {
    /// One vector for each logit.
    #[default]
    Folded,
    /// By way of the router's projection.
    Unfolded,
}

/// What its decisions compare.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DecidesOn {
    #[default]
    Logits,
    /// Their sigmoid and softmax.
    Probabilities,
}

/// A way to compute a recurrence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Form {
    /// Step by step, as it is defined.
    Recurrent,
    /// Linear attention: step by step, both reads of the state in one pass.
    OnePass,
    /// State-space model: step by step, b folded into c.
    Folded,
    /// In chunks of so many steps.
    Chunked(usize),
    /// Linear attention: as the prefill kernel of that name, with all it rounds.
    Prefill(String),
}

/// A program that computes an operation: it reads a problem from one file and writes what it computes to another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Command {
    /// The operation.
    pub op: String,
    /// It is called `op.name`.
    pub name: String,
    /// What is special about it, in a line.
    pub doc: String,
    /// The program and its first arguments; in mode `once` the paths of the two files come behind them.
    pub run: Vec<String>,
    #[serde(default)]
    pub mode: Mode,
    /// Seconds that it may take for one run of a case, before it is killed.
    #[serde(default = "timeout")]
    pub timeout: f64,
    /// Patterns of the cases to try it on, in the place of the experiment's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cases: Vec<String>,
    /// Patterns of files that it is made of besides those that `run` names, from the folder of the experiment file: a run is
    /// gone on with only if they are as they were.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub watch: Vec<String>,
    /// Why two runs may differ.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nondeterministic: Option<String>,
}

fn timeout() -> f64 {
    TIMEOUT
}

impl Command {
    /// Its name as a recipe.
    pub fn recipe(&self) -> String {
        format!("{}.{}", self.op, self.name)
    }
}

/// Round what passes at some sites.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Round {
    /// Site pattern; `*` stands for one name between dots or a part of it, `**` for any number of them. Of a recurrence: the
    /// `state` that is stored between steps, a parameter, or an intermediate of the chunked form. Of Swap-FFN: a site of
    /// its path, whatever the event.
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
    /// Recurrence: which of the two codes about a number it becomes.
    #[serde(default, skip_serializing_if = "Direction::is_nearest")]
    pub direction: Direction,
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
    /// The rule holds only if the measurement can fail: it demands that what is known to be bad is seen to be bad. A recipe
    /// that passes it passes nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub control: bool,
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
    /// Names of all windows in the order they are worked on: draws, then texts; of kernels the cases.
    pub fn window_names(&self) -> Vec<String> {
        if self.kind == Kind::Kernels {
            return self.case_names.clone();
        }
        let draws = (1..=self.draws).map(|draw| format!("draw-{draw}"));
        draws.chain(self.windows.iter().map(Window::name)).collect()
    }

    /// What is drawn, in words; none where nothing is.
    pub fn drawn(&self) -> Option<String> {
        let (draws, [rows, cols]) = (self.draws, self.shape);
        let each = match self.kind {
            Kind::Recurrence if rows == 1 => format!("{cols} steps"),
            Kind::Recurrence => format!("{rows} heads × {cols} steps"),
            Kind::SwapFfn if rows == 1 => format!("{cols} tokens"),
            Kind::SwapFfn => format!("{rows} sequences × {cols} tokens"),
            _ => format!("{rows} × {cols}"),
        };
        let noun = if draws == 1 { "draw" } else { "draws" };
        (draws > 0).then(|| format!("{draws} {noun} of {each}"))
    }

    /// Whether there are recipes of which kernels compute operations of the model.
    pub fn kernels_stand_in(&self) -> bool {
        self.recipes.iter().any(|recipe| !recipe.kernels.is_empty())
    }

    /// The phases records are made in.
    pub fn phases(&self) -> &[Phase] {
        match self.kind {
            Kind::Model | Kind::SwapFfn => &self.phases,
            Kind::RoundTrip | Kind::Recall | Kind::Recurrence | Kind::Kernels => &[Phase::Local],
        }
    }
}
