//! The model on a window: the reference, and candidates beside it.

use reference::paths::deepseek_v4::Model;
use reference::{Numerics, Real, Role, Site, Tensor};

use super::probe::{Probe, Recorder, Trace};
use crate::backend::rounding::Rounding;
use crate::studies::study::Text;
use ulplab_core::error::{Error, Result};
use ulplab_core::record::Record;

/// A site that is read in every role, from the first row on.
pub fn site(layer: Option<usize>, name: &'static str) -> Site {
    Site {
        layer,
        name,
        role: Role::Both,
        first_row: 0,
    }
}

/// Runs the reference, and keeps what candidates are compared with.
pub fn run_reference<T: Real>(model: &Model<T>, ids: &[u32]) -> Result<Trace<T>>
where
    Recorder<T>: Numerics<T>,
    T: reference::paths::deepseek_v4::Scalar,
{
    let mut recorder = Recorder::default();
    let logits = model
        .run(&mut model.state(), ids, &mut recorder)
        .map_err(Error::Reference)?;
    Ok(recorder.finish(logits))
}

/// Runs the model with roundings, and compares it with the reference.
pub fn run_candidate<W: Real + Into<f64>>(
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
pub fn finite(logits: &Tensor<f32>, window: &str) -> Result<()> {
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
