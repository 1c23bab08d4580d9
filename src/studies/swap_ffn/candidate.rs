//! The candidate that is compared with the reference: the reference's implementation with roundings, or GPU kernels.

use reference::paths::swap_ffn::{Decisions, Model, RouterForm, State};
use reference::{Plain, Tensor};

use super::method::{ForcedDecisions, Method};
use super::sizes::Inputs;
use ulplab_operations::ops::call::Runner;
use ulplab_swap_ffn::{Part, Resident};

/// Router decisions for one row of x: true if the row is exchanged (the gate is open), and the number of the memory bank.
pub type GateAndBank = (bool, u8);

/// A source's model as a recipe computes it: emulated on the CPU, or by GPU kernels.
pub enum Candidate<'a> {
    /// The reference's implementation on the CPU, with the recipe's roundings.
    Emulated { model: Box<Model<f32>>, method: &'a Method },
    Kernels {
        model: Box<Resident>,
        runner: &'a dyn Runner,
    },
}

impl<'a> Candidate<'a> {
    pub fn new(inputs: &Inputs, method: &'a Method) -> Result<Self, String> {
        let config = method.config(&inputs.config);
        let Some(kernels) = &method.kernels else {
            let mut rounding = method;
            let model = Box::new(inputs.model(config, &mut rounding));
            return Ok(Self::Emulated { model, method });
        };
        let unfolded = reference::paths::swap_ffn::Config {
            router: RouterForm::Unfolded,
            ..config
        };
        let model: Model<f32> = inputs.model(unfolded, &mut Plain);
        Ok(Self::Kernels {
            model: Box::new(Resident::new(&model, kernels.e4m3)?),
            runner: &*kernels.runner,
        })
    }

    /// Runs one event (router, bank exchange and FFN), or only the bank exchange, on x and the state. An emulated candidate obeys
    /// the decisions `given`; kernels obey their own decisions. Returns the candidate's own decisions.
    pub fn event(
        &mut self,
        part: Part,
        (x, state): (&mut Tensor<f32>, &mut State<f32>),
        event: usize,
        given: &Decisions<f64>,
    ) -> Result<Vec<GateAndBank>, String> {
        match self {
            Self::Emulated { model, method } => {
                let mut forced = ForcedDecisions::new(method, given);
                match part {
                    Part::Exchange => model.exchange(x, state, event, &mut forced)?,
                    _ => (method.event)(model, x, state, event, &mut forced)?,
                };
                Ok(forced.own())
            }
            Self::Kernels { model, runner } => {
                let left = model.run(*runner, part, x, state)?;
                *x = left.x;
                Ok(left.decisions.concat())
            }
        }
    }

    /// True if [`event`](Self::event) obeys the decisions in its argument `given` instead of the candidate's own decisions.
    pub fn follows(&self) -> bool {
        matches!(self, Self::Emulated { .. })
    }

    /// Runs all events of one token with the candidate's own decisions. Returns the token's output (delta), and all decisions.
    pub fn token(
        &mut self,
        x_in: &Tensor<f32>,
        state: &mut State<f32>,
        events: usize,
    ) -> Result<(Vec<f32>, Vec<Vec<GateAndBank>>), String> {
        let done = match self {
            Self::Emulated { model, method } => {
                let mut rounding: &Method = method;
                let mut x = model.spread(x_in, state, &mut rounding)?;
                let decisions = (0..events).map(|event| {
                    let decisions = (method.event)(model, &mut x, state, event, &mut rounding)?;
                    Ok(decisions.gate.into_iter().zip(decisions.bank).collect())
                });
                let decisions = decisions.collect::<Result<_, String>>()?;
                (model.collapse(&x, state, &mut rounding)?.data, decisions)
            }
            Self::Kernels { model, runner } => {
                let left = model.run(*runner, Part::Token, x_in, state)?;
                (left.delta, left.decisions)
            }
        };
        state.tokens += 1;
        Ok(done)
    }
}
