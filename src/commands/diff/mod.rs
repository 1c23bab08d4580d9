//! `ulplab diff BASE NEW`: finds what became worse from one run to another, e.g. from a main branch to a pull request.
//!
//! Prints the differences in the experiment, then the changed verdicts, then the changed numbers. Gates of this command bound a
//! change. Two more gates always apply: passing verdicts must still pass, and no gate of the experiment may be weaker.

mod gates;
mod numbers;
mod output;
mod question;
mod verdicts;

use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::json;
use crate::output::{colour, width};
use crate::run::verdict::{Outcome, Status};
use crate::run::{Manifest, Run};
use gates::Gate;
use numbers::{Change, Numbers};
pub use numbers::{Pair, Pairs, timed};
use question::Difference;
pub use question::differences;
use ulplab_core::atomic::write_text;
use ulplab_core::error::{Exit, Result};
use verdicts::{ChangedVerdict, LoosenedGate};
pub use verdicts::{alike, text};

/// Compare two runs: what became worse from BASE to NEW.
///
/// Prints how the runs differ in experiment, data, program and device; gates that were removed or relaxed come first. Then prints
/// the verdicts that changed and, for every recipe, phase, site and metric, the record that worsens most. Two gates always apply:
/// a check that passes in BASE must pass in NEW, and no gate of BASE may be removed or relaxed. The gates judge only the change;
/// to judge NEW itself, use `ulplab gate NEW`.
///
/// Exit code: 0 all gates hold; 100 one fails; 4 nothing was judged, or NEW lacks records to which a gate applies; 103 a run is
/// incomplete; 2 a run is damaged, or the input is bad.
#[derive(Debug, clap::Args)]
pub struct DiffArgs {
    /// Folder of the run to compare with.
    pub base: PathBuf,
    /// Folder of the run to judge.
    pub new: PathBuf,
    #[command(flatten)]
    how: DiffOptions,
}

/// Gates on the change between two runs, and output options.
#[derive(Debug, clap::Args)]
pub struct DiffOptions {
    /// Limit how much a metric may worsen, e.g. 'layers.*.output:relative_l2<=5%', 'us_cold<=3%' or 'kl<=1e-4';
    /// repeatable.
    ///
    /// The limit holds for every record: each recipe, phase, window and layer. Whether lower or higher is worse depends on
    /// the metric (`ulplab list metrics`). With % the change is relative to the value in BASE; if the value in BASE is 0,
    /// any worsening fails. A pattern before the colon selects sites: `*` matches any characters but a dot, `**` any
    /// characters. A number that becomes NaN fails every gate. A gate that matches nothing is an error.
    #[arg(long = "worsening", value_name = "[PATTERN:]METRIC<=CHANGE")]
    pub gates: Vec<String>,
    /// Read more gates from a TOML file of `[[change]]` tables with the keys metric, worsening ("5%" or "1e-4") and why; the keys
    /// at, phase and recipes restrict a gate.
    #[arg(long, value_name = "FILE")]
    pub rules: Option<PathBuf>,
    /// Require every record to be bit-equal, except times and numbers computed from times.
    #[arg(long)]
    pub identical: bool,
    /// Show at most N rows of each table of numbers.
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub top: usize,
    /// Print one JSON object instead of the text. NaN is null, infinities are strings.
    #[arg(long)]
    pub json: bool,
    /// Also write the comparison to this file as Markdown, e.g. for a step summary of GitHub Actions.
    #[arg(long, value_name = "FILE", value_parser = crate::output::file_name())]
    pub markdown: Option<PathBuf>,
}

pub fn run(args: &DiffArgs) -> Result<Exit> {
    between(&args.base, &args.new, &args.how)
}

/// Compares two stored runs, prints the result, and returns the exit code of the gates.
pub fn between(base: &Path, new: &Path, how: &DiffOptions) -> Result<Exit> {
    let mut gates = how.gates.iter().map(|gate| gate.parse()).collect::<Result<Vec<_>>>()?;
    if let Some(file) = &how.rules {
        gates.extend(gates::read(file)?);
    }
    let paths = [base, new];
    let (base, new) = (Run::read(base)?, Run::read(new)?);
    super::check_two(["BASE", "NEW"], paths)?;
    let diff = Diff::new(paths, &base, &new, &gates, how)?;
    if let Some(file) = &how.markdown {
        write_text(file, &output::markdown(&diff))?;
    }
    json::print_or(how.json, &diff, || output::terminal(&diff, width(), colour()))?;
    Ok(diff.outcome.exit())
}

/// The result of comparing two runs.
#[derive(Debug, Serialize)]
pub struct Diff {
    base: Side,
    new: Side,
    /// Gates of BASE that NEW does not have, or has with a weaker bound.
    loosened: Vec<LoosenedGate>,
    question: Vec<Difference>,
    /// Verdicts whose status changed.
    verdicts: Vec<ChangedVerdict>,
    /// Number of verdicts with the same status in both runs.
    same_verdicts: usize,
    numbers: Numbers,
    /// Times, and metrics that are computed from times.
    times: Numbers,
    checks: Vec<Check>,
    #[serde(serialize_with = "name_of")]
    outcome: Outcome,
}

/// One of the two runs.
#[derive(Debug, Serialize)]
struct Side {
    path: PathBuf,
    experiment: String,
    started_at: String,
    fingerprint: String,
}

/// The result of a gate that bounds the change from BASE to NEW.
#[derive(Debug, Serialize)]
pub struct Check {
    gate: String,
    why: String,
    status: Status,
    /// A sentence: number of passing records, the worst record, and missing records.
    message: String,
    /// The record with the largest worsening.
    worst: Option<Change>,
}

impl Diff {
    fn new(paths: [&Path; 2], base: &Run, new: &Run, gates: &[Gate], how: &DiffOptions) -> Result<Self> {
        let pairs = Pairs::new(&base.records, &new.records);
        let counterparts = verdicts::counterparts(base, new);
        let (verdicts, same_verdicts) = verdicts::moved(&counterparts, base, new);
        let mut checks = verdicts::checks(&counterparts);
        for gate in gates {
            checks.push(gate.judge(&pairs)?);
        }
        if how.identical {
            checks.push(gates::identical(&pairs));
        }
        let side = |path: &Path, manifest: &Manifest| Side {
            path: path.to_path_buf(),
            experiment: manifest.experiment.name.clone(),
            started_at: manifest.started_at.clone(),
            fingerprint: manifest.fingerprint.clone(),
        };
        let statuses: Vec<Status> = checks.iter().map(|check| check.status).collect();
        Ok(Self {
            base: side(paths[0], &base.manifest),
            new: side(paths[1], &new.manifest),
            loosened: verdicts::loosened(&counterparts),
            question: differences(&base.manifest, &new.manifest),
            verdicts,
            same_verdicts,
            numbers: pairs.numbers(false, how.top),
            times: pairs.numbers(true, how.top),
            checks,
            outcome: Outcome::from_statuses(&statuses, true, true),
        })
    }
}

fn name_of<S: serde::Serializer>(outcome: &Outcome, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    serializer.serialize_str(outcome.name())
}
