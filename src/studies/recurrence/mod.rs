//! Study of recurrences (linear attention and state-space models) with roundings, e.g. of the state between steps.

pub mod inputs;
mod method;
mod operation;
pub mod prefill;
mod show;
mod walk;

use std::collections::HashMap;

use reference::paths::Config;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::limits::Parts;
use super::null::{self, Candidate, Null, Wanted};
use super::sources::{check_checkpoint, check_draws, check_recipes, check_sources, doublings, draw_names};
use super::study::{ReadyRecipes, Study, by_window};
use crate::experiment::{Mistake, Source};
use crate::run::plan::Plan;
use ulplab_core::formats::Direction;
use ulplab_core::record::Phase;

use method::Method;
pub use operation::{Attention, Gate, Operation, Poles};

/// Number of steps before the first checkpoint. Each later checkpoint is at twice as many steps as the previous one. At each
/// checkpoint, the last `CHECKPOINT` steps of the output are compared.
pub const CHECKPOINT: usize = 64;
/// Largest number of steps whose inputs are in memory at once.
pub const PIECE: usize = 4096;
/// Largest number of heads; a larger number is refused as a mistake.
const MOST_HEADS: usize = 1024;

/// The compared quantities. A record's site is the source's name followed by one of these names.
const COMPARED: [&str; 2] = ["output", "state"];

/// Experiment with recurrent operations, whose state is carried from step to step, with inputs from each source.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RecurrenceStudy {
    /// Number of independent random samples of each source. Each sample is measured by itself.
    pub draws: usize,
    /// Numbers of heads and of steps in a random sample.
    pub shape: [usize; 2],
    #[serde(rename = "source")]
    pub sources: Vec<Source<Operation>>,
    #[serde(rename = "recipe")]
    pub recipes: Vec<Recipe>,
}

/// Candidate: a form of the recurrence, and its roundings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    pub name: String,
    /// Description of the recipe, in one line.
    pub doc: String,
    pub form: Form,
    /// Replace each rounding error by Gaussian noise of the same energy. The noise has the error's size, but not its structure.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub noise: bool,
    /// The size of the noise, in multiples of the rounding error.
    pub gain: Option<f64>,
    #[serde(default, rename = "round", skip_serializing_if = "Vec::is_empty")]
    pub rounds: Vec<Round>,
}

/// A way to compute a recurrence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Form {
    /// Computes the recurrence step by step, as it is defined.
    Recurrent,
    /// For linear attention: computes step by step, but reads the state for k and q in one pass, as decode kernels do.
    OnePass,
    /// For a state-space model: computes step by step, with the factor b merged into the factor c.
    Folded,
    /// Computes the recurrence in chunks of this many steps.
    Chunked(usize),
    /// For linear attention: computes in chunks like the published prefill kernel of this name, with all its roundings.
    Prefill(String),
}

/// Rounds the state, a parameter, or an intermediate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Round {
    /// Pattern of names: `state` (stored between steps), parameters, or intermediates of the chunked form.
    pub at: String,
    /// A named format (`nvfp4`) or a format string (`e2m1/b16:e4m3/t:f32`).
    pub format: String,
    /// Rounding direction between the two codes next to a number.
    #[serde(default, skip_serializing_if = "Direction::is_nearest")]
    pub direction: Direction,
}

impl Candidate for Recipe {
    fn name(&self) -> &str {
        &self.name
    }

    fn with_noise(&self, name: String, gain: f64) -> Self {
        let mut noisy = self.clone();
        (noisy.name, noisy.noise, noisy.gain) = (name, true, Some(gain));
        noisy
    }

    fn right(&self, _phase: Phase) -> Result<(Self, bool), String> {
        let rounds = !self.rounds.is_empty() || matches!(self.form, Form::Prefill(_));
        Ok((self.clone(), rounds))
    }
}

impl RecurrenceStudy {
    /// Returns the numbers of steps after which errors are measured.
    pub fn checkpoints(&self) -> impl Iterator<Item = usize> + use<> {
        doublings(CHECKPOINT, self.shape[1])
    }
}

impl Study for RecurrenceStudy {
    fn check(&self) -> Result<(), Mistake> {
        check_recipes(&self.recipes)?;
        check_sources(&self.sources, Operation::check)?;
        check_draws(self.draws, self.shape, "[heads, steps]", true)?;
        let [heads, steps] = self.shape;
        let odd = steps % CHECKPOINT != 0 || !(steps / CHECKPOINT).is_power_of_two() || steps < 4 * CHECKPOINT;
        let (shape, expected) = (format!("shape = [{heads}, {steps}]"), "doubled twice or more often");
        let message = format_args!("{shape}: {steps} steps, expected {CHECKPOINT} {expected}");
        Mistake::refuse(odd, "shape", message)?;
        let message = format_args!("{shape}: {heads} heads, expected at most {MOST_HEADS}");
        Mistake::refuse(heads > MOST_HEADS, "shape", message)
    }

    fn plan(&self) -> Plan {
        null::plan(&[Phase::Local], draw_names(self.draws), &self.recipes)
    }

    fn check_site(&self, at: &str) -> Result<(), String> {
        let of = |source: &Source<_>, what: &str| {
            let all = format!("{}.{what}", source.name);
            let each = self.checkpoints().map(|steps| format!("{all}.{steps}"));
            each.chain([all.clone()]).collect::<Vec<_>>()
        };
        let sources = self.sources.iter();
        let sites = sources.flat_map(|source| COMPARED.map(|what| of(source, what)).concat());
        check_checkpoint(at, sites, "steps", self.shape)
    }

    fn memory(&self, parts: &mut Parts, _config: Option<&dyn Config>, at_once: f64) {
        let [heads, steps] = self.shape.map(|size| size as f64);
        let points = self.checkpoints().count() as f64;
        for source in &self.sources {
            let (piece, kept) = match source.from {
                Operation::LinearAttention { state: [k, v], .. } => {
                    let (k, v) = (k as f64, v as f64);
                    let piece = steps.min(PIECE as f64) * heads * (3.0 * k + 2.0 * v);
                    (12.0 * piece, points * heads * v * (CHECKPOINT as f64 + k))
                }
                Operation::DiagonalSsm { states, .. } => {
                    let kept = points * heads * (CHECKPOINT as f64 + states as f64);
                    (24.0 * steps.min(PIECE as f64) * heads, kept)
                }
            };
            let bytes = (piece + 12.0 * kept) * (1.0 + at_once);
            parts.of_source(&source.name, "inputs of a piece and the states kept", bytes);
        }
    }

    fn ready<'a>(&'a self, seed: u64, _config: Option<&dyn Config>) -> Result<Box<dyn ReadyRecipes + 'a>, Mistake> {
        let methods = null::each(&self.recipes, |recipe| Method::resolve(recipe, &self.sources, seed))?;
        Ok(by_window(self, HashMap::new(), move |bench, cells| {
            let want = walk::exact(self, seed, bench.window)?;
            bench.each(cells, &methods, |method, blank| {
                walk::measure(&blank, self, seed, method, &want)
            })
        }))
    }

    fn null(&self, draws: usize, _phases: &[Phase], wanted: &[Wanted]) -> Result<Null, String> {
        Ok(Null::new(wanted, &self.recipes, |recipes| Self {
            draws: draws * self.draws,
            recipes,
            ..self.clone()
        }))
    }
}
