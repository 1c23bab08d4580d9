//! Precision of a model that makes discrete decisions: Swap-FFN compared with its reference in f64.
//!
//! A token is expanded to one vector x per core, and passes through several events. In an event, a router decides for each x
//! whether it is exchanged with a memory bank; an FFN follows. In the local phase, every event starts from the reference's
//! state, so that only the error of this event is measured. In the cumulative phase, every event starts from the candidate's
//! own state, so that errors add up.

mod candidate;
mod exact;
mod free;
mod method;
mod show;
mod sizes;
mod teacher;

use std::collections::HashMap;

use rayon::prelude::*;
use reference::Real;
use reference::paths::Config;
use reference::paths::swap_ffn::{self, BANKS, Decisions};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::limits::Parts;
use super::null::{self, Candidate, Null, Wanted};
use super::sources::{
    check_checkpoint, check_draws, check_phases, check_recipes, check_sources, doublings, draw_names,
};
use super::study::{ReadyRecipes, Study, by_window};
use crate::experiment::{Mistake, Source};
use crate::run::plan::Plan;
use ulplab_core::error::{Error, Result};
use ulplab_core::metrics::{self, Decided};
use ulplab_core::record::{Phase, Record};

use exact::ExactEvent;
pub use exact::{Trajectory, exact};
pub use method::{Event, Kernels, Method};
use sizes::{Inputs, Sizes};

/// The quantities compared at a checkpoint in each phase. A record's site is the source's name followed by one of these names.
const LOCAL: [&str; 3] = ["decisions", "next", "x"];
const CUMULATIVE: [&str; 4] = ["decisions", "lanes", "ram", "delta"];
/// Site of the records of the first token's decisions: one record per event (router, bank exchange and FFN), with the event's
/// index as layer.
const FIRST: &str = "first";

/// Limits on sequences and tokens; larger numbers are refused as mistakes.
const MOST_SEQUENCES: usize = 1024;
const MOST_TOKENS: usize = 4096;

/// Experiment with models that exchange vectors with memory banks by discrete decisions, with weights and tokens from each
/// source.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SwapFfnStudy {
    /// Phases to measure. `local`: every event starts from the reference's state. `cumulative`: every event starts from the
    /// candidate's own state.
    pub phases: Vec<Phase>,
    /// Number of independent random samples of each source. Each sample is measured by itself.
    pub draws: usize,
    /// Numbers of sequences and of tokens in a random sample.
    pub shape: [usize; 2],
    #[serde(rename = "source")]
    pub sources: Vec<Source<Weights>>,
    #[serde(rename = "recipe")]
    pub recipes: Vec<Recipe>,
}

/// The origin of a source's weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Weights {
    /// A model of these sizes, with random weights as before training.
    SwapFfn(#[serde(with = "Sizes")] swap_ffn::Config),
}

impl Weights {
    /// Returns the configuration of the model.
    pub fn config(&self) -> &swap_ffn::Config {
        let Self::SwapFfn(config) = self;
        config
    }
}

/// Candidate: roundings and a form of the router, or kernels that compute the whole model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    pub name: String,
    /// Description of the recipe, in one line.
    pub doc: String,
    /// Replace each rounding error by Gaussian noise of the same energy. The noise has the error's size, but not its structure.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub noise: bool,
    /// The size of the noise, in multiples of the rounding error.
    pub gain: Option<f64>,
    #[serde(default, rename = "round", skip_serializing_if = "Vec::is_empty")]
    pub rounds: Vec<Round>,
    /// Computation of the router, if it differs from the reference's.
    pub router: Option<Router>,
    /// Decisions whose margin in the reference's logits exceeds this number must equal the reference's. The metric
    /// `flips_outside` counts violations.
    pub margin: Option<f64>,
    /// Kernels that compute the whole model, as `swap_ffn.variant`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kernels: Vec<String>,
    /// Type of the operands in the kernels' matrix products: `bf16` or `e4m3/token:f32`.
    pub format: Option<String>,
}

