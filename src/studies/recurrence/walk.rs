//! Runs all steps of a recurrence: by its definition in f64 (the reference), and by a recipe (the candidate).

use rayon::prelude::*;
use reference::{Real, Tensor};

use super::inputs::{Inputs, Piece};
use super::method::{self, Method};
use super::{CHECKPOINT, COMPARED, Operation, PIECE, RecurrenceStudy};
use crate::experiment::Source;
use crate::studies::measure::{at, records};
use ulplab_core::error::{Error, Result};
use ulplab_core::metrics::{Growth, Pair, RELATIVE_L2};
use ulplab_core::random::stream;
use ulplab_core::record::Record;

/// The results of a recurrence at its checkpoints.
type Trajectory<T> = Vec<Point<T>>;

/// The results of a recurrence at one checkpoint.
pub struct Point<T> {
    steps: usize,
    /// Output of the last [`CHECKPOINT`] steps up to the checkpoint, and the state at the checkpoint, in the order of
    /// [`COMPARED`].
    values: [Vec<T>; 2],
}

/// Runs the recurrence of every source on the inputs of a window (one random sample), by the definition in f64.
pub fn exact(study: &RecurrenceStudy, seed: u64, window: &str) -> Result<Vec<Trajectory<f64>>> {
    let sources = study.sources.par_iter();
    let walk = |source| {
        walk(study, seed, source, window, |piece, state, _| {
            method::exact(&piece.cast(), state)
        })
    };
    sources.map(walk).collect()
}

/// Measures one recipe on all sources of a window.
pub fn measure(
    blank: &Record,
    study: &RecurrenceStudy,
    seed: u64,
    method: &Method,
    want: &[Trajectory<f64>],
) -> Result<Vec<Record>> {
    let one = |(source, want): (&Source<Operation>, &Trajectory<f64>)| -> Result<Vec<Record>> {
        let random = stream(seed, &format!("{}/{}/rounding", source.name, blank.window));
        let got = walk(study, seed, source, &blank.window, |piece, state, first| {
            method.run(piece, state, first, &random)
        })?;
        Ok(compare(blank, source, want, &got))
    };
    let sources = study.sources.par_iter().zip(want);
    let each: Vec<Vec<Record>> = sources.map(one).collect::<Result<_>>()?;
    Ok(each.concat())
}

/// Runs all steps of a source's recurrence on the inputs of a window (one random sample), and returns the results at the
/// checkpoints. `step` is called with the inputs of several steps at a time.
fn walk<T: Real>(
    study: &RecurrenceStudy,
    seed: u64,
    source: &Source<Operation>,
    window: &str,
    mut step: impl FnMut(&Piece<f32>, &mut Tensor<T>, usize) -> Result<Tensor<T>, String>,
) -> Result<Trajectory<T>> {
    let mut inputs = Inputs::new(study.shape[0], seed, source, window);
    let mut state = inputs.zeros();
    let mut points = Vec::new();
    let mut done = 0;
    for steps in study.checkpoints() {
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
    Ok(points)
}

/// Returns the last [`CHECKPOINT`] steps of an output `[steps, …]`.
fn last_rows<T: Real>(output: &Tensor<T>) -> Vec<T> {
    let step = output.data.len() / output.shape[0];
    output.data[output.data.len() - CHECKPOINT * step..].to_vec()
}

/// Returns the last [`CHECKPOINT`] steps of an output `[heads, steps]`.
fn last_columns<T: Real>(output: &Tensor<T>) -> Vec<T> {
    let steps = output.cols();
    let rows = output.data.chunks_exact(steps);
    rows.flat_map(|row| &row[steps - CHECKPOINT..]).copied().collect()
}

/// Returns records of the errors at every checkpoint, and of their growth over the steps.
fn compare(blank: &Record, source: &Source<Operation>, want: &[Point<f64>], got: &[Point<f32>]) -> Vec<Record> {
    let mut all = Vec::new();
    for (part, what) in COMPARED.into_iter().enumerate() {
        let site = format!("{}.{what}", source.name);
        let mut growth = Growth { points: Vec::new() };
        for (want, got) in want.iter().zip(got) {
            let (want, got, steps) = (&want.values[part], &got.values[part], want.steps);
            let pair = Pair::new(want, got);
            let error = RELATIVE_L2.measure(&pair).unwrap_or(f64::NAN);
            growth.points.push([steps as f64, error]);
            let place = at(blank, None, format!("{site}.{steps}"));
            all.extend(records(&place, &pair, &[want.len()]));
        }
        all.extend(records(&at(blank, None, site), &growth, &[]));
    }
    all
}
