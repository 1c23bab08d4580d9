//! A recipe of Swap-FFN: its roundings, and the form of its router.

use std::sync::Arc;

use reference::paths::Config as _;
use reference::paths::swap_ffn::{Config, DecisionRule, Decisions, Model, RouterForm, SITES, State, sites};
use reference::{Choice, Numerics, Site, SiteKind, Tensor};

use super::candidate::GateAndBank;
use super::{DecidesOn, Recipe, Round, Router, Weights};
use crate::backend::cuda::runner::Worker;
use crate::backend::rounding::Noise;
use crate::backend::rounding::noise::rounded_or_noise;
use crate::backend::stand_in::chosen;
use crate::experiment::{Mistake, Source};
use ulplab_core::formats::{Codec, codec};
use ulplab_core::pattern::{matches, matches_nothing};
use ulplab_operations::ops::call::Runner;
use ulplab_swap_ffn::COMPOSITIONS;

/// Function that computes one event (router, bank exchange and FFN), with the signature of [`Model::event`].
pub type Event =
    fn(&Model<f32>, &mut Tensor<f32>, &mut State<f32>, usize, &mut dyn Numerics<f32>) -> Result<Decisions<f32>, String>;

/// A recipe of Swap-FFN that is ready to run: its formats and kernels are resolved.
pub struct Method {
    rounds: Vec<(String, Arc<dyn Codec>)>,
    /// Noise that replaces rounding errors, if any.
    noise: Option<Noise>,
    router: Router,
    /// Largest margin, in the reference's logits, at which a decision may flip. Above it, the candidate must decide like the
    /// reference.
    pub margin: f64,
    /// The function that computes an event. Tests set a faulty function here, and check that the gates notice the fault.
    pub event: Event,
    /// GPU kernels that compute everything in place of the reference; `None` if the recipe is emulated on the CPU.
    pub kernels: Option<Kernels>,
}

/// GPU kernels that compute the whole Swap-FFN model.
pub struct Kernels {
    pub runner: Box<dyn Runner>,
    /// True if operands of products are E4M3 with a scale for each row, false if they are bf16.
    pub e4m3: bool,
}

impl Method {
    /// Resolves the formats and sites of a recipe, and checks that both fit every source. `seed` is the seed of the noise.
    ///
    /// # Errors
    /// Returns the recipe's first mistake, with its place in the recipe.
    pub fn resolve(recipe: &Recipe, sources: &[Source<Weights>], seed: u64) -> Result<Self, Mistake> {
        let margin = recipe.margin.unwrap_or(0.0);
        let message = format_args!("margin = {margin}, expected a number from 0 on");
        Mistake::refuse(!(margin.is_finite() && margin >= 0.0), "margin", message)?;
        Ok(Self {
            rounds: Mistake::each("round", &recipe.rounds, |round| resolve(round, sources))?,
            noise: Noise::asked(recipe.noise, recipe.gain, seed)?,
            router: recipe.router.unwrap_or_default(),
            margin,
            event: Model::event,
            kernels: kernels(recipe)?,
        })
    }

    /// Returns the configuration with the recipe's router: the form of its logits, and the values that decide.
    pub fn config(&self, config: &Config) -> Config {
        let router = match self.router.form {
            super::RouterForm::Folded => RouterForm::Folded,
            super::RouterForm::Unfolded => RouterForm::Unfolded,
        };
        let decision = match self.router.decides_on {
            DecidesOn::Logits => DecisionRule::Logits,
            DecidesOn::Probabilities => DecisionRule::Probabilities,
        };
        Config {
            router,
            decision,
            ..*config
        }
    }

    fn round(&self, site: &Site, tensor: &mut Tensor<f32>) {
        let cols = tensor.cols();
        let round = |values: &mut [f32]| {
            let here = self.rounds.iter().filter(|(at, _)| matches(at, site.name));
            here.for_each(|(_, codec)| codec.round(values, cols));
        };
        rounded_or_noise(self.noise, site.name, &mut tensor.data, cols, round);
    }
}

/// Rounds the tensors at the sites, and leaves the candidate's own decisions as they are.
impl Numerics<f32> for &Method {
    fn site(&mut self, site: &Site, tensor: &mut Tensor<f32>) {
        self.round(site, tensor);
    }
}

/// Returns the kernels that the recipe names in place of the reference; `None` if it names none.
fn kernels(recipe: &Recipe) -> Result<Option<Kernels>, Mistake> {
    let e4m3 = match recipe.format.as_deref() {
        None | Some("bf16") => false,
        Some("e4m3/token:f32") => true,
        Some(other) => {
            let message = format!("operands of kernels are 'bf16' or 'e4m3/token:f32', not '{other}'");
            return Err(Mistake::at("format", message));
        }
    };
    let chosen = chosen(&recipe.kernels, &["swap_ffn"], &[&COMPOSITIONS])?;
    Ok((!chosen.is_empty()).then(|| Kernels {
        runner: Box::new(Worker::start(chosen)),
        e4m3,
    }))
}

/// Router decisions for all rows of x. The first list has the gates, which decide if a row is exchanged; the second has the
/// numbers of the memory banks.
type GatesAndBanks = [Vec<i32>; 2];

/// Rounds the tensors at the sites, and makes a candidate obey the reference's decisions. Records the candidate's own decisions.
pub struct ForcedDecisions<'a> {
    method: &'a Method,
    given: GatesAndBanks,
    own: GatesAndBanks,
}

impl<'a> ForcedDecisions<'a> {
    pub fn new(method: &'a Method, given: &Decisions<f64>) -> Self {
        let gates = given.gate.iter().map(|&gate| i32::from(gate));
        let banks = given.bank.iter().map(|&bank| i32::from(bank));
        Self {
            method,
            given: [gates.collect(), banks.collect()],
            own: Default::default(),
        }
    }

    /// Returns the candidate's own decisions, one per row.
    pub fn own(&self) -> Vec<GateAndBank> {
        let [gates, banks] = &self.own;
        let both = gates.iter().zip(banks);
        both.map(|(&gate, &bank)| (gate == 1, bank as u8)).collect()
    }
}

impl Numerics<f32> for ForcedDecisions<'_> {
    fn site(&mut self, site: &Site, tensor: &mut Tensor<f32>) {
        self.method.round(site, tensor);
    }

    fn choice(&mut self, site: &Site, choice: &mut Choice<f32>) {
        let what = usize::from(site.name == sites::BANK);
        self.own[what] = std::mem::replace(&mut choice.indices, self.given[what].clone());
    }
}

fn resolve(round: &Round, sources: &[Source<Weights>]) -> Result<(String, Arc<dyn Codec>), Mistake> {
    let at = |message: String| Mistake::at("at", message);
    let codec = codec(&round.format).map_err(|message| Mistake::at("format", message))?;
    let tensors = || SITES.iter().filter(|site| site.kind == SiteKind::Tensor);
    if !tensors().any(|site| matches(&round.at, site.name)) {
        let names = tensors().map(|site| site.name);
        return Err(at(matches_nothing("tensor site of Swap-FFN", &round.at, names)));
    }
    for source in sources {
        for site in tensors().filter(|site| matches(&round.at, site.name)) {
            let fits = codec.check(source.from.config().cols(site));
            fits.map_err(|message| at(format!("{message} ('{}' of source '{}')", site.name, source.name)))?;
        }
    }
    Ok((round.at.clone(), codec))
}
