//! Running the cells of a plan.

use std::sync::atomic::{AtomicBool, Ordering};

use rayon::prelude::*;
use reference::paths::deepseek_v4::Model;
use reference::{Numerics, Real, Tensor};

use super::plan::{Cell, REFERENCE};
use super::probe::{Probe, Recorder, Trace};
use crate::backend::rounding::Rounding;
use crate::error::{Error, Result};
use crate::record::Record;

/// A model with what loads its f64 twin, which only the reference's own check needs.
pub struct Subject<'a> {
    pub model: Model<f32>,
    pub load_f64: Box<dyn Fn() -> Result<Model<f64>> + Sync + 'a>,
}

/// Runs cells of one window. `done` is called with each cell's records as it finishes, from any thread; when `stop` turns
/// true, cells not yet begun are left out.
pub fn window(
    subject: &Subject<'_>,
    ids: &[u32],
    name: &str,
    cells: &[(&Cell, &Rounding)],
    stop: &AtomicBool,
    done: &(dyn Fn(&Cell, Vec<Record>) -> Result<()> + Sync),
) -> Result<()> {
    let want = trace(|recorder| subject.model.run(&mut subject.model.state(), ids, recorder))?;
    finite(&want.logits, name)?;
    cells.par_iter().try_for_each(|(cell, rounding)| {
        if stop.load(Ordering::Relaxed) {
            return Err(Error::Interrupted);
        }
        let records = if cell.recipe == REFERENCE {
            let exact = (subject.load_f64)()?;
            let exact = trace(|recorder| exact.run(&mut exact.state(), ids, recorder))?;
            measure(&subject.model, ids, name, cell, rounding, &exact)?
        } else {
            measure(&subject.model, ids, name, cell, rounding, &want)?
        };
        done(cell, records)
    })
}

fn trace<T: Real>(forward: impl FnOnce(&mut dyn Numerics<T>) -> Result<Tensor<T>, String>) -> Result<Trace<T>> {
    let mut recorder = Recorder::default();
    let logits = forward(&mut recorder).map_err(Error::Reference)?;
    Ok(recorder.finish(logits))
}

fn measure<W: Real + Into<f64>>(
    model: &Model<f32>,
    ids: &[u32],
    window: &str,
    cell: &Cell,
    rounding: &Rounding,
    want: &Trace<W>,
) -> Result<Vec<Record>> {
    let blank = Record::blank(&cell.id, &cell.recipe, cell.phase, window);
    let mut probe = Probe::new(rounding, want, cell.phase, blank);
    let logits = model
        .run(&mut model.state(), ids, &mut probe)
        .map_err(Error::Reference)?;
    Ok(probe.finish(&logits, ids))
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
