//! `ulplab kernels`: all commands on GPU kernels, most with a file of their own.

pub mod bench;
pub mod compare;
pub mod describe;
mod dump;
pub mod list;
mod power;
pub mod probe;
mod runs;
mod trace;

use crate::dataset::Manifest as Datasets;
use crate::ops;
use ulplab_core::error::{Error, Exit, Result};
use ulplab_operations::ops::{Case, Data, Inputs, Op, Problem};

/// Check, time, trace and describe GPU kernels, and attest that they were verified.
#[derive(Debug, clap::Subcommand)]
pub enum KernelsCommand {
    List(list::ListArgs),
    Check(runs::CheckArgs),
    Time(runs::TimeArgs),
    Trace(trace::TraceArgs),
    Describe(describe::DescribeArgs),
    Dump(dump::DumpArgs),
    Compare(compare::CompareArgs),
    Bench(bench::BenchArgs),
    Probe(probe::ProbeArgs),
    Mutants(runs::MutantsArgs),
    Power(power::PowerArgs),
    Attest(runs::AttestArgs),
}

pub fn run(command: &KernelsCommand) -> Result<Exit> {
    match command {
        KernelsCommand::List(args) => list::run(args),
        KernelsCommand::Check(args) => runs::check(args),
        KernelsCommand::Time(args) => runs::time(args),
        KernelsCommand::Trace(args) => trace::run(args),
        KernelsCommand::Describe(args) => describe::run(args),
        KernelsCommand::Dump(args) => dump::run(args),
        KernelsCommand::Compare(args) => compare::run(args),
        KernelsCommand::Bench(args) => bench::run(args),
        KernelsCommand::Probe(args) => probe::run(args),
        KernelsCommand::Mutants(args) => runs::mutants(args),
        KernelsCommand::Power(args) => power::run(args),
        KernelsCommand::Attest(args) => runs::attest(args),
    }
}

/// Returns the problem (inputs and judges) of a case. Opens the model if the case needs its weights.
fn problem(op: &dyn Op, case: &Case) -> Result<Problem> {
    if case.inputs != Inputs::Weights {
        return ops::problem(op, case).map_err(Error::Usage);
    }
    let folder = Datasets::open(None)?.checkpoint(dump::MODEL)?;
    let none = |pattern: &str| Err(format!("no model is read at {pattern}"));
    let data = Data::new(0, &none).with_checkpoint(Some(&folder));
    ops::problem_with(op, case, &data).map_err(Error::Usage)
}
