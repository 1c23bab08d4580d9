//! Reads the data from which the shipped experiment makes the inputs of its cases. The digests of attestations need these
//! inputs.

use std::path::Path;
use std::sync::OnceLock;

use crate::dataset::Manifest as Datasets;
use crate::experiment::file::ExperimentFile;
use crate::report::Show;
use crate::studies::inputs::{Inputs, verified};
use crate::studies::kernels::{KernelStudy, SHIPPED, sites};
use crate::studies::limits::{available, check_size};
use crate::studies::study::Text;
use ulplab_core::error::Result;
use ulplab_operations::ops::Data;

/// Calls `run` with the data from which the shipped experiment makes the inputs of its cases. The model is loaded only when a
/// case reads tensors at the model's sites.
pub(super) fn with_data<T>(run: impl FnOnce(&Data) -> Result<T>) -> Result<T> {
    let file = ExperimentFile::read(Path::new(SHIPPED), &[])?;
    let (head, study) = (file.head()?, file.body::<KernelStudy>()?);
    let (reading, datasets) = (study.reading(), Datasets::open(None)?);
    let mut inputs = Inputs::find(&file, &head, reading, &datasets)?;
    let (config, threads) = (inputs.config.as_deref(), rayon::current_num_threads());
    check_size(&study, config, threads, available()).map_err(|mistake| file.error(&mistake))?;
    inputs.read_texts(&file, &head, reading, &datasets)?;
    verified(reading, &datasets)?;
    let model = OnceLock::new();
    let at_sites = |pattern: &str| {
        let load = || inputs.load().map_err(|error| error.to_string());
        let model = model.get_or_init(load).as_ref().map_err(Clone::clone)?;
        let text = model.as_deref().zip(inputs.texts.first());
        let (model, text) = text.ok_or("no model is given, or no text")?;
        sites(Text { model, ids: &text.ids }, pattern)
    };
    run(&Data::new(head.seed, &at_sites).with_checkpoint(inputs.folder.as_deref()))
}
