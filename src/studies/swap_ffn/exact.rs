//! Runs the reference in f64, and stores all values that candidates are compared with.

use rayon::prelude::*;
use reference::paths::swap_ffn::{Decisions, Model, State};
use reference::{Plain, Real, Tensor};

use super::decided;
use super::sizes::Inputs;
use super::{SwapFfnStudy, Weights};
use crate::experiment::Source;
use ulplab_core::error::{Error, Result};
use ulplab_core::metrics::Decided;

/// Results of the reference for one source, token by token.
pub type Trajectory = Vec<Token>;

pub struct Token {
    /// Router decisions of every event (router, bank exchange and FFN), one for each row of x.
    pub decisions: Vec<Vec<Decided>>,
    pub delta: Vec<f64>,
    pub checkpoint: Option<Checkpoint>,
}

/// Further results of a token, stored only for the tokens at which runs are compared.
pub struct Checkpoint {
    /// All events of the token.
    pub events: Vec<ExactEvent>,
    pub map: Vec<u8>,
    pub ram: Vec<f64>,
}

/// One event (router, bank exchange and FFN), computed in f64 from a state and x that are rounded to f32.
pub struct ExactEvent {
    /// State before the event.
    pub state: State<f32>,
    pub x: Tensor<f32>,
    pub decisions: Decisions<f64>,
    pub after: Tensor<f64>,
}

/// Runs the reference in f64 on the inputs of every source in a window (one random sample).
pub fn exact(study: &SwapFfnStudy, seed: u64, window: &str) -> Result<Vec<Trajectory>> {
    let [sequences, tokens] = study.shape;
    let walk = |source: &Source<Weights>| {
        let walked = walk(&Inputs::new(sequences, seed, source, window), tokens);
        walked.map_err(|why| Error::Reference(format!("source '{}', window {window}: {why}", source.name)))
    };
    study.sources.par_iter().map(walk).collect()
}

fn walk(inputs: &Inputs, tokens: usize) -> Result<Trajectory, String> {
    let model: Model<f64> = inputs.model(inputs.config, &mut Plain);
    let mut state = inputs.state()?;
    (0..tokens).map(|at| token(inputs, &model, &mut state, at)).collect()
}

fn token(inputs: &Inputs, model: &Model<f64>, state: &mut State<f64>, at: usize) -> Result<Token, String> {
    let mut x = model.spread(&inputs.token(at), state, &mut Plain)?;
    let mut taught = (at + 1).is_power_of_two().then(Vec::new);
    let mut decisions = Vec::new();
    for event in 0..inputs.config.n_events {
        if let Some(taught) = &mut taught {
            taught.push(known(model, &x, state, event)?);
        }
        decisions.push(decided(&model.event(&mut x, state, event, &mut Plain)?).collect());
    }
    let delta = model.collapse(&x, state, &mut Plain)?.data;
    state.tokens += 1;
    // Candidates cannot be compared with a reference that is not finite.
    if let Some(first) = delta.iter().position(|x| !x.is_finite()) {
        return Err(format!("delta [{first}] of token {at} is {}", delta[first]));
    }
    let checkpoint = taught.map(|events| Checkpoint {
        events,
        map: state.map.clone(),
        ram: state.ram.data.clone(),
    });
    Ok(Token {
        decisions,
        delta,
        checkpoint,
    })
}

/// Computes one event (router, bank exchange and FFN) in f64, starting from x and the state rounded to f32.
fn known(model: &Model<f64>, x: &Tensor<f64>, state: &State<f64>, event: usize) -> Result<ExactEvent, String> {
    let (x, state): (Tensor<f32>, State<f32>) = (x.cast(), cast_state(state));
    let mut after = x.cast();
    let decisions = model.event(&mut after, &mut cast_state(&state), event, &mut Plain)?;
    Ok(ExactEvent {
        state,
        x,
        decisions,
        after,
    })
}

fn cast_state<T: Real, U: Real>(state: &State<T>) -> State<U> {
    State {
        ram: state.ram.cast(),
        map: state.map.clone(),
        tokens: state.tokens,
    }
}
