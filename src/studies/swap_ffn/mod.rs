//! What precision does to a path that decides: Swap-FFN, beside the reference in f64.
//!
//! Local: every event starts from the reference's state, so its own error shows. Cumulative: the candidate runs free.

mod candidate;
mod exact;
mod free;
mod method;
mod sizes;
mod teacher;

use rayon::prelude::*;
use reference::Real;
use reference::paths::swap_ffn;

pub use exact::{Path, exact};
pub use method::{Event, Kernels, Method};
pub use sizes::Sizes;

use crate::experiment::Experiment;
use crate::experiment::source::{Origin, Source};
use exact::Known;
use sizes::Inputs;
use ulplab_core::error::{Error, Result};
use ulplab_core::metrics::Decided;
use ulplab_core::record::{Phase, Record};

/// What is compared at a checkpoint in one phase or the other, as it is named behind the source.
const LOCAL: [&str; 3] = ["decisions", "next", "x"];
const CUMULATIVE: [&str; 4] = ["decisions", "lanes", "ram", "delta"];
/// Decisions of the first token, event by event, which stand for layers.
const FIRST: &str = "first";

/// Tokens after which a run is compared: 1, 2, 4, …
pub fn checkpoints(experiment: &Experiment) -> impl Iterator<Item = usize> {
    let last = experiment.shape[1];
    std::iter::successors(Some(1), |tokens| Some(2 * tokens)).take_while(move |tokens| *tokens <= last)
}

fn is_checkpoint(tokens: usize) -> bool {
    tokens.is_power_of_two()
}

/// Names of all that is measured, with layer 0 for all layers.
pub fn sites(experiment: &Experiment) -> Vec<String> {
    let of = |source: &Source| {
        let at = |what: &&str| {
            let name = format!("{}.{what}", source.name);
            checkpoints(experiment).map(move |tokens| format!("{name}.{tokens}"))
        };
        let mut names: Vec<String> = LOCAL.iter().chain(&CUMULATIVE).flat_map(at).collect();
        names.push(format!("layers.0.{}.{FIRST}", source.name));
        names
    };
    experiment.sources.iter().flat_map(of).collect()
}

/// Measures one recipe on all sources of a window, in the phase of the blank record.
pub fn measure(blank: &Record, experiment: &Experiment, method: &Method, want: &[Path]) -> Result<Vec<Record>> {
    let one = |(source, want): (&Source, &Path)| {
        let Origin::SwapFfn(sizes) = &source.from else {
            return Ok(Vec::new());
        };
        let inputs = Inputs::new(experiment, &source.name, sizes, &blank.window);
        let measured = match blank.phase {
            Phase::Local => teacher::measure(blank, &source.name, &inputs, method, want),
            Phase::Cumulative => free::measure(blank, &source.name, &inputs, method, want),
        };
        measured.map_err(Error::Reference)
    };
    let each: Vec<Vec<Record>> = experiment
        .sources
        .par_iter()
        .zip(want)
        .map(one)
        .collect::<Result<_>>()?;
    Ok(each.concat())
}

/// The decisions of an event as they are compared.
fn decided<T: Real>(decisions: &swap_ffn::Decisions<T>) -> impl Iterator<Item = Decided> {
    (0..decisions.gate.len()).map(|row| Decided {
        open: decisions.gate[row],
        bank: decisions.bank[row],
        margins: [decisions.gate_margin(row), decisions.bank_margin(row)],
    })
}

/// A record's place at a checkpoint.
fn at(blank: &Record, source: &str, what: &str, tokens: usize) -> Record {
    Record {
        site: format!("{source}.{what}.{tokens}"),
        ..blank.clone()
    }
}
