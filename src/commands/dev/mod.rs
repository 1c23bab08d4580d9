//! `ulplab dev`: commands around the program, its shell, editor and machine.

pub mod bench;
mod generate;

use std::path::PathBuf;
use std::time::Instant;

use clap_complete::Shell;

use crate::{json, studies};
use ulplab_core::atomic::write_atomic;
use ulplab_core::error::{Error, Exit, Result};
use ulplab_core::formats;

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
    Verify(VerifyArgs),
    Completions(CompletionsArgs),
    Man(ManArgs),
    Schema(SchemaArgs),
}

/// Runs a command; `program` is the whole command line.
pub fn run(args: &DevArgs, program: clap::Command) -> Result<Exit> {
    match &args.command {
        DevCommand::Generate(args) => generate::run(args),
        DevCommand::Bench(args) => bench::run(args),
        DevCommand::Verify(args) => verify(args),
        DevCommand::Completions(args) => completions(args, program),
        DevCommand::Man(args) => man(args, program),
        DevCommand::Schema(args) => schema(args),
    }
}

/// Check ulplab's own casts against their definitions, number by number.
#[derive(Debug, clap::Args)]
struct VerifyArgs {
    /// Check all 2^32 f32 values, not only the bf16 and f16 values and the values near a threshold. Takes minutes on two
    /// cores.
    #[arg(long)]
    exhaustive: bool,
}

fn verify(args: &VerifyArgs) -> Result<Exit> {
    let started = Instant::now();
    let verified = formats::verify(args.exhaustive);
    let mut wrong = 0;
    outln!("{:22} {:>11} {:>7}", "cast", "numbers", "wrong");
    for cast in &verified {
        wrong += usize::from(cast.wrong + cast.wrong_values > 0);
        outln!("{:22} {:>11} {:>7}", cast.cast, cast.numbers, cast.wrong);
        if let Some((bits, found, expected)) = cast.first {
            let x = f32::from_bits(bits);
            outln!("  the first: {x:e} ({bits:#010x}) became {found:#x}, not {expected:#x}");
        }
        if cast.wrong_values > 0 {
            outln!("  {} codes have a wrong value", cast.wrong_values);
        }
    }
    let verdict = if wrong == 0 { "PASS" } else { "FAIL" };
    let (casts, seconds) = (verified.len(), started.elapsed().as_secs_f64());
    outln!("{verdict}: {casts} casts, {wrong} wrong; {seconds:.1} s");
    Ok(Exit::judged(wrong == 0))
}

/// Print completions for a shell.
#[derive(Debug, clap::Args)]
struct CompletionsArgs {
    shell: Shell,
}

/// Completions of `command`.
fn completions(args: &CompletionsArgs, mut command: clap::Command) -> Result<Exit> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut command, "ulplab", &mut text);
    out!("{}", String::from_utf8_lossy(&text));
    Ok(Exit::Pass)
}

/// Write a man page for each command: ulplab.1, ulplab-sweep.1 and so on.
#[derive(Debug, clap::Args)]
struct ManArgs {
    /// Folder for the pages; created if missing.
    folder: PathBuf,
}

/// Pages of `command` and the commands in it.
fn man(args: &ManArgs, command: clap::Command) -> Result<Exit> {
    std::fs::create_dir_all(&args.folder).map_err(Error::io(&args.folder, "create"))?;
    let mut pages = vec![command.disable_help_subcommand(true).flatten_help(false)];
    while let Some(mut command) = pages.pop() {
        command.build();
        let name = command.get_display_name().unwrap_or(command.get_name()).to_string();
        let inner = command.get_subcommands().filter(|inner| inner.get_name() != "help");
        pages.extend(inner.map(|inner| {
            let name = format!("{name}-{}", inner.get_name());
            inner.clone().display_name(name)
        }));
        let page = args.folder.join(format!("{name}.1"));
        write_atomic(&page, |out| clap_mangen::Man::new(command.clone()).render(out))?;
        outln!("{}", page.display());
    }
    Ok(Exit::Pass)
}

/// Print the JSON Schema of experiment files; editors use it to complete and check them.
#[derive(Debug, clap::Args)]
struct SchemaArgs {}

fn schema(_: &SchemaArgs) -> Result<Exit> {
    json::print(&studies::schema())?;
    Ok(Exit::Pass)
}
