//! `ulplab bench kernels`: how long the kernels take on the GPU that is here.

use std::path::PathBuf;

use crate::error::{Error, Exit, Result};
use crate::shipped;
use crate::sweep::command::{self, SweepArgs};

/// Time the kernels on the GPU that is here: µs, bytes, shares of a copy, beside peers.
///
/// Each is timed once it has been found right. The same as `ulplab sweep experiments/kernels.toml --timed`, the records of
/// which are kept in runs/; but a bench judges no whole, so that the exit code is 0 unless a kernel is wrong.
#[derive(Debug, clap::Args)]
pub struct KernelsArgs {
    /// Only cells whose id (op.variant/local/case) matches, e.g. 'rope.*/**'.
    #[arg(long, value_name = "GLOB")]
    only: Vec<String>,
    /// No cells whose id matches.
    #[arg(long, value_name = "GLOB")]
    skip: Vec<String>,
    /// Set times of other people's code beside, as experiments/peers/kernels.py writes them.
    #[arg(long, value_name = "FILE")]
    peers: Option<PathBuf>,
    /// Folder of the run [default: runs/kernels/<time>].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print the cells that would be timed, and time none.
    #[arg(long)]
    dry_run: bool,
}

pub(super) fn run(args: &KernelsArgs) -> Result<Exit> {
    const EXPERIMENT: &str = "experiments/kernels.toml";
    let missing = || Error::Setup(format!("no {EXPERIMENT} is found"));
    command::run(&SweepArgs {
        experiment: shipped::find(EXPERIMENT).ok_or_else(missing)?,
        timed: true,
        bench: true,
        only: args.only.clone(),
        skip: args.skip.clone(),
        peers: args.peers.clone(),
        out: args.out.clone(),
        dry_run: args.dry_run,
        ..SweepArgs::default()
    })
}
