//! Swap-FFN models as data sources of an experiment: a model's sizes, the variants of its definition, and its random numbers.

use std::convert::Infallible;

use reference::paths::swap_ffn::{BANKS, Config, DecisionRule, Initial, LaneRule, Model, RouterForm, State, load};
use reference::paths::{self, Weights};
use reference::{Numerics, Real, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::experiment::Source;
use ulplab_core::error::refuse;
use ulplab_core::random::{gaussian, stream};
use ulplab_operations::ops::data::round_to_bf16;

/// Largest number of elements of one tensor; a larger number is refused as a mistake.
const MOST_NUMBERS: usize = 1 << 28;

/// A Swap-FFN model with random weights. Absent keys have the values of the model's original definition.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(
    remote = "Config",
    default = "Config::default",
    deny_unknown_fields,
    expecting = "struct Sizes"
)]
#[schemars(rename = "Sizes")]
pub struct Sizes {
    pub d_model: usize,
    pub d_ff: usize,
    pub core_count: usize,
    pub n_events: usize,
    pub k_ffn: usize,
    pub d_router: usize,
    pub collapse_k: usize,
    pub collapse_r: usize,
    /// True if an FFN step adds its output to x.
    pub residual: bool,
    #[serde(with = "Lanes")]
    pub lane_rule: LaneRule,
    #[serde(skip)]
    pub d_embed: usize,
    #[serde(skip)]
    pub eps: f64,
    #[serde(skip)]
    pub decision: DecisionRule,
    #[serde(skip)]
    pub router: RouterForm,
    #[serde(skip)]
    pub collapse_silu: bool,
}

/// Rule by which an exchange with a bank changes a core's map from its four lanes to banks.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(remote = "LaneRule", rename_all = "snake_case", expecting = "enum Lanes")]
#[schemars(rename = "Lanes")]
pub enum Lanes {
    Transposition,
    MoveToFront,
    Literal,
}

/// Returns an error if a size of the model is invalid, or a tensor would have too many elements.
pub fn check(config: &Config) -> Result<(), String> {
    config.check()?;
    refuse(config.n_events == 0, "n_events is 0, expected decisions to compare")?;
    let (d_model, d_ff, core_count) = (config.d_model, config.d_ff, config.core_count);
    let tensors: [(&str, &[usize]); 6] = [
        ("d_ff × d_model", &[d_ff, d_model]),
        ("core_count × 4 × d_model", &[core_count, BANKS, d_model]),
        ("core_count × d_ff", &[core_count, d_ff]),
        ("d_router × d_model", &[config.d_router, d_model]),
        (
            "collapse_k × collapse_r × d_model",
            &[config.collapse_k, config.collapse_r, d_model],
        ),
        ("collapse_k × core_count", &[config.collapse_k, core_count]),
    ];
    let len = |shape: &[usize]| shape.iter().try_fold(1usize, |len, size| len.checked_mul(*size));
    let large = |shape: &[usize]| len(shape).is_none_or(|len| len > MOST_NUMBERS);
    match tensors.iter().find(|(_, shape)| large(shape)) {
        Some((what, shape)) => Err(format!("{what} is {shape:?}, expected at most {MOST_NUMBERS} numbers")),
        None => Ok(()),
    }
}

/// The random inputs of a source in a window, all rounded to bf16: weights, tokens, and the banks before the first token.
pub struct Inputs<'a> {
    pub config: Config,
    seed: u64,
    sequences: usize,
    /// Names of source and window, which select the streams of random numbers.
    purpose: [&'a str; 2],
}

impl<'a> Inputs<'a> {
    pub fn new(sequences: usize, seed: u64, source: &'a Source<super::Weights>, window: &'a str) -> Self {
        Self {
            config: *source.from.config(),
            seed,
            sequences,
            purpose: [&source.name, window],
        }
    }

    /// Returns the name of the source.
    pub fn source(&self) -> &str {
        self.purpose[0]
    }

    /// Makes the random tensor `what` from its own random stream, so that its numbers do not depend on the order of calls.
    fn draw(&self, what: &str, len: usize) -> Vec<f32> {
        let [source, window] = self.purpose;
        gaussian(&mut stream(self.seed, &format!("{source}/{window}/{what}")), len)
    }

    fn tensor<T: Real>(&self, what: &str, shape: &[usize]) -> Tensor<T> {
        Tensor::<f32>::new(shape, stored(self.draw(what, shape.iter().product()))).cast()
    }

    /// Returns a model with the random weights of the source. `config` is the source's configuration, in which a recipe may have
    /// changed the router.
    pub fn model<T: Real>(&self, config: Config, numerics: &mut dyn Numerics<T>) -> Model<T> {
        let draw = |name: &str, len: usize| self.draw(name, len);
        let initial = Initial {
            config: &self.config,
            draw,
        };
        let Ok(model) = load(config, &mut StoredWeights(initial), numerics);
        model
    }

    /// Returns the state before the first token.
    pub fn state<T: Real>(&self) -> Result<State<T>, String> {
        let start = paths::Config::start(&self.config, self.sequences);
        let [ram] = &start[..] else {
            return Err(format!("a state begins with {} tensors, expected one", start.len()));
        };
        State::new(&self.config, self.tensor(&ram.name, &ram.shape))
    }

    /// Returns the token at position `at` of all sequences, `[sequences, d_model]`.
    pub fn token<T: Real>(&self, at: usize) -> Tensor<T> {
        self.tensor(&format!("token {at}"), &[self.sequences, self.config.d_model])
    }
}

/// Rounds the weights that `W` returns to bf16, the type in which weights are stored.
struct StoredWeights<W>(W);

impl<W: Weights<Error = Infallible>> Weights for StoredWeights<W> {
    type Error = Infallible;

    fn floats(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, Infallible> {
        self.0.floats(name, shape).map(stored)
    }

    fn integers(&mut self, name: &str, shape: &[usize]) -> Result<Vec<u32>, Infallible> {
        self.0.integers(name, shape)
    }
}

/// Rounds values to bf16.
fn stored(mut values: Vec<f32>) -> Vec<f32> {
    round_to_bf16(&mut values);
    values
}
