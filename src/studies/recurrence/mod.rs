//! What rounding does to a state that is carried from step to step.

mod inputs;
mod method;
pub mod prefill;

use rayon::prelude::*;
use reference::{Real, Tensor};

pub use method::Method;

use super::model::probe::records;
use crate::experiment::Experiment;
use crate::experiment::source::Source;
use inputs::{Inputs, Piece};
use ulplab_core::error::{Error, Result};
use ulplab_core::metrics::{Growth, Pair, RELATIVE_L2};
use ulplab_core::random::stream;
use ulplab_core::record::Record;

/// Steps of the first checkpoint; each next one has twice as many. The output is compared over as many steps before each.
pub const CHECKPOINT: usize = 64;
/// Steps whose inputs are in memory at a time.
pub const PIECE: usize = 4096;

/// What is compared, as it is named behind the source.
const COMPARED: [&str; 2] = ["output", "state"];

/// A recurrence at its checkpoints.
pub struct Path<T> {
    points: Vec<Point<T>>,
}

struct Point<T> {
    steps: usize,
    /// In the order of [`COMPARED`].
    values: [Vec<T>; 2],
}

/// Steps after which errors are measured.
pub fn checkpoints(experiment: &Experiment) -> impl Iterator<Item = usize> {
    let last = experiment.shape[1];
    std::iter::successors(Some(CHECKPOINT), |steps| Some(2 * steps)).take_while(move |steps| *steps <= last)
}

/// Names of all that is measured.
pub fn sites(experiment: &Experiment) -> Vec<String> {
    let of = |source: &Source, what: &str| {
        let all = format!("{}.{what}", source.name);
        let each = checkpoints(experiment).map(|steps| format!("{all}.{steps}"));
        each.chain([all.clone()]).collect::<Vec<_>>()
    };
    let sources = experiment.sources.iter();
    sources
        .flat_map(|source| COMPARED.map(|what| of(source, what)).concat())
        .collect()
}

/// What every source gives in a window, by the definition in f64.
pub fn exact(experiment: &Experiment, window: &str) -> Result<Vec<Path<f64>>> {
    let sources = experiment.sources.par_iter();
    let walk = |source| {
        walk(experiment, source, window, |piece, state, _| {
            method::exact(&piece.cast(), state)
        })
    };
    sources.map(walk).collect()
}

/// Measures one recipe on all sources of a window.
pub fn measure(blank: &Record, experiment: &Experiment, method: &Method, want: &[Path<f64>]) -> Result<Vec<Record>> {
    let one = |(source, want): (&Source, &Path<f64>)| -> Result<Vec<Record>> {
        let random = stream(experiment.seed, &format!("{}/{}/rounding", source.name, blank.window));
        let got = walk(experiment, source, &blank.window, |piece, state, first| {
            method.run(piece, state, first, &random)
        })?;
        Ok(compare(blank, source, want, &got))
    };
    let sources = experiment.sources.par_iter().zip(want);
    let each: Vec<Vec<Record>> = sources.map(one).collect::<Result<_>>()?;
    Ok(each.concat())
}

/// Goes through all steps.
fn walk<T: Real>(
    experiment: &Experiment,
    source: &Source,
    window: &str,
    mut step: impl FnMut(&Piece<f32>, &mut Tensor<T>, usize) -> Result<Tensor<T>, String>,
) -> Result<Path<T>> {
    let mut inputs = Inputs::new(experiment, source, window);
    let mut state = inputs.zeros();
    let mut points = Vec::new();
    let mut done = 0;
    for steps in checkpoints(experiment) {
        let mut recent = Vec::new();
        while done < steps {
            let piece = inputs.next(PIECE.min(steps - done));
            let output = step(&piece, &mut state, done).map_err(Error::Reference)?;
            (done, recent) = match &piece {
                Piece::Attention { q, .. } => (done + q.shape[0], last_rows(&output)),
                Piece::Ssm { u, .. } => (done + u.cols(), last_columns(&output)),
            };
        }
        points.push(Point {
            steps,
            values: [recent, state.data.clone()],
        });
    }
    Ok(Path { points })
}

/// Of `[steps, …]` the last [`CHECKPOINT`] steps.
fn last_rows<T: Real>(output: &Tensor<T>) -> Vec<T> {
    let step = output.data.len() / output.shape[0];
    output.data[output.data.len() - CHECKPOINT * step..].to_vec()
}

/// Of `[heads, steps]` the last [`CHECKPOINT`] steps.
fn last_columns<T: Real>(output: &Tensor<T>) -> Vec<T> {
    let steps = output.cols();
    let rows = output.data.chunks_exact(steps);
    rows.flat_map(|row| &row[steps - CHECKPOINT..]).copied().collect()
}

/// The errors at every checkpoint, and how they grow.
fn compare(blank: &Record, source: &Source, want: &Path<f64>, got: &Path<f32>) -> Vec<Record> {
    let mut all = Vec::new();
    for (at, what) in COMPARED.into_iter().enumerate() {
        let site = format!("{}.{what}", source.name);
        let mut growth = Growth { points: Vec::new() };
        for (want, got) in want.points.iter().zip(&got.points) {
            let (want, got, steps) = (&want.values[at], &got.values[at], want.steps);
            let pair = Pair::new(want, got);
            let error = RELATIVE_L2.measure(&pair).unwrap_or(f64::NAN);
            growth.points.push([steps as f64, error]);
            let blank = Record {
                site: format!("{site}.{steps}"),
                ..blank.clone()
            };
            all.extend(records(&blank, &pair, &[want.len()]));
        }
        let blank = Record { site, ..blank.clone() };
        all.extend(records(&blank, &growth, &[]));
    }
    all
}
