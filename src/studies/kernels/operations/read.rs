//! Reads the user's operations and cases from an experiment file, for commands that do not run the experiment.

use std::path::Path;

use super::{KernelStudy, Operation, check_definitions};
use crate::experiment::Mistake;
use crate::experiment::file::ExperimentFile;
use crate::studies;
use ulplab_core::error::{Error, Result};

/// Operations and cases of a file, and the seed for random inputs.
#[derive(Default)]
pub struct Definitions {
    pub seed: u64,
    pub study: KernelStudy,
}

/// Reads and checks the definitions of an experiment file. Without a file, the definitions are empty.
pub fn read(file: Option<&Path>) -> Result<Definitions> {
    let Some(file) = file else {
        return Ok(Definitions::default());
    };
    let file = ExperimentFile::read(file, &[])?;
    let experiment = studies::parse(&file)?.experiment;
    let Some(study) = studies::read_as::<KernelStudy>(&experiment)? else {
        let message = format!("an experiment of kind = \"{}\" has no operations", experiment.kind);
        return Err(file.error(&Mistake::at("kind", message)));
    };
    check_definitions(&study).map_err(|mistake| file.error(&mistake))?;
    let seed = experiment.seed;
    Ok(Definitions { seed, study })
}

/// Returns the operation with this name. If the name is a kernel's, `op.variant`, the error names the kernel's operation. If
/// `file` is `None`, the error tells the user to name the file that defines the operation.
pub fn given<'a>(study: &'a KernelStudy, name: &str, file: Option<&Path>) -> Result<Operation<'a>> {
    Operation::find(study, name).map_err(|why| {
        let of = name.split_once('.').map(|(op, _)| op);
        let of = of.filter(|op| Operation::find(study, op).is_ok());
        Error::Usage(match (of, file) {
            (Some(op), _) => format!("{why}; '{name}' is a kernel of the operation '{op}'"),
            (None, Some(file)) => format!("{why}, neither shipped nor in {}", file.display()),
            (None, None) => format!(
                "{why}; `ulplab kernels list` lists the shipped operations; give --experiment FILE for your own"
            ),
        })
    })
}
