//! A recipe of a recurrence: the form of the computation (e.g. step by step, or in chunks), and its roundings.

use std::fmt::Debug;
use std::sync::Arc;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::Rng;
use reference::ops::diagonal_ssm::DiagonalSsm;
use reference::ops::linear_attention as attention;
use reference::ops::linear_attention::{Chunked, Decay, Intermediate, Inversion, Kv, Policy, Recurrent, State};
use reference::ops::store::{Store, Token};
use reference::{Real, Tensor};

use super::PIECE;
use super::inputs::Piece;
use super::prefill::{PREFILLS, Prefill, prefill};
use super::{Form, Operation, Recipe, Round};
use crate::backend::rounding::Noise;
use crate::backend::rounding::noise::rounded_or_noise;
use crate::experiment::{Mistake, Source};
use ulplab_core::error::did_you_mean;
use ulplab_core::formats::{Codec, Direction, codec};
use ulplab_core::pattern::{matches, matches_nothing};

/// A recipe of a recurrence that is ready to run: its names of forms and formats are resolved.
pub struct Method {
    form: Form,
    rounds: Vec<SiteRounding>,
    /// Noise that replaces rounding errors, if any.
    noise: Option<Noise>,
    prefill: Option<&'static Prefill>,
}

/// A rounding at the sites that match a pattern.
struct SiteRounding {
    at: String,
    codec: Arc<dyn Codec>,
    direction: Direction,
}

/// Site name of the state that is stored between steps, or carried between chunks.
const STATE: &str = "state";
const PARAMETERS: [&str; 3] = ["a", "b", "c"];

impl Method {
    /// Resolves the form and the formats of a recipe, and checks that both fit every source. `seed` is the seed of the noise.
    ///
    /// # Errors
    /// Returns the recipe's first mistake, with its place in the recipe.
    pub fn resolve(recipe: &Recipe, sources: &[Source<Operation>], seed: u64) -> Result<Self, Mistake> {
        let form = &recipe.form;
        let wrong = |message: String| Err(Mistake::at("form", message));
        let mut known = None;
        match form {
            Form::Chunked(steps) if !(1..=PIECE).contains(steps) => {
                return wrong(format!("chunks of {steps} steps, expected 1 to {PIECE}"));
            }
            Form::Prefill(name) => {
                known = prefill(name);
                if known.is_none() {
                    let hint = did_you_mean(name, PREFILLS.iter().map(|prefill| prefill.name));
                    return wrong(format!("unknown prefill '{name}'{hint}"));
                }
                let message = format_args!("the prefill '{name}' has its own rounding, expected no 'round'");
                Mistake::refuse(!recipe.rounds.is_empty(), "round", message)?;
            }
            _ => {}
        }
        let mut strange = sources.iter().filter(|source| places(form, &source.from).is_none());
        if let Some(Source { name, .. }) = strange.next() {
            return wrong(format!("form '{}' is not for source '{name}'", snake_case(form)));
        }
        Ok(Self {
            rounds: Mistake::each("round", &recipe.rounds, |round| {
                SiteRounding::resolve(round, form, sources)
            })?,
            noise: Noise::asked(recipe.noise, recipe.gain, seed)?,
            prefill: known,
            form: form.clone(),
        })
    }

