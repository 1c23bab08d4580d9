//! `ulplab kernels`: all commands on GPU kernels, one file per subcommand.

mod attest;
pub mod bench;
mod check;
pub mod compare;
pub mod describe;
mod dump;
pub mod list;
mod mutants;
mod power;
pub mod probe;
mod time;
mod trace;

use std::path::PathBuf;

use crate::commands::sweep::{self, Question, SweepArgs};
use crate::dataset::Manifest as Datasets;
use crate::experiment::file::ExperimentFile;
use crate::ops;
use crate::studies::kernels::{Devices, KernelStudy, Options, SHIPPED, Workers};
use crate::studies::{self, ParsedExperiment};
use ulplab_core::error::{Error, Exit, Result};
use ulplab_operations::ops::{Case, Data, Inputs, Op, Problem};

/// Check, time, trace and describe GPU kernels, and attest that they were verified.
#[derive(Debug, clap::Args)]
pub struct KernelsArgs {
    #[command(subcommand)]
    command: KernelsCommand,
}

#[derive(Debug, clap::Subcommand)]
enum KernelsCommand {
    List(list::ListArgs),
    Check(check::CheckArgs),
    Time(time::TimeArgs),
    Trace(trace::TraceArgs),
    Describe(describe::DescribeArgs),
    Dump(dump::DumpArgs),
    Compare(compare::CompareArgs),
    Bench(bench::BenchArgs),
    Probe(probe::ProbeArgs),
    Mutants(mutants::MutantsArgs),
    Power(power::PowerArgs),
    Attest(attest::AttestArgs),
}

pub fn run(args: &KernelsArgs) -> Result<Exit> {
    match &args.command {
        KernelsCommand::List(args) => list::run(args),
        KernelsCommand::Check(args) => check::run(args),
        KernelsCommand::Time(args) => time::run(args),
        KernelsCommand::Trace(args) => trace::run(args),
        KernelsCommand::Describe(args) => describe::run(args),
        KernelsCommand::Dump(args) => dump::run(args),
        KernelsCommand::Compare(args) => compare::run(args),
        KernelsCommand::Bench(args) => bench::run(args),
        KernelsCommand::Probe(args) => probe::run(args),
        KernelsCommand::Mutants(args) => mutants::run(args),
        KernelsCommand::Power(args) => power::run(args),
        KernelsCommand::Attest(args) => attest::run(args),
    }
}

/// A case as a problem; the model is opened if its weights are needed.
fn problem(op: &dyn Op, case: &Case) -> Result<Problem> {
    if case.inputs != Inputs::Weights {
        return ops::problem(op, case).map_err(Error::Usage);
    }
    let folder = Datasets::open(None)?.checkpoint(dump::MODEL)?;
    let none = |pattern: &str| Err(format!("no model is read at {pattern}"));
    let data = Data::new(0, &none).with_checkpoint(Some(&folder));
    ops::problem_with(op, case, &data).map_err(Error::Usage)
}

/// Options of the subcommands that run an experiment of kernels.
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
    /// Processes that share the work on each GPU, operation by operation: most of the time goes into references on the CPU. Times are
    /// taken by one process at a time [default: half of the cores, at most 8; without a GPU 1].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    jobs: Option<u16>,
    /// The GPUs to use: all, or their numbers, such as 0,2 [default: the first].
    #[arg(long, value_name = "GPUS", default_value = "0", hide_default_value = true)]
    devices: Devices,
}

/// Makes the experiment optional in a command with the options of `ulplab sweep`.
fn experiment_or_shipped(experiment: clap::Arg) -> clap::Arg {
    experiment
        .required(false)
        .default_value(SHIPPED)
        .value_name("EXPERIMENT")
        .help("The experiment: a file, or the name of a shipped experiment")
}

impl RunArgs {
    /// Runs an experiment of kernels. Other experiments are an error.
    fn start(&self, options: Options) -> Result<Exit> {
        let args = &self.sweep;
        let file = ExperimentFile::read(&args.experiment, &args.overrides)?;
        let parsed = studies::parse(&file)?;
        let Some(study) = studies::read_as::<KernelStudy>(&parsed.experiment)? else {
            let path = args.experiment.display();
            let why = format!("this is not an experiment of kernels; `ulplab sweep {path}` runs it");
            return Err(Error::config(&file.path, why));
        };
        let study = KernelStudy {
            options: Options {
                keep_failed: self.keep_failed.clone(),
                peers: self.peers.clone(),
                workers: Some(Workers {
                    jobs: self.jobs.map(usize::from),
                    devices: self.devices.clone(),
                }),
                ..options
            },
            ..study
        };
        let parsed = ParsedExperiment {
            study: Box::new(study),
            ..parsed
        };
        sweep::answer(args, &Question::new(args, file, parsed)?)
    }
}
