//! `ulplab dev`: commands that generate text, time and verify this program, and write its man pages, shell completions and JSON
//! Schema.

pub mod bench;
mod generate;

use std::path::{Path, PathBuf};
use std::time::Instant;

use clap_complete::Shell;

use crate::{json, studies};
use ulplab_core::atomic::write_atomic;
use ulplab_core::error::{Error, Exit, Result};
use ulplab_core::formats;

/// Generate text, time and verify this program, and connect it with shells and editors.
#[derive(Debug, clap::Subcommand)]
pub enum DevCommand {
    Generate(generate::GenerateArgs),
    Bench(bench::BenchArgs),
    /// Check ulplab's own casts against their definitions, number by number.
    Verify {
        /// Check all 2^32 f32 values, not only the bf16 and f16 values and the values near a threshold. Takes minutes on two
        /// cores.
        #[arg(long)]
        exhaustive: bool,
    },
    /// Print completions for a shell.
    Completions {
        shell: Shell,
    },
    /// Write a man page for each command: ulplab.1, ulplab-sweep.1 and so on.
    Man {
        /// Folder for the pages; created if missing.
        folder: PathBuf,
    },
    /// Print the JSON Schema of experiment files; editors use it to complete and check them.
    Schema,
}

/// Runs a command of `ulplab dev`. `program` is the definition of the whole command line.
pub fn run(command: &DevCommand, program: clap::Command) -> Result<Exit> {
    match command {
        DevCommand::Generate(args) => generate::run(args),
        DevCommand::Bench(args) => bench::run(args),
        DevCommand::Verify { exhaustive } => Ok(verify(*exhaustive)),
        DevCommand::Completions { shell } => Ok(completions(*shell, program)),
        DevCommand::Man { folder } => man(folder, program),
        DevCommand::Schema => json::print(&studies::schema()).map(|()| Exit::Pass),
    }
}

/// Runs `ulplab dev verify`: compares this program's casts with their definitions.
fn verify(exhaustive: bool) -> Exit {
    let started = Instant::now();
    let verified = formats::verify(exhaustive);
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
    Exit::judged(wrong == 0)
}

/// Prints shell completions for `command`.
fn completions(shell: Shell, mut command: clap::Command) -> Exit {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut command, "ulplab", &mut text);
    out!("{}", String::from_utf8_lossy(&text));
    Exit::Pass
}

/// Writes a man page for `command` and for each of its subcommands.
fn man(folder: &Path, command: clap::Command) -> Result<Exit> {
    std::fs::create_dir_all(folder).map_err(Error::io(folder, "create"))?;
    let mut pages = vec![command.disable_help_subcommand(true).flatten_help(false)];
    while let Some(mut command) = pages.pop() {
        command.build();
        let name = command.get_display_name().unwrap_or(command.get_name()).to_string();
        let inner = command.get_subcommands().filter(|inner| inner.get_name() != "help");
        pages.extend(inner.map(|inner| {
            let name = format!("{name}-{}", inner.get_name());
            inner.clone().display_name(name)
        }));
        let page = folder.join(format!("{name}.1"));
        write_atomic(&page, |out| clap_mangen::Man::new(command.clone()).render(out))?;
        outln!("{}", page.display());
    }
    Ok(Exit::Pass)
}