    /// Advances the state over the steps of `piece` (the inputs of several steps, from step `first` on), and returns the output.
    /// Stochastic rounding takes random numbers from the stream `random`.
    pub fn run(
        &self,
        piece: &Piece<f32>,
        state: &mut Tensor<f32>,
        first: usize,
        random: &ChaCha8Rng,
    ) -> Result<Tensor<f32>, String> {
        let stored: Vec<&SiteRounding> = self.rounds.iter().filter(|round| matches(&round.at, STATE)).collect();
        let store = |at: Token, state: &mut [f32], cols: usize| {
            let place = (at.head, first + at.token);
            let round = |state: &mut [f32]| stored.iter().for_each(|round| round.round(state, cols, place, random));
            rounded_or_noise(self.noise, STATE, state, cols, round);
        };
        let store: Store<'_, f32> = if stored.is_empty() { None } else { Some(&store) };
        let rounds = WithNoise(ChunkRoundings(&self.rounds, random), self.noise);
        match (piece, &self.form, self.prefill) {
            (Piece::Attention { .. }, _, Some(prefill)) => {
                attend(piece, &prefill.form(WithNoise(*prefill, self.noise)), state)
            }
            (Piece::Attention { .. }, Form::Chunked(chunk), _) => {
                let form = Chunked {
                    chunk: *chunk,
                    inversion: Inversion::Substitution,
                    policy: rounds,
                };
                attend(piece, &form, state)
            }
            (Piece::Attention { .. }, form, _) => {
                let one_pass = *form == Form::OnePass;
                attend(piece, &Recurrent { one_pass, store }, state)
            }
            (Piece::Ssm { parameters, u }, form, _) => {
                let mut parameters = parameters.clone();
                for (name, parameter) in PARAMETERS.into_iter().zip(&mut parameters) {
                    let states = parameter.cols();
                    let round = |values: &mut [f32]| rounds.0.round_named(name, values, states);
                    rounded_or_noise(self.noise, name, &mut parameter.data, states, round);
                }
                scan(form, &parameters, u, state, store)
            }
        }
    }
}

/// Computes the recurrence by its definition, in any precision.
pub fn exact<T: Real>(piece: &Piece<T>, state: &mut Tensor<T>) -> Result<Tensor<T>, String> {
    match piece {
        Piece::Attention { .. } => attend(piece, &Recurrent::DEFINITION, state),
        Piece::Ssm { parameters, u } => scan(&Form::Recurrent, parameters, u, state, None),
    }
}

fn attend<T: Real>(
    piece: &Piece<T>,
    form: &impl attention::Form<T>,
    state: &mut Tensor<T>,
) -> Result<Tensor<T>, String> {
    let Piece::Attention { q, k, v, decay, beta } = piece else {
        return Err("no linear attention".into());
    };
    let inputs = attention::Inputs {
        cu_seqlens: &[0, q.shape[0]],
        q,
        k,
        v,
        decay: match decay.shape.len() {
            2 => Decay::Head(decay),
            _ => Decay::Channel(decay),
        },
        beta: beta.as_ref(),
        scale: T::from_f64((q.cols() as f64).powf(-0.5)),
    };
    let mut pool = State::<T, Kv>::new(state.clone())?;
    let output = attention::forward(&inputs, form, &mut pool, None)?;
    state.data.copy_from_slice(&pool.tensor().data);
    Ok(output)
}

fn scan<T: Real>(
    form: &Form,
    [a, b, c]: &[Tensor<T>; 3],
    u: &Tensor<T>,
    state: &mut Tensor<T>,
    store: Store<'_, T>,
) -> Result<Tensor<T>, String> {
    let ssm = DiagonalSsm { a, b, c };
    match form {
        Form::Folded => ssm.folded(u, state, store),
        Form::Chunked(chunk) => ssm.chunked(u, state, *chunk),
        _ => ssm.recurrent(u, state, store),
    }
}

impl SiteRounding {
    fn resolve(round: &Round, form: &Form, sources: &[Source<Operation>]) -> Result<Self, Mistake> {
        let at = |message: String| Mistake::at("at", message);
        let codec = codec(&round.format).map_err(|message| Mistake::at("format", message))?;
        let mut all = Vec::new();
        for source in sources {
            let places = places(form, &source.from).unwrap_or_default();
            for (place, cols) in places.iter().filter(|(place, _)| matches(&round.at, place)) {
                let fits = codec.check(*cols);
                fits.map_err(|message| at(format!("{message} ('{place}' of source '{}')", source.name)))?;
                let stepwise = !matches!(form, Form::Chunked(_)) && place == STATE;
                let message = format_args!("stochastic rounding is for a state stored step by step, not for '{place}'");
                Mistake::refuse(round.direction == Direction::Stochastic && !stepwise, "at", message)?;
            }
            all.extend(places.into_iter().map(|(place, _)| place));
        }
        if !all.iter().any(|place| matches(&round.at, place)) {
            let what = format!("place of form '{}'", snake_case(form));
            return Err(at(matches_nothing(&what, &round.at, all.iter().map(String::as_str))));
        }
        if !round.direction.is_nearest() {
            let directed = match codec.format() {
                Some(format) => format.has_directions(),
                None => Err(format!("record '{}' rounds to nearest only", round.format)),
            };
            directed.map_err(|message| Mistake::at("direction", message))?;
        }
        Ok(Self {
            at: round.at.clone(),
            codec,
            direction: round.direction,
        })
    }

