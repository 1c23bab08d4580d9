//! The command line.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::error::{Exit, Result};
use crate::sweep::{command as sweep, judge};
use crate::{bench, compare, generate, inspect, inventory, quantize, trace, verify};

/// Is this kernel, or this cheaper number format, still right? ulplab measures it against an FP32 reference and answers
/// with numbers, a report and an exit code.
#[derive(Parser)]
#[command(name = "ulplab", version, after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Worker threads [default: one per core]. Results do not depend on it.
    #[arg(long, global = true, value_name = "N", env = "ULPLAB_THREADS")]
    threads: Option<usize>,
}

const EXIT_CODES: &str = "\
Exit codes: 0 all gates pass | 100 a gate failed | 103 run incomplete | 4 nothing selected | 2 usage or bad input |
96 set-up | 101 the reference failed | 130 interrupted | 1 a bug";

#[derive(Subcommand)]
enum Command {
    Sweep(sweep::SweepArgs),
    Gate(judge::GateArgs),
    Report(judge::ReportArgs),
    Compare(compare::CompareArgs),
    Quantize(quantize::QuantizeArgs),
    Dequantize(quantize::DequantizeArgs),
    Inspect(inspect::InspectArgs),
    Generate(generate::GenerateArgs),
    Bench(bench::BenchArgs),
    Trace(trace::TraceArgs),
    Verify(verify::VerifyArgs),
    List(inventory::ListArgs),
    Doctor(inventory::DoctorArgs),
}

/// Runs the program and tells its exit code.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let exit = run(cli).unwrap_or_else(|error| {
        eprintln!("error: {error}");
        error.exit()
    });
    ExitCode::from(exit as u8)
}

fn run(cli: Cli) -> Result<Exit> {
    if let Some(threads) = cli.threads {
        rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .build_global()
            .map_err(|error| crate::Error::Setup(format!("cannot start {threads} threads: {error}")))?;
    }
    match cli.command {
        Command::Sweep(args) => sweep::run(&args),
        Command::Gate(args) => judge::gate(&args),
        Command::Report(args) => judge::report(&args),
        Command::Compare(args) => compare::run(&args),
        Command::Quantize(args) => quantize::quantize(&args),
        Command::Dequantize(args) => quantize::dequantize(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Generate(args) => generate::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Trace(args) => trace::run(&args),
        Command::Verify(args) => verify::run(&args),
        Command::List(args) => inventory::list(&args),
        Command::Doctor(args) => inventory::doctor(&args),
    }
}
