//! `ulplab kernels mutants`: whether the checks notice the faults that are planted.

use std::path::{Path, PathBuf};

use super::{RunArgs, SHIPPED};
use crate::studies::kernels::{OnDevice, Options};
use ulplab_core::error::{Error, Exit, Result};

/// Check the kernels, then plant every fault in turn and report which check notices it; or check them with one fault planted.
///
/// The exit code is 100 if a fault goes unnoticed; with one fault planted, by its name, it is 100 if the checks notice it.
/// Without a GPU, the faults are only compiled.
#[derive(Debug, clap::Args)]
#[command(mut_arg("experiment", fault_or_experiment))]
pub struct MutantsArgs {
    #[command(flatten)]
    run: RunArgs,
    /// The experiment, if a fault is named.
    #[arg(index = 2, value_name = "EXPERIMENT")]
    of: Option<PathBuf>,
    /// Run kernels on a GPU, or only compile them and check them against their attestations.
    #[arg(long, value_enum, default_value = "cuda")]
    device: OnDevice,
}

fn fault_or_experiment(first: clap::Arg) -> clap::Arg {
    first
        .required(false)
        .default_value(SHIPPED)
        .index(1)
        .value_name("OP.MUTANT|EXPERIMENT")
        .help("The fault to plant, e.g. rope.cos_sin_swapped; or the experiment, to plant every fault of its kernels")
}

pub(super) fn run(args: &MutantsArgs) -> Result<Exit> {
    let mut run = args.run.clone();
    let first = &args.run.sweep.experiment;
    let fault = fault(first);
    run.sweep.experiment = match (&args.of, &fault) {
        (Some(experiment), Some(_)) => experiment.clone(),
        (None, Some(_)) => SHIPPED.into(),
        (None, None) => first.clone(),
        (Some(second), None) => {
            let (first, second) = (first.display(), second.display());
            let message = format!("'{first}' is not a mutant: expected OP.MUTANT before the experiment '{second}'");
            return Err(Error::Usage(message));
        }
    };
    run.start(Options {
        device: args.device,
        mutants: fault.is_none(),
        mutant: fault,
        ..Options::default()
    })
}

/// A word as the name of a fault; none if it names a file or a shipped experiment.
fn fault(word: &Path) -> Option<String> {
    let name = word.to_str()?;
    let is_file = name.contains('/') || name.ends_with(".toml") || word.is_file();
    (name.contains('.') && !is_file).then(|| name.into())
}
