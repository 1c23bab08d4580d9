//! `ulplab kernels check`: every variant on every case, judged, and timed where that says something.

use super::{Besides, experiment_or_shipped};
use crate::commands::sweep::SweepArgs;
use crate::studies::kernels::{OnDevice, Options};
use ulplab_core::error::{Exit, Result};

/// Check every variant on every case, and time those that are right on the cases that are timed.
///
/// Without a GPU, kernels are compiled, what their headers say is held against what was compiled, and the exit code is 4.
/// `--device compile` asks for just that, and the exit code is that of their attestations.
#[derive(Debug, clap::Args)]
#[command(mut_arg("experiment", experiment_or_shipped))]
pub struct CheckArgs {
    #[command(flatten)]
    sweep: SweepArgs,
    #[command(flatten)]
    besides: Besides,
    /// Run kernels on a GPU, or only compile them and check them against their attestations.
    #[arg(long, value_enum, default_value = "cuda")]
    device: OnDevice,
}

pub(super) fn run(args: &CheckArgs) -> Result<Exit> {
    let kernels = Options {
        device: args.device,
        ..Options::default()
    };
    args.besides.sweep(&args.sweep, kernels)
}
