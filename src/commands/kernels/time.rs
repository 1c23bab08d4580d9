//! `ulplab kernels time`: how long the kernels take on the GPU that is here.

use super::{Besides, experiment_or_shipped};
use crate::commands::sweep::SweepArgs;
use crate::studies::kernels::Options;
use ulplab_core::error::{Exit, Result};

/// Time the kernels on the GPU that is here: µs, bytes, shares of a copy, beside peers.
///
/// Each kernel is checked first and timed only if it is right. Only the cases that are timed are run, and the exit code is 0
/// unless a kernel is wrong. The records stay in the folder of the run.
#[derive(Debug, clap::Args)]
#[command(mut_arg("experiment", experiment_or_shipped))]
pub struct TimeArgs {
    #[command(flatten)]
    sweep: SweepArgs,
    #[command(flatten)]
    besides: Besides,
}

pub(super) fn run(args: &TimeArgs) -> Result<Exit> {
    let kernels = Options {
        timed: true,
        ..Options::default()
    };
    args.besides.sweep(&args.sweep, kernels)
}
