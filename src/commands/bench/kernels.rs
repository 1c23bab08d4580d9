//! `ulplab bench kernels`: how long the kernels take on the GPU that is here.

use std::path::PathBuf;

use crate::commands::sweep;
use crate::commands::sweep::SweepArgs;
use crate::shipped;
use ulplab_core::error::{Error, Exit, Result};

/// Time the kernels on the GPU that is here: µs, bytes, shares of a copy, beside peers.
///
/// Each kernel is checked first and timed only if it is right. This does what `ulplab sweep experiments/kernels.toml --timed`
/// does, and keeps the records in runs/ as well, but it exits with 0 unless a kernel is wrong.
#[derive(Debug, clap::Args)]
pub struct KernelsArgs {
    /// Time only cells whose id (op.variant/local/case) matches, e.g. 'rope.*/**'.
    #[arg(long, value_name = "GLOB")]
    only: Vec<String>,
    /// Leave out cells whose id matches.
    #[arg(long, value_name = "GLOB")]
    skip: Vec<String>,
    /// Show times of other libraries too, from a file of experiments/peers/kernels.py.
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
    sweep::run(&SweepArgs {
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
