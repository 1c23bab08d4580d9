//! Replacement for the reference model: the kernels of a whole decode step read a text token by token.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use reference::{Numerics, Tensor};

use ulplab_backend::cuda::{Device, Session, Source, Variant};
use ulplab_backend::recipe::Round;
use ulplab_backend::stand_in::chosen;
use ulplab_core::error::{Error, Result, did_you_mean};
use ulplab_run::experiment::Mistake;

use crate::composition::COMPOSITIONS;
use crate::operation::{Formats, INDEX_RECORDS, Reading, WEIGHTS};

/// A variant of the decode step, with the formats of keys and weights.
pub struct WholeStep {
    source: Source,
    variant: Variant,
    record: Option<String>,
    index: Option<String>,
    weights: String,
}

/// Returns an error if kernels do not support the format that a recipe (set of formats) gives for `key`.
fn known(key: &str, format: &str, formats: &[&str]) -> Result<(), Mistake> {
    if formats.contains(&format) {
        return Ok(());
    }
    let near = did_you_mean(format, formats.iter().copied());
    let formats = formats.join(", ");
    Err(Mistake::at(
        key,
        format!("kernels know no '{format}' here: expected one of {formats}{near}"),
    ))
}

/// Lock by which kernels read only one text at a time: the intermediate values of a text take hundreds of megabytes.
static ALONE: Mutex<()> = Mutex::new(());

impl WholeStep {
    /// Finds the variant with this name, e.g. `decode_step.records`. `rounds` are the rounding rules of a recipe (set of
    /// formats): the variant stores keys in the KV-record format that they name.
    ///
    /// # Errors
    /// Returns an error if no variant has the name, the recipe rounds tensors other than keys, or no kernel supports a format.
    pub fn find(name: &str, rounds: &[Round], weights: Option<&str>, index: Option<&str>) -> Result<Self, Mistake> {
        let weights = weights.unwrap_or(Formats::F32.weights);
        known("weights", weights, &WEIGHTS)?;
        index.map_or(Ok(()), |index| known("index", index, &INDEX_RECORDS))?;
        let found = chosen(&[name.to_string()], &["decode_step"], &[&COMPOSITIONS]);
        let found = found.map_err(|mistake| Mistake::at("step", mistake.message))?;
        let plain = |round: &Round| Round {
            at: Reading::STORED.into(),
            format: round.format.clone(),
            ..Round::default()
        };
        let record = match rounds {
            [] => None,
            [round] if *round == plain(round) => Some(round.format.clone()),
            _ => {
                let at = Reading::STORED;
                let message = format!(
                    "a whole step can store keys as records only: expected one entry, {{ at = \"{at}\", format = RECORD }}, or none"
                );
                return Err(Mistake::at("round", message));
            }
        };
        let found = found.into_iter().next();
        let found = found.and_then(|mut found| Some((found.variants.pop()?, found.source)));
        let (variant, source) = found.ok_or_else(|| Mistake::at("step", format!("'{name}' is no kernel")))?;
        Ok(Self {
            source,
            variant,
            record,
            weights: weights.into(),
            index: index.map(String::from),
        })
    }

    /// Runs the kernels on the tokens `ids` of a text with the checkpoint in `folder`, calls the hooks `numerics` with the
    /// intermediate values, and returns the logits.
    ///
    /// # Errors
    /// Returns an error if there is no GPU, or kernels do not support the model.
    pub fn read(&self, folder: &Path, ids: &[u32], numerics: &mut dyn Numerics<f32>) -> Result<Tensor<f32>> {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let reading = Reading {
            folder,
            ids,
            formats: Formats {
                record: self.record.as_deref(),
                index: self.index.as_deref(),
                weights: &self.weights,
                activations: None,
            },
        };
        let (case, problem) = reading.problem().map_err(Error::Usage)?;
        let device = Device::open()?;
        let session = Session::open(&device)?;
        let kernels = session.load(&self.source, None);
        let outputs = kernels.case(&case, &problem).running(&self.variant)?.outputs()?;
        reading.pass(&outputs, numerics).map_err(Error::Usage)
    }
}
