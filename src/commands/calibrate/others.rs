//! Lists the shipped experiments that have not been calibrated, each with the reason.

use std::path::Path;

use super::null::derive;
use super::page::Uncalibrated;
use crate::entries::with_extension;
use crate::experiment::file::ExperimentFile;
use crate::gate::calibration::Calibration;
use crate::{shipped, studies};
use ulplab_core::error::Result;

/// The folder of the shipped experiments, and a file in this folder by which the program finds it.
const FOLDER: &str = "experiments";
const SCHEMA: &str = "experiments/experiment.schema.json";

/// Returns the shipped experiments that are not among `calibrations`, sorted by name, each with the reason. Returns an empty list
/// if this machine does not have the shipped experiments.
pub fn uncalibrated(calibrations: &[Calibration]) -> Result<Vec<Uncalibrated>> {
    let schema = shipped::find(SCHEMA);
    let Some(folder) = schema.as_deref().and_then(Path::parent) else {
        return Ok(Vec::new());
    };
    let mut all = Vec::new();
    for file in with_extension(folder, "read", &["toml"])? {
        let read = ExperimentFile::read(&file, &[])?;
        let experiment = read.head()?.name;
        if !calibrations.iter().any(|known| known.experiment == experiment) {
            let why = why(&read, &file)?;
            all.push(Uncalibrated { experiment, why });
        }
    }
    Ok(all)
}

/// Returns the reason why an experiment is not calibrated.
fn why(read: &ExperimentFile, file: &Path) -> Result<String> {
    let parsed = studies::parse(read)?;
    let (head, study) = (&parsed.experiment.head, &*parsed.study);
    if head.gates.is_empty() {
        return Ok("it has no gate".into());
    }
    let null = match derive(head, study, 1, &[]) {
        Ok(null) => null,
        Err(why) => return Ok(why),
    };
    if !null.cells.is_empty() {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        return Ok(format!(
            "not measured; `ulplab gate --calibrate {FOLDER}/{name} -o FILE` does"
        ));
    }
    let mut reasons: Vec<String> = null.trials.into_iter().filter_map(|trial| trial.null.err()).collect();
    reasons.sort();
    reasons.dedup();
    Ok(reasons.join("; "))
}
