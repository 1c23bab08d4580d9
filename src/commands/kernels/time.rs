//! `ulplab kernels time`: how long the kernels take on the GPU that is here.

use super::RunArgs;
use crate::studies::kernels::Options;
use ulplab_core::error::{Exit, Result};

/// Time the kernels on this machine's GPU: µs, bytes, share of the copy bandwidth; --peers adds third-party times.
///
/// Each kernel is checked first and timed only if it is right. Only the timed cases are run, and the exit code is 0 unless a
/// kernel is wrong. A line on standard error says what a cell took as soon as it ends. The records stay in the folder of the run, which
/// --resume goes on with. `ulplab kernels bench` times the peers, too.
#[derive(Debug, clap::Args)]
pub struct TimeArgs {
    #[command(flatten)]
    run: RunArgs,
    /// Leave the variant `simple` out of every case that another selected variant takes.
    #[arg(long)]
    fast_only: bool,
}

pub(super) fn run(args: &TimeArgs) -> Result<Exit> {
    let kernels = Options {
        timed: true,
        fast_only: args.fast_only,
        ..Options::default()
    };
    let exit = args.run.start(kernels)?;
    if args.fast_only && args.run.sweep.dry_run {
        errln!("--fast-only: which variants take a case depends on the GPU, so those called `simple` are listed, too");
    }
    Ok(exit)
}
