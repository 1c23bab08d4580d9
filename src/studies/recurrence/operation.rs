//! Recurrent operations, which are the data sources of an experiment.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use ulplab_core::error::refuse;

/// Largest number of channels of a state; a larger number is refused as a mistake.
const MOST_CHANNELS: usize = 1024;

/// An operation whose state is carried from step to step, and the distribution of its random inputs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Operation {
    /// Linear attention. `state` is the number of key channels and the number of value channels per head.
    LinearAttention {
        op: Attention,
        gate: Gate,
        state: [usize; 2],
    },
    /// A diagonal state-space model. `states` is the number of states per head.
    DiagonalSsm { poles: Poles, states: usize },
}

/// The kind of linear attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Attention {
    /// The gated delta rule, with one decay per head.
    Gdn,
    /// Kimi delta attention: the delta rule with one decay per key channel.
    Kda,
    /// Gated linear attention with one decay per head, without the delta rule.
    SimpleGla,
}

/// The distribution of log decays.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Gate {
    /// All 0: no decay.
    None,
    /// Exponentially distributed with this mean, which is below 0.
    Mean(f64),
    /// This bound, which is below 0, times the sigmoid of N(0, 1).
    Bound(f64),
}

/// Distribution of the factors a of a state-space model, x' = a x + b u.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Poles {
    /// N(0, 1) times this number.
    Normal(f64),
    /// Uniformly distributed between 0 and this number.
    Uniform(f64),
    /// 1 − a is log-uniformly distributed between these two numbers.
    BelowOne([f64; 2]),
}

impl Operation {
    /// Returns an error if a parameter of the operation is out of range.
    pub fn check(&self) -> Result<(), String> {
        let fits = |channels: &usize| (1..=MOST_CHANNELS).contains(channels);
        match self {
            Self::LinearAttention { gate, state, .. } => {
                let why =
                    format_args!("linear_attention: state = {state:?}, expected 1 to {MOST_CHANNELS} channels each");
                refuse(!state.iter().all(fits), why)?;
                let (Gate::Mean(g) | Gate::Bound(g)) = gate else {
                    return Ok(());
                };
                let why = format_args!("linear_attention: gate {g}, expected a log decay below 0");
                refuse(!(*g < 0.0 && g.is_finite()), why)
            }
            Self::DiagonalSsm { poles, states } => {
                let why = format_args!("diagonal_ssm: states = {states}, expected 1 to {MOST_CHANNELS}");
                refuse(!fits(states), why)?;
                let why = format_args!("diagonal_ssm: {poles:?}, expected numbers above 0 that leave |a| below 1");
                refuse(!poles.are_stable(), why)
            }
        }
    }
}

impl Poles {
    /// True if factors a of this distribution keep states bounded, which requires |a| < 1. In a normal distribution with the
    /// largest allowed size, |a| > 1 has probability 2·10⁻⁹.
    fn are_stable(self) -> bool {
        match self {
            Self::Normal(size) => size > 0.0 && size <= 1.0 / 6.0,
            Self::Uniform(most) => most > 0.0 && most < 1.0,
            Self::BelowOne([least, most]) => 0.0 < least && least <= most && most < 1.0,
        }
    }
}
