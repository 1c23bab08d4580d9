//! `ulplab kernels check`: every variant on every case, judged; timed cases are also timed.

use clap::builder::PossibleValuesParser;

use super::RunArgs;
use crate::studies::kernels::{ARCHITECTURES, OnDevice, Options};
use ulplab_core::error::{Exit, Result};

/// Check every variant on every case, and time the right ones on the timed cases.
///
/// Without a GPU, kernels are compiled, their headers are checked against the compiled code, and the exit code is 4.
/// `--device compile` requests only that; the exit code is then the one of the attestations.
#[derive(Debug, clap::Args)]
pub struct CheckArgs {
    #[command(flatten)]
    run: RunArgs,
    /// Run kernels on a GPU, or only compile them and check them against their attestations.
    #[arg(long, value_enum, default_value = "cuda")]
    device: OnDevice,
    /// Architectures to compile for where no kernel is run, all of them if absent; may be repeated.
    #[arg(long = "arch", value_name = "ARCH", value_parser = PossibleValuesParser::new(ARCHITECTURES))]
    architectures: Vec<String>,
}

pub(super) fn run(args: &CheckArgs) -> Result<Exit> {
    let kernels = Options {
        device: args.device,
        architectures: args.architectures.clone(),
        ..Options::default()
    };
    args.run.start(kernels)
}