    /// Rounds rows of `cols` values of one head at one step. Head and step select the random numbers of stochastic rounding.
    fn round(&self, values: &mut [f32], cols: usize, (head, step): (usize, usize), random: &ChaCha8Rng) {
        match (self.direction, self.codec.format()) {
            (Direction::Nearest, _) | (_, None) => self.codec.round(values, cols),
            (direction, Some(format)) => {
                let mut random = random.clone();
                random.set_stream(head as u64);
                random.set_word_pos((step * values.len()) as u128);
                let fill = |numbers: &mut [u32]| {
                    let mut bytes = vec![0; 4 * numbers.len()];
                    random.fill_bytes(&mut bytes);
                    for (number, word) in numbers.iter_mut().zip(bytes.as_chunks().0) {
                        *number = u32::from_le_bytes(*word);
                    }
                };
                format.round_toward(direction, values, cols, fill);
            }
        }
    }
}

/// Rounds the intermediates of a chunked form of the recurrence, each by the recipe's roundings for its name.
struct ChunkRoundings<'a>(&'a [SiteRounding], &'a ChaCha8Rng);

impl ChunkRoundings<'_> {
    fn round_named(&self, name: &str, values: &mut [f32], cols: usize) {
        let here = self.0.iter().filter(|round| matches(&round.at, name));
        here.for_each(|round| round.round(values, cols, (0, 0), self.1));
    }
}

impl Policy<f32> for ChunkRoundings<'_> {
    fn round(&self, what: Intermediate, values: &mut [f32], cols: usize) {
        if !self.0.is_empty() {
            self.round_named(&snake_case(what), values, cols);
        }
    }
}

/// A rounding policy that rounds like the wrapped policy. If noise is given, noise replaces the errors of these roundings.
struct WithNoise<P>(P, Option<Noise>);

impl<P: Policy<f32>> Policy<f32> for WithNoise<P> {
    fn round(&self, what: Intermediate, values: &mut [f32], cols: usize) {
        match self.1 {
            None => self.0.round(what, values, cols),
            noise => rounded_or_noise(noise, &snake_case(what), values, cols, |values| {
                self.0.round(what, values, cols);
            }),
        }
    }

    fn add_decay(&self, sum: f64, decay: f64) -> f64 {
        self.0.add_decay(sum, decay)
    }
}

/// Returns the names of the values that a form can round, each with its number of channels per row (1 if the number varies);
/// `None` if the form does not apply to the source's operation.
fn places(form: &Form, origin: &Operation) -> Option<Vec<(String, usize)>> {
    let state = |cols| (STATE.to_string(), cols);
    let parameters = |states| PARAMETERS.map(|name| (name.to_string(), states)).to_vec();
    match (origin, form) {
        (Operation::LinearAttention { state: [_, v], .. }, Form::Recurrent | Form::OnePass) => Some(vec![state(*v)]),
        (Operation::LinearAttention { .. }, Form::Chunked(_)) => {
            Some(Intermediate::ALL.map(|what| (snake_case(what), 1)).to_vec())
        }
        (Operation::LinearAttention { .. }, Form::Prefill(_)) => Some(Vec::new()),
        (Operation::DiagonalSsm { states, .. }, Form::Recurrent | Form::Folded) => {
            Some([parameters(*states), vec![state(*states)]].concat())
        }
        (Operation::DiagonalSsm { states, .. }, Form::Chunked(_)) => Some(parameters(*states)),
        _ => None,
    }
}

/// Returns the name of an intermediate in snake case: `state_operand` for `StateOperand`.
fn snake_case(what: impl Debug) -> String {
    let mut name = String::new();
    for c in format!("{what:?}").chars().take_while(|c| *c != '(') {
        if c.is_ascii_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(c.to_ascii_lowercase());
    }
    name
}
