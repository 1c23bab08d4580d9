//! `ulplab kernels power`: measures the smallest faults that the checks of outputs detect.

use std::path::PathBuf;

use crate::json;
use crate::ops::{self, OPS, Op};
use crate::progress::Progress;
use crate::report::columns::{fitted, wrapped};
use crate::studies::kernels::power::{self, Power};
use ulplab_core::atomic::write_text;
use ulplab_core::error::{Error, Exit, Result};

/// Measure the sensitivity of the checks: the smallest gain, bias, lost bits and missing term that are detected in the outputs of
/// a right kernel.
///
/// The outputs of a right kernel are the expected values, rounded to their type. A fault is planted in them, and halved until the
/// checks miss it. Prints the smallest detected size in the most sensitive case, and the median over all cases that are small and
/// need no model. Needs neither a GPU nor a kernel. `ulplab kernels list` shows the last stored results.
#[derive(Debug, clap::Args)]
pub struct PowerArgs {
    /// Only these operations.
    #[arg(value_name = "OP")]
    ops: Vec<String>,
    /// Write the results, of all operations, to this file.
    #[arg(long, value_name = "FILE", conflicts_with = "ops", value_parser = crate::output::file_name())]
    write: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Maximum characters per line.
const WIDTH: usize = 130;

pub fn run(args: &PowerArgs) -> Result<Exit> {
    let named = args.ops.iter().map(|name| ops::find(name).map_err(Error::Usage));
    let ops: Vec<&dyn Op> = match args.ops.is_empty() {
        true => OPS.to_vec(),
        false => named.collect::<Result<_>>()?,
    };
    let mut progress = Progress::new(ops.len(), args.json);
    let mut all = Vec::new();
    for op in ops {
        all.extend(power::of(op, &power::cases(op)).map_err(Error::Usage)?);
        progress.advance(1, op.name());
    }
    drop(progress);
    if let Some(file) = &args.write {
        let text = serde_json::to_string_pretty(&all).map_err(|error| Error::Usage(error.to_string()))?;
        write_text(file, &(text + "\n"))?;
    }
    json::print_or(args.json, &all, || text(&all) + "\n")?;
    Ok(Exit::Pass)
}

/// Formats a line for each output, and below them the outputs whose checks detect too little, the worst first.
fn text(all: &[Power]) -> String {
    let row = |power: &Power| vec![power.name(), power.rule.clone(), power.cases.to_string(), power.text()];
    let mut lines = fitted(
        &["", "judged by", "cases", "notices"],
        &all.iter().map(row).collect::<Vec<_>>(),
        &[],
        WIDTH,
    );
    for (heading, blind) in power::blind(all) {
        lines.push(String::new());
        lines.extend(wrapped(&format!("{heading}: {}", blind.join("; ")), WIDTH, 0));
    }
    lines.join("\n")
}
