//! The reference's loss in a run, and a check that the losses of the recipes can tell formats apart.

use std::fmt;

use super::Run;
use super::plan::REFERENCE;
use super::summary::Summary;
use serde::Serialize;
use ulplab_core::metrics::{DELTA_NATS, Metric, NATS, NATS_PER_BYTE};
use ulplab_core::record::Phase;

/// Limit on the reference's loss, as a share of the loss of uniform guesses: a model with a higher loss hardly predicts the text.
const HARDLY_PREDICTS: f64 = 0.9;

/// The mean loss of the reference over the run's windows of text.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Loss {
    /// Loss per token, in nats.
    pub nats: f64,
    /// Loss per byte, in nats; `None` if tokens are bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nats_per_byte: Option<f64>,
    /// Perplexity of all tokens together.
    pub perplexity: f64,
    /// Loss per token of uniform guesses, in nats; `None` if the vocabulary is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uniform: Option<f64>,
}

impl Loss {
    /// Returns the loss of the run's reference; `None` if it was not measured on text.
    pub fn of(run: &Run) -> Option<Self> {
        let mean = |metric: &Metric| {
            let mut found = at_the_end(run, metric).filter(|summary| summary.recipe == REFERENCE);
            found.next().map(|summary| summary.mean)
        };
        let nats = mean(&NATS)?;
        Some(Self {
            nats,
            nats_per_byte: mean(&NATS_PER_BYTE),
            perplexity: nats.exp(),
            uniform: run.manifest.vocabulary.map(|tokens| (tokens as f64).ln()),
        })
    }

    /// True if the loss is NaN, or so close to the loss of uniform guesses that the model hardly predicts the text.
    pub fn hardly_predicts(&self) -> bool {
        let at_least = |uniform| self.nats.is_nan() || self.nats >= HARDLY_PREDICTS * uniform;
        self.uniform.is_some_and(at_least)
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "reference: {} nats/token", digits(self.nats))?;
        match self.nats_per_byte {
            Some(by_byte) => write!(f, ", {} nats/byte", digits(by_byte))?,
            None => f.write_str(" (a token is a byte)")?,
        }
        write!(f, ", perplexity {}", digits(self.perplexity))?;
        match self.uniform {
            Some(uniform) => write!(f, "; uniform would be {}", digits(uniform)),
            None => Ok(()),
        }
    }
}

/// Formats a number with three significant digits.
fn digits(x: f64) -> String {
    match x.abs().log10().floor() {
        size if !size.is_finite() => x.to_string(),
        size if size >= 6.0 => format!("{x:.2e}"),
        size => format!("{x:.0$}", (2.0 - size).max(0.0) as usize),
    }
}

/// Returns the reason why the losses of the run cannot tell formats apart; `None` if they can. Either the reference hardly
/// predicts the text, or the 95 % intervals of all recipes' losses overlap.
pub fn blind(run: &Run) -> Option<String> {
    const SO: &str = "this text or checkpoint cannot tell formats apart";
    if let Some(loss) = Loss::of(run).filter(Loss::hardly_predicts) {
        let (nats, uniform) = (digits(loss.nats), digits(loss.uniform.unwrap_or(f64::NAN)));
        let message = format!("{SO}: the reference's loss is {nats} nats/token, and uniform guesses have {uniform}");
        return Some(message);
    }
    let recipes = at_the_end(run, &DELTA_NATS).filter(|summary| summary.recipe != REFERENCE);
    // Leave out recipes with a single window: they have no interval.
    let ends = recipes.map(|summary| (summary.ci_low, summary.ci_high));
    let ends: Vec<(f64, f64)> = ends.filter(|(low, high)| low <= high).collect();
    let low = ends.iter().map(|(low, _)| *low).fold(f64::NEG_INFINITY, f64::max);
    let high = ends.iter().map(|(_, high)| *high).fold(f64::INFINITY, f64::min);
    let common = ends.len() > 1 && low <= high;
    common.then(|| format!("{SO} by loss: all {} recipes lie within each other's noise", ends.len()))
}

/// Returns the summaries of the model's output in the cumulative phase, where errors accumulate over layers.
fn at_the_end<'a>(run: &'a Run, metric: &'a Metric) -> impl Iterator<Item = &'a Summary> {
    let here = |summary: &&Summary| summary.phase == Phase::Cumulative && summary.layer.is_none();
    let summaries = run.summaries.iter().filter(here);
    summaries.filter(|summary| summary.metric == metric.name)
}
