//! `ulplab audit`: finds published bugs that tolerances let pass. Starts the Python package `zoo/`, which re-enacts the bugs.

use std::path::PathBuf;
use std::process::Command;

use crate::{itself, shipped};
use ulplab_core::error::{Error, Exit, Result};

/// Find the published bugs that the tolerances of a test suite let pass, and the right results that they reject.
///
/// A table is a TOML file with a `[[gate]]` for each tolerance: an operation, a type, rtol and atol or a metric
/// (docs/gates-of-others.md). Each gate checks the published bugs of its operation. The bugs are re-enacted on usual data, and on
/// data that expose them. Needs Python with the modules ulplab (python/build_wheel.sh) and ml_dtypes.
#[derive(Debug, clap::Args)]
pub struct AuditArgs {
    /// Tables, or names of shipped ones: fla, flashinfer, sglang, torchao, vllm [default: all of these]
    #[arg(value_name = "FILE")]
    pub tables: Vec<String>,
    /// Number of random samples of the data of each bug
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    pub seeds: u32,
    /// Write JSON
    #[arg(long)]
    pub json: bool,
    /// The Python that has the module ulplab [default: the one that runs this program, else python3]
    #[arg(long, value_name = "PROGRAM", env = "ULPLAB_PYTHON")]
    pub python: Option<PathBuf>,
}

pub fn run(args: &AuditArgs) -> Result<Exit> {
    const SCRIPT: &str = "zoo/audit.py";
    let script = shipped::find(SCRIPT).ok_or_else(|| {
        let places = shipped::places();
        let places: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
        Error::Setup(format!("{SCRIPT} not found in {}", places.join(", ")))
    })?;
    let own = itself::start().python.clone();
    let python = args.python.clone().or(own).unwrap_or_else(|| "python3".into());
    let mut command = Command::new(&python);
    command.arg(script).arg(format!("--seeds={}", args.seeds));
    command.args(args.json.then_some("--json")).arg("--").args(&args.tables);
    let python = python.display();
    let refused = |error| {
        Error::Setup(format!(
            "cannot start Python, {python}: {error}; name one with --python"
        ))
    };
    let code = command.status().map_err(refused)?.code();
    Ok(code.map_or(Exit::Interrupted, |code| Exit::from_code(code).unwrap_or(Exit::Bug)))
}
