//! Runs of the model on a window (piece of text): the reference, and the candidates (altered models).

use std::path::Path;

use reference::paths::{Input, Model, Scalar};
use reference::{Numerics, Plain, Real, Tensor};

use super::probe::{Recorder, Trace, append};
use crate::backend::rounding::Rounding;
use crate::studies::study::Text;
use ulplab_core::error::{Error, Result};
use ulplab_core::metrics::{DELTA_NATS, DELTA_NATS_PER_BYTE, NATS, NATS_PER_BYTE};
use ulplab_core::record::Record;
use ulplab_decode_step::WholeStep;

/// Runs the reference, and records the values that candidates are compared with.
pub fn run_reference<T: Scalar>(model: &dyn Model<T>, ids: &[u32]) -> Result<Trace<T>> {
    let mut recorder = Recorder::new(Plain, model.config().path());
    let logits = from_start(model, ids, &mut recorder)?;
    Ok(recorder.finish(logits))
}

/// Runs the model with a recipe on a text, in calls of the given numbers of tokens. Records the values to compare.
pub fn run_recorded(text: Text<'_>, rounding: &Rounding, calls: &[usize]) -> Result<Trace<f32>> {
    let mut recorder = Recorder::new(rounding, text.model.config().path());
    let mut state = text.model.state(Vec::new()).map_err(Error::Reference)?;
    let mut logits = Tensor::new([0, 0], Vec::new());
    let mut rest = text.ids;
    for &tokens in calls {
        let ids;
        (ids, rest) = rest.split_at(tokens);
        let rows = rounding.run(text.model, &mut *state, ids, &mut recorder)?;
        logits.shape[1] = rows.cols();
        append(&mut logits, &rows);
    }
    Ok(recorder.finish(logits))
}

/// Runs the kernels of a whole decoding step on a text, with the recipe's roundings, and records the values to compare.
pub fn run_step(text: Text<'_>, folder: &Path, step: &WholeStep, rounding: &Rounding) -> Result<Trace<f32>> {
    let mut recorder = Recorder::new(rounding, text.model.config().path());
    let logits = step.read(folder, text.ids, &mut recorder)?;
    Ok(recorder.finish(logits))
}

/// Runs a model on tokens, beginning with an empty state.
pub fn from_start<T: Real>(model: &dyn Model<T>, ids: &[u32], numerics: &mut dyn Numerics<T>) -> Result<Tensor<T>> {
    let mut state = model.state(Vec::new()).map_err(Error::Reference)?;
    let output = model.run(&mut *state, Input::Ids(ids), numerics);
    output.map_err(Error::Reference)
}

/// Adds records of the loss per byte of text to the records of the loss per token. `targets` is the number of predicted tokens,
/// and `bytes` the number of bytes of these tokens; with `None`, nothing is added.
pub fn with_loss_per_byte(mut records: Vec<Record>, targets: usize, bytes: Option<usize>) -> Vec<Record> {
    let Some(bytes) = bytes.filter(|bytes| *bytes > 0) else {
        return records;
    };
    for (by_token, by_byte) in [(NATS, NATS_PER_BYTE), (DELTA_NATS, DELTA_NATS_PER_BYTE)] {
        let loss = records.iter().find(|record| record.metric == by_token.name);
        let by_bytes = loss.map(|loss| Record {
            metric: by_byte.name.into(),
            value: loss.value * targets as f64 / bytes as f64,
            ..loss.clone()
        });
        records.extend(by_bytes);
    }
    records
}

/// Runs the reference on a window, and checks that its logits are finite. Candidates cannot be compared with NaN or infinite
/// logits.
pub fn run_finite(model: &dyn Model<f32>, ids: &[u32], window: &str) -> Result<Trace<f32>> {
    let trace = run_reference(model, ids)?;
    let logits = &trace.logits;
    match logits.data.iter().position(|x| !x.is_finite()) {
        None => Ok(trace),
        Some(first) => {
            let (row, col, value) = (first / logits.cols(), first % logits.cols(), logits.data[first]);
            let message = format!("window {window}: logit [{row}, {col}] is {value}");
            Err(Error::Reference(message))
        }
    }
}
