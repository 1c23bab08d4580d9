//! `ulplab kernels check`, `time`, `mutants` and `attest`: the subcommands that run an experiment of kernels.

use std::path::{Path, PathBuf};

use clap::builder::PossibleValuesParser;

use crate::commands::sweep::{self, Question, SweepArgs};
use crate::experiment::file::ExperimentFile;
use crate::studies;
use crate::studies::kernels::{ARCHITECTURES, KernelStudy, OnDevice, Options, SHIPPED, Workers, attest};
use ulplab_core::error::{Error, Exit, Result};

/// Options of these subcommands.
#[derive(Clone, Debug, clap::Args)]
#[command(mut_arg("experiment", experiment_or_shipped))]
struct RunArgs {
    #[command(flatten)]
    sweep: SweepArgs,
    /// Keep the inputs, outputs, expected outputs and bounds of each cell that fails, as DIR/<recipe>.<case>.safetensors of
    /// at most 64 MiB.
    #[arg(long, value_name = "DIR")]
    keep_failed: Option<PathBuf>,
    /// Also show the times of peers (third-party implementations) on the same cases, from a file written by
    /// experiments/peers/kernels.py.
    #[arg(long, value_name = "FILE")]
    peers: Option<PathBuf>,
    #[command(flatten)]
    workers: Workers,
}

/// Makes the experiment argument of `ulplab sweep` optional in the commands of this file, with a shipped experiment as the
/// default.
fn experiment_or_shipped(experiment: clap::Arg) -> clap::Arg {
    experiment
        .required(false)
        .default_value(SHIPPED)
        .value_name("EXPERIMENT")
        .help("The experiment: a file, or the name of a shipped experiment")
}

impl RunArgs {
    /// Runs an experiment of kernels. Returns an error for other experiments.
    fn start(&self, options: Options) -> Result<Exit> {
        let args = &self.sweep;
        let file = ExperimentFile::read(&args.experiment, &args.overrides)?;
        let mut parsed = studies::parse(&file)?;
        let Some(mut study) = studies::read_as::<KernelStudy>(&parsed.experiment)? else {
            let path = args.experiment.display();
            let why = format!("this is not an experiment of kernels; `ulplab sweep {path}` runs it");
            return Err(Error::config(&file.path, why));
        };
        study.options = Options {
            keep_failed: self.keep_failed.clone(),
            peers: self.peers.clone(),
            workers: Some(self.workers.clone()),
            ..options
        };
        parsed.study = Box::new(study);
        sweep::answer(args, &Question::new(args, file, parsed)?)
    }
}

/// Check every variant on every case, and time the right ones on the timed cases.
///
/// Without a GPU, kernels are compiled, their headers are checked against the compiled code, and the exit code is 4. `--device
/// compile` requests only that; the exit code then tells if the kernels have changed since they were verified.
#[derive(Debug, clap::Args)]
pub struct CheckArgs {
    #[command(flatten)]
    run: RunArgs,
    /// Run kernels on a GPU, or only compile them and check them against their attestations.
    #[arg(long, value_enum, default_value = "cuda")]
    device: OnDevice,
    /// Architecture to compile for if no kernel is run; repeatable [default: all architectures].
    #[arg(long = "arch", value_name = "ARCH", value_parser = PossibleValuesParser::new(ARCHITECTURES))]
    architectures: Vec<String>,
}

pub(super) fn check(args: &CheckArgs) -> Result<Exit> {
    args.run.start(Options {
        device: args.device,
        architectures: args.architectures.clone(),
        ..Options::default()
    })
}

/// Time the kernels on this machine's GPU: µs, bytes, share of the copy bandwidth; --peers adds third-party times.
///
/// Each kernel is checked first and timed only if it is right. Only the timed cases are run, and the exit code is 0 unless a
/// kernel is wrong. Prints the time of each cell on standard error as soon as the cell ends. The records stay in the folder of
/// the run; --resume continues the run. `ulplab kernels bench` also times the peers.
#[derive(Debug, clap::Args)]
pub struct TimeArgs {
    #[command(flatten)]
    run: RunArgs,
    /// Leave the variant `simple` out of every case that another selected variant supports.
    #[arg(long)]
    fast_only: bool,
}

pub(super) fn time(args: &TimeArgs) -> Result<Exit> {
    let exit = args.run.start(Options {
        timed: true,
        fast_only: args.fast_only,
        ..Options::default()
    })?;
    if args.fast_only && args.run.sweep.dry_run {
        errln!("--fast-only: which variants take a case depends on the GPU, so those called `simple` are listed, too");
    }
    Ok(exit)
}

/// Check the kernels, then plant every fault in turn and report which check notices it; or check them with one fault planted.
///
/// The exit code is 100 if the checks miss a fault. If a fault is named, only this fault is planted, and the exit code is 100 if
/// the checks detect it. Without a GPU, the faults are only compiled.
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
        .index(1)
        .value_name("OP.MUTANT|EXPERIMENT")
        .help("The fault to plant, e.g. rope.cos_sin_swapped; or the experiment, to plant every fault of its kernels")
}

pub(super) fn mutants(args: &MutantsArgs) -> Result<Exit> {
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

/// Returns an argument as the name of a planted fault; `None` if it names a file or a shipped experiment.
fn fault(word: &Path) -> Option<String> {
    let name = word.to_str()?;
    let is_file = name.contains('/') || name.ends_with(".toml") || word.is_file();
    (name.contains('.') && !is_file).then(|| name.into())
}

/// Groups of options that apply only if the kernels are run: they exclude `--check` and `--digests`.
const RUN: [&str; 3] = ["SweepArgs", "RunArgs", "Workers"];

/// Check the kernels, plant every fault, and write attestations of the files whose kernels pass; or, with --check, list the
/// kernels that have changed since they were verified.
///
/// The attestations go to DIR/<device>/kernels.json. --check needs no GPU.
#[derive(Debug, clap::Args)]
pub struct AttestArgs {
    /// Folder of the attestations [default of --check and --digests: experiments/results].
    #[arg(value_name = "DIR", required_unless_present_any = ["check", "digests"])]
    folder: Option<PathBuf>,
    /// Check that every kernel, its flags and its bounds are unchanged since they were verified. If the sources of a judgement
    /// changed, it still counts as unchanged if its inputs, launches and verdicts are the same.
    #[arg(long, conflicts_with_all = RUN)]
    check: bool,
    /// Store digests of the inputs, launches and verdicts of all files that are unchanged since they were verified. With these
    /// digests, --check can compare a judgement whose sources changed. Takes minutes, and needs no GPU.
    #[arg(long, conflicts_with_all = RUN, conflicts_with = "check")]
    digests: bool,
    #[command(flatten)]
    run: RunArgs,
}

pub(super) fn attest(args: &AttestArgs) -> Result<Exit> {
    if args.check {
        return attest::gate(args.folder.as_deref());
    }
    if args.digests {
        return attest::store_digests(args.folder.as_deref());
    }
    args.run.start(Options {
        mutants: true,
        attest: args.folder.clone(),
        ..Options::default()
    })
}
