//! `ulplab kernels attest`: attestations of kernels that were verified on a GPU, written or compared with the kernels in the
//! tree.

use std::path::PathBuf;

use super::RunArgs;
use crate::studies::kernels::Options;
use crate::studies::kernels::attest;
use ulplab_core::error::{Exit, Result};

/// The groups of options that only a run takes.
const RUN: [&str; 2] = ["SweepArgs", "RunArgs"];

/// Check the kernels, plant every fault, and write attestations of the files whose kernels pass; or, with --check, list the
/// kernels that have changed since they were verified.
///
/// The attestations go to DIR/<device>/kernels.json. --check needs no GPU.
#[derive(Debug, clap::Args)]
pub struct AttestArgs {
    /// Folder of the attestations [default of --check and --digests: experiments/results].
    #[arg(value_name = "DIR", required_unless_present_any = ["check", "digests"])]
    folder: Option<PathBuf>,
    /// Check that every kernel, its flags and its bounds are unchanged since they were verified. A judgement that was written in
    /// another way is unchanged if its inputs, launches and answers are.
    #[arg(long, conflicts_with_all = RUN)]
    check: bool,
    /// Store digests of the inputs, launches and answers of all files that are as they were verified, so that --check can hold a
    /// judgement that is written in another way against them. Takes minutes, and no GPU.
    #[arg(long, conflicts_with_all = RUN, conflicts_with = "check")]
    digests: bool,
    #[command(flatten)]
    run: RunArgs,
}

pub(super) fn run(args: &AttestArgs) -> Result<Exit> {
    if args.check {
        return attest::gate(args.folder.as_deref());
    }
    if args.digests {
        return attest::store_digests(args.folder.as_deref());
    }
    let kernels = Options {
        mutants: true,
        attest: args.folder.clone(),
        ..Options::default()
    };
    args.run.start(kernels)
}
