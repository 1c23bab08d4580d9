//! `ulplab query`: SQL over the numbers of stored runs. `ulplab` starts this program.

mod answer;
mod runs;

use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use polars::prelude::{LazyFrame, PlRefPath, PolarsResult, ScanArgsParquet, UnionArgs, concat, lit};
use polars::sql::SQLContext;
use ulplab_core::atomic::write_atomic;
use ulplab_core::error::{Error, Exit, Result};
use ulplab_core::text::shown;
use ulplab_run::{errln, output};

use answer::Format;
use runs::Tables;

/// Answer a question about stored runs in SQL, as polars reads it.
///
/// The tables are `records`, a number of one window a row, and `summaries`, a number over all windows a row. docs/records.md has
/// their columns; `run` (the folder) and `study` come first. A run that is not finished has the rows of its finished cells.
#[derive(Parser)]
#[command(name = "ulplab-query", bin_name = "ulplab query", version, after_help = EXAMPLES)]
struct Args {
    /// Folders of runs. Each row says in `run` which one it is from.
    #[arg(required = true, value_name = "RUN")]
    runs: Vec<PathBuf>,
    /// The statement.
    #[arg(required = true)]
    sql: String,
    /// Write the result to a file instead of stdout.
    #[arg(short, long, value_name = "FILE", value_parser = output::file_name())]
    output: Option<PathBuf>,
    /// The format of the result [default: that of FILE's extension, or table]
    #[arg(long, value_enum)]
    format: Option<Format>,
}

const EXAMPLES: &str = "\
Examples:
  ulplab query runs/kv_cache/2026-01-31T120000Z \"SELECT recipe, max(value) AS worst FROM records WHERE metric = 'kl' GROUP BY recipe ORDER BY worst\"
  ulplab query runs/main runs/mine \"SELECT run, recipe, mean FROM summaries WHERE site = 'logits'\" -o means.csv";

fn main() -> ExitCode {
    let args = Args::parse();
    let ended = std::panic::catch_unwind(AssertUnwindSafe(|| answer(&args)));
    let exit = match ended.map(|ended| ended.and_then(|()| output::finish())) {
        Ok(Ok(())) => Exit::Pass,
        Ok(Err(error)) => {
            output::error(&error.to_string());
            error.exit()
        }
        Err(_) => Exit::Bug,
    };
    ExitCode::from(exit as u8)
}

/// Asks the query of all runs, and prints or writes the result.
fn answer(args: &Args) -> Result<()> {
    let format = match (args.format, &args.output) {
        (Some(format), _) => format,
        (None, Some(file)) => Format::from_extension(file)?,
        (None, None) => Format::Table,
    };
    if format == Format::Parquet && args.output.is_none() {
        return Err(Error::Usage(
            "--format parquet: a terminal cannot show it; expected -o FILE".into(),
        ));
    }
    let runs: Vec<Tables> = args.runs.iter().map(|run| Tables::read(run)).collect::<Result<_>>()?;
    for run in &runs {
        if let Some(missing) = &run.missing {
            errln!("{}: the run is incomplete: {missing}", shown(&run.run));
        }
    }
    let records = joined(&runs, |run| &run.records)?;
    let summaries = joined(&runs, |run| &run.summaries)?;
    let mut tables = SQLContext::new();
    tables.register("records", records.clone());
    tables.register("summaries", summaries.clone());
    let result = tables.execute(&args.sql).and_then(LazyFrame::collect);
    let result = result.map_err(|error| {
        // What follows the first line is the plan of the query.
        let error = error.to_string().lines().next().unwrap_or_default().to_string();
        let columns = [("records", records), ("summaries", summaries)].map(|(name, table)| columns(name, table));
        Error::Usage(format!("{}: {error}\n{}", args.sql, columns.join("\n")))
    })?;
    match &args.output {
        Some(file) => write_atomic(file, |out| format.write(result, out)),
        None => format
            .write(result, output::stdout())
            .map_err(Error::io("stdout", "write")),
    }
}

/// One table of the files of all runs.
fn joined(runs: &[Tables], file: impl Fn(&Tables) -> &PathBuf) -> Result<LazyFrame> {
    let scans = runs.iter().map(|run| {
        let path = file(run);
        scan(path, run).map_err(|error| Error::data(path, error.to_string()))
    });
    let scans: Vec<LazyFrame> = scans.collect::<Result<_>>()?;
    concat(scans, UnionArgs::default())
        .map_err(|error| Error::Usage(format!("these runs have not the same columns: {error}")))
}

/// A table of a run, with the columns that tell it from other runs.
fn scan(file: &Path, run: &Tables) -> PolarsResult<LazyFrame> {
    let whole = ScanArgsParquet {
        glob: false,
        ..Default::default()
    };
    let mut table = LazyFrame::scan_parquet(PlRefPath::try_from_path(file)?, whole)?;
    // A file that is none fails here, with its name, and not as a part of the query.
    table.collect_schema()?;
    let added = [lit(run.run.clone()).alias("run"), lit(run.study.clone()).alias("study")];
    Ok(table.select([&added[..], &[polars::prelude::col("*")]].concat()))
}

/// The line of an error that lists the columns of a table.
fn columns(name: &str, mut table: LazyFrame) -> String {
    let columns = table
        .collect_schema()
        .map(|schema| schema.iter_names().map(ToString::to_string).collect::<Vec<_>>());
    format!("columns of {name}: {}", columns.unwrap_or_default().join(", "))
}