/// Rounds the tensors at some sites of the model, in every event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Round {
    /// Pattern of sites.
    pub at: String,
    /// A named format (`nvfp4`) or a format string (`e2m1/b16:e4m3/t:f32`).
    pub format: String,
}

/// Computation of the router: how its logits are computed, and whether it compares logits or probabilities.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Router {
    pub form: RouterForm,
    pub decides_on: DecidesOn,
}

/// Computation of the router's logits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RouterForm {
    /// One dot product of x with a vector for each logit, times the inverse RMS of x.
    #[default]
    Folded,
    /// First the norm of x, then the router's projection, then the logits.
    Unfolded,
}

/// Values that the router's decisions compare.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DecidesOn {
    #[default]
    Logits,
    /// Their sigmoid and softmax.
    Probabilities,
}

impl Recipe {
    fn check(&self) -> Result<(), Mistake> {
        let kernels = !self.kernels.is_empty();
        let message = "'format' is that of the operands of 'kernels', and there are none";
        Mistake::refuse(!kernels && self.format.is_some(), "format", message)?;
        let message = "'kernels' compute all of it, so nothing else is rounded";
        Mistake::refuse(kernels && !self.rounds.is_empty(), "round", message)?;
        let message = "'kernels' compute all of it, and read the router as they do";
        Mistake::refuse(kernels && self.router.is_some(), "router", message)
    }
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

    /// Returns the recipe as correct code computes it on a CPU; an error if the recipe names GPU kernels.
    fn right(&self, _: Phase) -> Result<(Self, bool), String> {
        match self.kernels.is_empty() {
            true => Ok((self.clone(), !self.rounds.is_empty())),
            false => {
                Err("its kernels run on a GPU, and `ulplab kernels list` says what their judgements notice".into())
            }
        }
    }
}

impl SwapFfnStudy {
    /// Returns the numbers of tokens after which a run is compared: 1, 2, 4, …
    pub fn checkpoints(&self) -> impl Iterator<Item = usize> + use<> {
        doublings(1, self.shape[1])
    }
}

impl Study for SwapFfnStudy {
    fn check(&self) -> Result<(), Mistake> {
        check_recipes(&self.recipes)?;
        check_phases(&self.phases)?;
        check_sources(&self.sources, |weights| {
            let checked = sizes::check(weights.config());
            checked.map_err(|message| format!("swap_ffn: {message}"))
        })?;
        check_draws(self.draws, self.shape, "[sequences, tokens]", true)?;
        let [sequences, tokens] = self.shape;
        let message = format_args!(
            "shape = [{sequences}, {tokens}]: expected at most {MOST_SEQUENCES} sequences, and of tokens a power of two up \
             to {MOST_TOKENS}"
        );
        let large = tokens > MOST_TOKENS || sequences > MOST_SEQUENCES;
        Mistake::refuse(large || !tokens.is_power_of_two(), "shape", message)?;
        null::each(&self.recipes, Recipe::check).map(drop)
    }

    fn plan(&self) -> Plan {
        null::plan(&self.phases, draw_names(self.draws), &self.recipes)
    }

    fn check_site(&self, at: &str) -> Result<(), String> {
        let of = |source: &Source<_>| {
            let at = |what: &&str| {
                let name = format!("{}.{what}", source.name);
                self.checkpoints().map(move |tokens| format!("{name}.{tokens}"))
            };
            let mut names: Vec<String> = LOCAL.iter().chain(&CUMULATIVE).flat_map(at).collect();
            names.push(format!("layers.0.{}.{FIRST}", source.name));
            names
        };
        check_checkpoint(at, self.sources.iter().flat_map(of), "tokens", self.shape)
    }

    fn memory(&self, parts: &mut Parts, _config: Option<&dyn Config>, at_once: f64) {
        let [sequences, tokens] = self.shape.map(|size| size as f64);
        for source in &self.sources {
            let bytes = bytes(source.from.config(), sequences, tokens, at_once);
            parts.of_source(&source.name, "models, banks and checkpoints", bytes);
        }
    }

