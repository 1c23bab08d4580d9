//! Measures KL divergences and flips (predictions that became wrong or right) of recipes, window by window. A file keeps the
//! results, so that an interrupted search can continue.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use indicatif::ProgressBar;
use rayon::prelude::*;
use reference::Tensor;
use reference::paths::Model;
use serde::{Deserialize, Serialize};

use crate::backend::rounding::Rounding;
use crate::experiment::Mistake;
use crate::progress::{self, Lines};
use crate::signal;
use crate::studies::inputs::Inputs;
use crate::studies::limits::{Parts, available};
use crate::studies::model::{Recipe, run_finite};
use ulplab_core::atomic::write_text;
use ulplab_core::error::{Error, Result, refuse};
use ulplab_core::input;
use ulplab_core::metrics::{KL, Logits, TOP1};

/// The measurements of a recipe on one window.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Mean KL divergence of the reference from the recipe, in nats per token.
    pub kl: f64,
    /// Share of positions at which the most probable token differs from the reference's.
    pub flips: f64,
}

/// The logits of the reference on every window, and the measurements of recipes against them.
pub struct Measure<'a> {
    inputs: &'a Inputs,
    model: Box<dyn Model<f32>>,
    windows: Vec<(&'a [u32], Tensor<f32>)>,
    seed: u64,
    known: StoredPoints,
    file: Option<PathBuf>,
    /// Number of forward passes so far: one for each recipe and window.
    pub passes: usize,
    /// Progress bar of the passes.
    bar: ProgressBar,
    _lines: Lines,
}

/// Measurements (points) by recipe and window, with a fingerprint of all their inputs.
#[derive(Serialize, Deserialize)]
struct StoredPoints {
    fingerprint: String,
    points: BTreeMap<String, Point>,
}

impl<'a> Measure<'a> {
    /// Runs the reference on all windows. Reads from `file` the measurements (points) of an earlier search with the same
    /// `fingerprint`.
    ///
    /// # Errors
    /// Returns an error if the reference fails or the file belongs to another search.
    pub fn new(
        inputs: &'a Inputs,
        model: Box<dyn Model<f32>>,
        windows: &[(&str, &'a [u32])],
        seed: u64,
        (file, fingerprint): (Option<&Path>, String),
    ) -> Result<Self> {
        let mut points = BTreeMap::new();
        if let Some(file) = file.filter(|file| file.exists()) {
            let stored = serde_json::from_str::<StoredPoints>(&input::text(file)?);
            let stored = stored.map_err(|why| Error::data(file, format!("not measurements of a search: {why}")))?;
            let message =
                "measurements of another search: the experiment, its data, formats, patterns or ulplab were changed";
            refuse(stored.fingerprint != fingerprint, message).map_err(|why| Error::data(file, why))?;
            points = stored.points;
        }
        let reference = windows
            .par_iter()
            .map(|(name, ids)| Ok((*ids, run_finite(&*model, ids, name)?.logits)));
        let bar = progress::bar(None, "", true);
        Ok(Self {
            _lines: Lines::new(&bar, "forward passes", false),
            bar,
            windows: reference.collect::<Result<_>>()?,
            inputs,
            model,
            seed,
            known: StoredPoints { fingerprint, points },
            file: file.map(Path::to_path_buf),
            passes: 0,
        })
    }

    /// Returns the points (measurements) of recipes on these windows; measures the points that are not stored. `named` has the
    /// recipes, each with its unique key in the file.
    ///
    /// # Errors
    /// Returns an error if the reference fails, the file cannot be written, or a signal arrives.
    pub fn points(&mut self, named: &[(String, Recipe)], windows: std::ops::Range<usize>) -> Result<Vec<Vec<Point>>> {
        let key = |name: &str, window: usize| format!("{name} @{window}");
        let kept = |name: &str, window| self.known.points.contains_key(&key(name, window));
        let missing = |(name, _): &&(String, Recipe)| !windows.clone().all(|window| kept(name, window));
        let new: Vec<&(String, Recipe)> = named.iter().filter(missing).collect();
        // Measures a few recipes at a time, and then writes the file, so that an interruption loses little.
        for piece in new.chunks(self.piece()) {
            let recipes = piece.par_iter().map(|(_, recipe)| recipe);
            let measured = recipes.map(|recipe| self.measured(recipe, windows.clone()));
            let measured = measured.collect::<Result<Vec<_>>>()?;
            for ((name, _), points) in piece.iter().zip(measured) {
                self.passes += points.len();
                let keyed = windows.clone().map(|window| key(name, window)).zip(points);
                self.known.points.extend(keyed);
            }
            if let Some(file) = &self.file {
                let text = serde_json::to_string(&self.known).map_err(|why| Error::Usage(why.to_string()))?;
                write_text(file, &text)?;
            }
        }
        let point = |name: &str, window| self.known.points[&key(name, window)];
        let points = |(name, _): &(String, Recipe)| windows.clone().map(|window| point(name, window)).collect();
        Ok(named.iter().map(points).collect())
    }

    /// Returns the number of recipes to measure between two writes of the file: a few for each thread, but not more than fit into
    /// memory. Each recipe that rounds weights needs a copy of all weights.
    fn piece(&self) -> usize {
        let threads = rayon::current_num_threads();
        let mut parts = Parts::default();
        parts.weights(self.model.config());
        let logits = self.windows.iter().map(|(_, logits)| 4.0 * logits.data.len() as f64);
        parts.add("for logits", 2.0 * logits.fold(0.0, f64::max));
        let fit = available().map_or(usize::MAX, |free| (free.0 / parts.total()) as usize);
        if fit >= threads { 4 * threads } else { fit.max(1) }
    }

    fn measured(&self, recipe: &Recipe, windows: std::ops::Range<usize>) -> Result<Vec<Point>> {
        let config = self.model.config();
        let rounding = recipe.resolve(config, self.seed).map_err(Mistake::usage)?;
        let own = match rounding.rounds_weights {
            true => Some(self.inputs.open()?.load_by(&mut &rounding)?),
            false => None,
        };
        let model = own.as_deref().unwrap_or(&*self.model);
        let windows = self.windows[windows].par_iter();
        let points = windows.map(|(ids, want)| point(model, &rounding, ids, want));
        points.inspect(|_| self.bar.inc(1)).collect()
    }
}

fn point(model: &dyn Model<f32>, rounding: &Rounding, ids: &[u32], want: &Tensor<f32>) -> Result<Point> {
    if signal::STOP.load(std::sync::atomic::Ordering::Relaxed) {
        return Err(Error::Interrupted);
    }
    let mut state = model.state(Vec::new()).map_err(Error::Reference)?;
    let got = rounding.run(model, &mut *state, ids, &mut { rounding })?;
    let logits = Logits::new(&want.data, &got.data, want.cols(), &ids[1..]);
    let kl = KL.measure(&logits).unwrap_or(f64::NAN);
    let top1 = TOP1.measure(&logits).unwrap_or(f64::NAN);
    match kl.is_finite() {
        true => Ok(Point { kl, flips: 1.0 - top1 }),
        false => Err(Error::Reference("a recipe gives logits that are not finite".into())),
    }
}
