//! `ulplab dev`: commands around the program, its shell, editor and machine.

pub mod bench;
mod generate;
mod integrate;
mod verify;

use ulplab_core::error::{Exit, Result};

/// Generate text, time and verify this program, and connect it with shells and editors.
#[derive(Debug, clap::Args)]
pub struct DevArgs {
    #[command(subcommand)]
    command: DevCommand,
}

#[derive(Debug, clap::Subcommand)]
enum DevCommand {
    Generate(generate::GenerateArgs),
    Bench(bench::BenchArgs),
    Verify(verify::VerifyArgs),
    Completions(integrate::CompletionsArgs),
    Man(integrate::ManArgs),
    Schema(integrate::SchemaArgs),
}

/// Runs a command; `program` is the whole command line.
pub fn run(args: &DevArgs, program: clap::Command) -> Result<Exit> {
    match &args.command {
        DevCommand::Generate(args) => generate::run(args),
        DevCommand::Bench(args) => bench::run(args),
        DevCommand::Verify(args) => verify::run(args),
        DevCommand::Completions(args) => integrate::completions(args, program),
        DevCommand::Man(args) => integrate::man(args, program),
        DevCommand::Schema(args) => integrate::schema(args),
    }
}
