//! Judges a run by its gates and writes its reports; `ulplab gate` and `ulplab report` do so for a stored run.

use std::path::{Path, PathBuf};

use super::calibrate::{self, CalibrateArgs};
use super::paired;
use crate::experiment::file::ExperimentFile;
use crate::gate::resolve;
use crate::run::folder::Folder;
use crate::run::{Manifest, Run, loss, runs, store};
use crate::studies::{self, Study};
use crate::{json, output, report};
use ulplab_core::atomic::write_text;
use ulplab_core::error::{Error, Exit, Result, counted};
use ulplab_core::input;

/// Writes all reports of a run into its folder and prints the table; [`Run::outcome`] is the verdict.
pub fn finish(folder: &Folder, run: &Run, study: &dyn Study, json: bool) -> Result<()> {
    store::write_run(run, &folder.path)?;
    report::write_all(run, study, &folder.path)?;
    print(run, study, folder, json, true);
    Ok(())
}

/// Judge a stored run again, by its own gates or by those of an experiment file.
#[derive(Debug, clap::Args)]
pub struct GateArgs {
    /// Folder of the run [default: the newest below runs/].
    pub run: Option<PathBuf>,
    /// Use the gates of this file instead of the run's own. The file is an experiment, or contains only `[[gate]]` tables.
    #[arg(long, value_name = "FILE")]
    pub rules: Option<PathBuf>,
    /// Print verdicts as JSON Lines on stdout instead of the table.
    #[arg(long)]
    pub json: bool,
    /// Print paired tests of each recipe against the recipe it is compared with, and judge no gate.
    ///
    /// The tests give the flips of predictions in each direction, limits of the loss of accuracy, and the KL divergence up to
    /// which no test shows a loss.
    #[arg(long, conflicts_with_all = ["rules", "json"])]
    pub paired: bool,
    /// Judge nothing and exit with code 4 if the text or the checkpoint cannot tell formats apart (see `ulplab sweep --strict`).
    #[arg(long, conflicts_with = "paired")]
    pub strict: bool,
    #[command(flatten)]
    pub calibrate: CalibrateArgs,
}

pub fn gate(args: &GateArgs) -> Result<Exit> {
    if let Some(exit) = calibrate::run(&args.calibrate)? {
        return Ok(exit);
    }
    let (folder, mut manifest) = open_run(args.run.as_deref())?;
    let study = studies::read(&manifest.experiment)?;
    if let Some(file) = &args.rules {
        let file = ExperimentFile::read(file, &[])?;
        manifest.experiment.head.gates = file.gates()?;
        let checked = study.check_gates(&manifest.experiment.gates, &manifest.plan, None);
        checked.map_err(|mistake| file.error(&mistake))?;
        resolve(&mut manifest, &file)?;
    }
    manifest.invocation.strict |= args.strict;
    let run = Run::load(&folder, manifest)?;
    if args.paired {
        paired::print(&run)?;
        return Ok(Exit::Pass);
    }
    print(&run, &*study, &folder, args.json, args.rules.is_none());
    Ok(run.outcome().exit())
}

/// Opens the run in the named folder. Without a folder, opens the newest run and prints its path.
pub fn open_run(folder: Option<&Path>) -> Result<(Folder, Manifest)> {
    if let Some(folder) = folder {
        return Folder::open(folder);
    }
    let newest = runs::newest_of_all()?;
    errln!("{}: the newest run", newest.display());
    Folder::open(&newest)
}

/// Write the reports of a stored run again and print its table.
///
/// Exit code: 0 if the reports were written, with any verdict; use `ulplab gate` for the exit code of the verdict.
#[derive(Debug, clap::Args)]
pub struct ReportArgs {
    /// Folder of the run [default: the newest below runs/].
    pub run: Option<PathBuf>,
    /// Fill a findings template with the run's numbers, and write the page to --output; write no reports.
    #[arg(long, value_name = "FILE", requires = "output")]
    pub findings: Option<PathBuf>,
    /// File to write the findings page to.
    #[arg(short, long, value_name = "FILE", value_parser = crate::output::file_name())]
    pub output: Option<PathBuf>,
}

pub fn report(args: &ReportArgs) -> Result<Exit> {
    let (folder, manifest) = open_run(args.run.as_deref())?;
    let study = studies::read(&manifest.experiment)?;
    match (&args.findings, &args.output) {
        (Some(template), Some(output)) => {
            let text = input::text(template)?;
            let run = Run::load(&folder, manifest)?;
            let page = report::findings(&run, &*study, &text).map_err(|message| Error::config(template, message))?;
            write_text(output, &page)?;
        }
        _ => finish(&folder, &Run::load(&folder, manifest)?, &*study, false)?,
    }
    Ok(Exit::Pass)
}

/// Prints the verdicts as JSON Lines, or the table and a summary line: verdict, counts, seconds, path of the report. If the line
/// is too long, the path gets its own line, so that a user can copy it. If the gates come from `--rules` (`own` is false), a note
/// replaces the path, because the report on disk has the verdicts of the run's own gates.
fn print(run: &Run, study: &dyn Study, folder: &Folder, as_json: bool, own: bool) {
    paired::warnings(run).iter().for_each(|warning| errln!("{warning}"));
    if as_json {
        loss::blind(run).iter().for_each(|why| errln!("{why}"));
        for verdict in &run.verdicts {
            outln!("{}", json::line(verdict));
        }
        return;
    }
    let page = match own {
        true => folder.path.join("report.html").display().to_string(),
        false => "(report.html has the verdicts of the run's own gates)".into(),
    };
    let took = format!("; {} in {:.1} s", counted(run.cells(), "cell"), run.manifest.seconds);
    // The last line of the text has the verdict and its counts; `took` and `page` follow on this line.
    let text = report::terminal(run, study, output::width(), output::colour());
    let text = text.trim_end();
    // Counts the characters of the last line without colour codes.
    let last = report::tally(run, study).line().chars().count() + took.chars().count();
    match last.saturating_add(2 + page.chars().count()) <= output::table_width() {
        true => outln!("{text}{took}; {page}"),
        false => outln!("{text}{took}\n{page}"),
    }
}
