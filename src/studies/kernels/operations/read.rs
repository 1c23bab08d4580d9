//! Operations and cases of an experiment file, for commands that run no experiment.

use std::path::Path;

use super::{Operation, check_definitions};
use crate::experiment::load::Source;
use crate::experiment::{Experiment, Kind};
use ulplab_core::error::{Error, Result};

/// The experiment of a file, of which operations and programs are checked, or one without any.
pub fn read(file: Option<&Path>) -> Result<Experiment> {
    let Some(file) = file else {
        return Ok(Experiment::default());
    };
    let source = Source::read(file)?;
    let experiment = source.parse(&[])?;
    if experiment.kind != Kind::Kernels {
        let message = format!(
            "an experiment of kind = \"{}\" has no operations",
            experiment.kind.name()
        );
        return Err(source.error_at("kind", message));
    }
    check_definitions(&experiment).map_err(|(place, message)| source.error_at(&place, message))?;
    Ok(experiment)
}

/// The operation of that name. A kernel, `op.variant`, is no operation: the error says which one it computes; without a file,
/// it says how operations of a user's are found.
pub fn given<'a>(experiment: &'a Experiment, name: &str, file: Option<&Path>) -> Result<Operation<'a>> {
    Operation::find(experiment, name).map_err(|why| {
        let of = name.split_once('.').map(|(op, _)| op);
        let of = of.filter(|op| Operation::find(experiment, op).is_ok());
        Error::Usage(match (of, file) {
            (Some(op), _) => format!("{why}; '{name}' is a kernel of the operation '{op}'"),
            (None, Some(file)) => format!("{why}, neither shipped nor in {}", file.display()),
            (None, None) => format!(
                "{why}; `ulplab kernels list` names those that are shipped, and one of your own is found with --experiment FILE"
            ),
        })
    })
}