    fn ready<'a>(&'a self, seed: u64, _config: Option<&dyn Config>) -> Result<Box<dyn ReadyRecipes + 'a>, Mistake> {
        let methods = null::each(&self.recipes, |recipe| Method::resolve(recipe, &self.sources, seed))?;
        Ok(by_window(self, HashMap::new(), move |bench, cells| {
            let want = exact(self, seed, bench.window)?;
            bench.each(cells, &methods, |method, blank| {
                measure(&blank, self, seed, method, &want)
            })
        }))
    }

    fn null(&self, draws: usize, phases: &[Phase], wanted: &[Wanted]) -> Result<Null, String> {
        Ok(Null::new(wanted, &self.recipes, |recipes| Self {
            draws: draws * self.draws,
            phases: phases.to_vec(),
            recipes,
            ..self.clone()
        }))
    }

    fn uses_gpu(&self) -> bool {
        self.recipes.iter().any(|recipe| !recipe.kernels.is_empty())
    }
}

/// Estimates the memory in bytes: one model in f64, one model in f32 per thread, the banks, and the stored results of the
/// compared tokens.
fn bytes(config: &swap_ffn::Config, sequences: f64, tokens: f64, at_once: f64) -> f64 {
    let [d, ff, cores] = [config.d_model, config.d_ff, config.core_count].map(|size| size as f64);
    let [router, k, r] = [config.d_router, config.collapse_k, config.collapse_r].map(|size| size as f64);
    let events = config.n_events as f64;
    let weights = 3.0 * d * ff + cores * ff + router * d + k * r * d + k * cores;
    let banks = sequences * cores * BANKS as f64 * d;
    let points = tokens.max(1.0).log2() + 1.0;
    let kept = points * (events * banks * 4.0 + banks * 8.0);
    8.0 * weights
        + 8.0 * banks
        + kept
        + tokens * events * cores * sequences * 24.0
        + at_once * 4.0 * (weights + 2.0 * banks)
}

/// Measures one recipe on all sources of a window, in the phase of the record `blank`.
pub fn measure(
    blank: &Record,
    study: &SwapFfnStudy,
    seed: u64,
    method: &Method,
    want: &[Trajectory],
) -> Result<Vec<Record>> {
    let one = |(source, want): (&Source<Weights>, &Trajectory)| {
        let inputs = Inputs::new(study.shape[0], seed, source, &blank.window);
        let measured = match blank.phase {
            Phase::Local => teacher::measure(blank, &inputs, method, want),
            Phase::Cumulative => free::measure(blank, &inputs, method, want),
        };
        measured.map_err(Error::Reference)
    };
    let each: Vec<Vec<Record>> = study.sources.par_iter().zip(want).map(one).collect::<Result<_>>()?;
    Ok(each.concat())
}

/// Converts the decisions of an event to the form that metrics compare.
fn decided<T: Real>(decisions: &Decisions<T>) -> impl Iterator<Item = Decided> {
    (0..decisions.gate.len()).map(|row| Decided {
        open: decisions.gate[row],
        bank: decisions.bank[row],
        margins: [decisions.gate_margin(row), decisions.bank_margin(row)],
    })
}

/// Compared decisions, and the numbers that the reference (`want`) and the candidate (`got`) compute after these decisions.
struct Compared {
    decisions: metrics::Decisions,
    want: Vec<f64>,
    got: Vec<f32>,
}

impl Compared {
    fn new(margin: f64) -> Self {
        Self {
            decisions: metrics::Decisions::new(margin),
            want: Vec::new(),
            got: Vec::new(),
        }
    }

    /// Returns records of the errors of `got` against `want`.
    fn numbers(&self, place: &Record) -> Vec<Record> {
        let pair = metrics::Pair::new(&self.want, &self.got);
        super::measure::records(place, &pair, &[self.want.len()]).collect()
    }
}
