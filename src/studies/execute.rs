//! Running the cells of a plan.

use std::sync::atomic::{AtomicBool, Ordering};

use rayon::prelude::*;
use reference::paths::deepseek_v4::Model;
use reference::{Numerics, Real, Tensor};

use super::model::probe::{Probe, Recorder, Trace};
use super::ready::Ready;
use super::recall;
use super::recall::Vectors;
use super::recurrence;
use super::recurrence::Path;
use super::round_trip;
use super::round_trip::Sample;
use super::swap_ffn;
use crate::backend::rounding::Rounding;
use crate::experiment::{Experiment, Kind};
use crate::run::plan::{Cell, REFERENCE};
use ulplab_core::error::{Error, Result};
use ulplab_core::record::Record;

/// What cells are run with.
pub struct Bench<'a> {
    pub experiment: &'a Experiment,
    pub ready: &'a Ready,
    /// Loads the model's f64 twin, which only the reference's own check needs.
    pub load_f64: &'a (dyn Fn() -> Result<Model<f64>> + Sync),
    /// When it turns true, cells not yet begun are left out.
    pub stop: &'a AtomicBool,
    /// Called with each cell's records as it finishes, from any thread.
    pub done: &'a (dyn Fn(&Cell, Vec<Record>) -> Result<()> + Sync),
}

/// A window of text, and the model that reads it.
#[derive(Clone, Copy)]
pub struct Text<'a> {
    pub model: &'a Model<f32>,
    pub ids: &'a [u32],
}

/// What the cells of one window are measured against.
enum Exact<'a> {
    Model(Text<'a>, Trace<f32>),
    Samples(Vec<Sample>),
    Vectors(Vec<Vectors>),
    Paths(Vec<Path<f64>>),
    SwapFfn(Vec<swap_ffn::Path>),
}

impl Bench<'_> {
    /// Runs cells of one window: of text, or drawn.
    pub fn window(&self, name: &str, text: Option<Text<'_>>, cells: &[&Cell]) -> Result<()> {
        let exact = match (self.experiment.kind, text) {
            (Kind::RoundTrip, Some(text)) => Exact::Samples(round_trip::recorded(&self.experiment.sources, text)?),
            (Kind::RoundTrip, None) => Exact::Samples(round_trip::drawn(self.experiment, name)),
            (Kind::Recurrence, _) => Exact::Paths(recurrence::exact(self.experiment, name)?),
            (Kind::SwapFfn, _) => Exact::SwapFfn(swap_ffn::exact(self.experiment, name)?),
            (Kind::Recall, None) => Exact::Vectors(recall::drawn(self.experiment, name)),
            (Kind::Model | Kind::Recall, Some(text)) => {
                let want = trace(|recorder| text.model.run(&mut text.model.state(), text.ids, recorder))?;
                finite(&want.logits, name)?;
                Exact::Model(text, want)
            }
            (kind @ (Kind::Model | Kind::Kernels), _) => {
                return Err(Error::Usage(format!(
                    "window '{name}': an experiment of kind {kind:?} measures nothing here"
                )));
            }
        };
        cells.par_iter().try_for_each(|cell| {
            if self.stop.load(Ordering::Relaxed) {
                return Err(Error::Interrupted);
            }
            (self.done)(cell, self.measure(cell, name, &exact)?)
        })
    }

    fn measure(&self, cell: &Cell, window: &str, exact: &Exact<'_>) -> Result<Vec<Record>> {
        let blank = Record::blank(&cell.id, &cell.recipe, cell.phase, window);
        let recipe = self.experiment.recipes.iter().find(|recipe| recipe.name == cell.recipe);
        let rounding = || &self.ready.roundings[&cell.recipe];
        match (exact, recipe) {
            (Exact::Samples(samples), Some(recipe)) => {
                let codec = |name: &String| self.ready.codecs[name].as_ref();
                let rival = recipe.against.as_ref().map(codec);
                Ok(round_trip::measure(&blank, samples, codec(&recipe.name), rival))
            }
            (Exact::Vectors(vectors), Some(recipe)) => {
                let seed = self.experiment.seed;
                Ok(recall::of_vectors(&blank, seed, recipe, rounding(), vectors))
            }
            (Exact::Paths(paths), Some(recipe)) => {
                let method = &self.ready.methods[&recipe.name];
                recurrence::measure(&blank, self.experiment, method, paths)
            }
            (Exact::SwapFfn(paths), Some(recipe)) => {
                let method = &self.ready.swap_ffn[&recipe.name];
                swap_ffn::measure(&blank, self.experiment, method, paths)
            }
            (Exact::Model(text, want), Some(recipe)) if self.experiment.kind == Kind::Recall => {
                let got = match recipe.score_noise {
                    Some(size) => recall::of_noise(&blank, self.experiment.seed, size, want),
                    None => candidate(*text, rounding(), want, blank)?,
                };
                Ok(recall::by_source(&self.experiment.sources, &got))
            }
            (Exact::Model(text, _), None) if cell.recipe == REFERENCE => {
                let exact = (self.load_f64)()?;
                let exact = trace(|recorder| exact.run(&mut exact.state(), text.ids, recorder))?;
                candidate(*text, rounding(), &exact, blank)
            }
            (Exact::Model(text, want), Some(_)) => candidate(*text, rounding(), want, blank),
            // A cell without records would have nothing that could fail.
            (_, None) => Err(Error::Usage(format!(
                "cell '{}': the experiment has no recipe '{}'",
                cell.id, cell.recipe
            ))),
        }
    }
}

fn trace<T: Real>(forward: impl FnOnce(&mut dyn Numerics<T>) -> Result<Tensor<T>, String>) -> Result<Trace<T>> {
    let mut recorder = Recorder::default();
    let logits = forward(&mut recorder).map_err(Error::Reference)?;
    Ok(recorder.finish(logits))
}

/// Runs the model rounded, and compares it with what was traced.
fn candidate<W: Real + Into<f64>>(
    text: Text<'_>,
    rounding: &Rounding,
    want: &Trace<W>,
    blank: Record,
) -> Result<Vec<Record>> {
    let mut probe = Probe::new(rounding, want, blank.phase, blank);
    let logits = rounding.run(text.model, &mut text.model.state(), text.ids, &mut probe)?;
    Ok(probe.finish(&logits, text.ids))
}

/// A reference that is not finite can judge nothing.
fn finite(logits: &Tensor<f32>, window: &str) -> Result<()> {
    match logits.data.iter().position(|x| !x.is_finite()) {
        None => Ok(()),
        Some(first) => {
            let (row, col) = (first / logits.cols(), first % logits.cols());
            Err(Error::Reference(format!(
                "window {window}: logit [{row}, {col}] is {}",
                logits.data[first]
            )))
        }
    }
}
