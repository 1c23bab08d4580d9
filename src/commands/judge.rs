//! From the cells of a run to its verdicts and reports.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use reference::paths::Config;

use super::calibrate::{self, CalibrateArgs};
use super::{decided, paired};
use crate::experiment::file::ExperimentFile;
use crate::experiment::{Mistake, Rule, Statistic};
use crate::gate::{bind, direction, explain, judge};
use crate::output;
use crate::report;
use crate::run::folder::Folder;
use crate::run::loss;
use crate::run::plan::Plan;
use crate::run::runs;
use crate::run::store;
use crate::run::summary::summarize;
use crate::run::{Manifest, Run};
use crate::studies::kernels::attest;
use crate::studies::{self, Study};
use ulplab_core::atomic::write_text;
use ulplab_core::error::{Error, Exit, Result, counted, did_you_mean};
use ulplab_core::input;
use ulplab_core::metrics::{Bound, METRICS};
use ulplab_core::pattern::{matches, matches_nothing};
use ulplab_core::record::Record;

/// Checks gates before anything is run; without the model's `config`, layers and metrics of its sites are not known.
pub fn check(rules: &[Rule], study: &dyn Study, plan: &Plan, config: Option<&dyn Config>) -> Result<(), Mistake> {
    let mut rules = rules.iter().enumerate();
    rules.try_for_each(|(at, rule)| check_rule(rule, study, plan, config).map_err(|mistake| mistake.within("gate", at)))
}

fn check_rule(rule: &Rule, study: &dyn Study, plan: &Plan, config: Option<&dyn Config>) -> Result<(), Mistake> {
    let wrong = |key: &str, message: String| Err(Mistake::at(key, message).of("gate"));
    let on = format!("gate on {}", rule.metric);
    let Some(metric) = METRICS.iter().find(|metric| metric.name == rule.metric) else {
        let hint = did_you_mean(&rule.metric, METRICS.iter().map(|metric| metric.name));
        return wrong("metric", format!("unknown metric '{}'{hint}", rule.metric));
    };
    if rule.control && rule.flake.is_some() {
        let message = format!("{on}: a control has a bound that something bad must meet, and no rate");
        return Err(Mistake::at("flake", message));
    }
    let bound = match (&rule.flake, &rule.calibration) {
        (Some(flake), Some(_)) if *flake > 0.0 && *flake < 1.0 && rule.require.is_empty() => None,
        (None, None) => Some(Bound::from_str(&rule.require)),
        (Some(flake), _) if !(*flake > 0.0 && *flake < 1.0) => {
            return Err(Mistake::at(
                "flake",
                format!("{on}: {flake} is no rate, expected a number between 0 and 1"),
            ));
        }
        _ => {
            let (key, found) = match (&rule.flake, &rule.calibration) {
                (Some(_), Some(_)) => ("flake", "'require' is given too"),
                (Some(_), None) => ("flake", "'calibration' is missing"),
                (None, _) => ("calibration", "'flake' is missing"),
            };
            let message = format!("{on}: 'flake' and 'calibration' stand together, in place of 'require': {found}");
            return Err(Mistake::at(key, message));
        }
    };
    // A bound that is calibrated points the right way by itself.
    let direction = bound.map_or(Ok(()), |bound| direction::check_rule(metric, bound?, rule));
    if let Err(message) = direction {
        return wrong("require", message);
    }
    if rule.statistic == Statistic::Sequential && (rule.at.contains('*') || rule.flake.is_some()) {
        let message = format!(
            "{on}: statistic = \"sequential\" decides on one place and a stated bound, not on '{}'",
            rule.at
        );
        return Err(Mistake::at("statistic", message));
    }
    let windows = study.reading().windows;
    let of_one_text = windows
        .iter()
        .all(|window| window.draw.is_some() && window.text == windows[0].text);
    if rule.statistic == Statistic::Sequential && (!of_one_text || plan.by_case()) {
        let message = format!(
            "{on}: statistic = \"sequential\" takes windows that are drawn from one text: draws = N in one [[window]]"
        );
        return Err(Mistake::at("statistic", message));
    }
    if !plan.phases.contains(&rule.phase) {
        let message = format!("{on}: the experiment has no {} phase", rule.phase);
        return Err(Mistake::at("phase", message));
    }
    if rule.why.trim().is_empty() {
        let message = format!("{on}: why is empty, expected the reason of its bound");
        return Err(Mistake::at("why", message));
    }
    if rule.recipes.is_empty() {
        let message = format!("{on}: recipes = [] binds no recipe; expected patterns of names");
        return Err(Mistake::at("recipes", message));
    }
    let recipes = || plan.measured_in(rule.phase);
    for (at, pattern) in rule.recipes.iter().enumerate() {
        if !recipes().any(|name| matches(pattern, name)) {
            let mut others = plan.recipes.iter().filter(|recipe| matches(pattern, &recipe.name));
            let message = match others.next() {
                Some(other) => format!(
                    "'{pattern}' matches no recipe of the {} phase: '{}' has the other one only",
                    rule.phase, other.name
                ),
                None => matches_nothing("recipe", pattern, recipes()),
            };
            return Err(Mistake::new(message).of("gate").within("recipes", at));
        }
    }
    if !rule.at.contains("**") {
        // One layer represents all.
        let layered = rule.at.strip_prefix("layers.").and_then(|rest| rest.split_once('.'));
        let at = layered.map_or(rule.at.clone(), |(_, name)| format!("layers.0.{name}"));
        let known = study.check_site(&at);
        known.map_err(|message| Mistake::at("at", message).of("gate"))?;
    }
    let measured = config.map_or(Ok(()), |config| study.check_measured(rule, metric, config));
    measured.map_err(|mistake| mistake.of("gate"))
}

/// Writes all reports of a run into its folder and prints the table; [`Run::outcome`] is the verdict.
pub fn finish(folder: &Folder, run: &Run, study: &dyn Study, json: bool) -> Result<()> {
    store::write_run(run, &folder.path)?;
    report::write_all(run, study, &folder.path)?;
    print(run, study, folder, json, Gates::Own)
}

/// Reads the cells of a run and derives everything from them. A run with missing or damaged cells is an error.
pub fn load(folder: &Folder, manifest: Manifest) -> Result<Run> {
    let records = decided::records(folder, &manifest)?;
    derive(folder, manifest, records)
}

/// The run in a folder, with all that is derived from it; one with missing or damaged cells is an error.
pub fn read(path: &Path) -> Result<Run> {
    let (folder, manifest) = Folder::open(path)?;
    load(&folder, manifest)
}

/// Derives everything from the records of all cells.
pub fn derive(folder: &Folder, mut manifest: Manifest, records: Vec<Record>) -> Result<Run> {
    manifest.complete = true;
    let summaries = summarize(&records);
    let mut verdicts = judge(&bind(&manifest), &summaries).map_err(|message| Error::data(&folder.path, message))?;
    explain(&mut verdicts, &records);
    Ok(Run {
        manifest,
        records,
        summaries,
        verdicts,
    })
}

/// Judge a stored run again, by its own gates or by those of an experiment file; or compare the kernels in the tree with
/// what was verified on a GPU.
#[derive(Debug, clap::Args)]
pub struct GateArgs {
    /// Folder of the run [default: the newest below runs/].
    pub run: Option<PathBuf>,
    /// Check that every kernel, its flags and its bounds are unchanged since they were verified. DIR has the attestations
    /// [default: experiments/results].
    #[arg(long, value_name = "DIR", num_args = 0..=1, conflicts_with_all = ["run", "rules", "json"])]
    pub attested: Option<Option<PathBuf>>,
    /// Use the gates of this file instead of the run's own. The file is an experiment, or contains only [[gate]].
    #[arg(long, value_name = "FILE")]
    pub rules: Option<PathBuf>,
    /// Print verdicts as JSON Lines on stdout instead of the table.
    #[arg(long)]
    pub json: bool,
    /// Print paired tests of each recipe against what it is compared with: flips of predictions with their direction, limits of the loss
    /// of accuracy, and where KL says nothing of it. No gate is judged.
    #[arg(long, conflicts_with_all = ["attested", "rules", "json"])]
    pub paired: bool,
    /// Judge nothing, exit code 4, if the text or the checkpoint cannot tell formats apart; `ulplab sweep --strict` says when.
    #[arg(long, conflicts_with_all = ["attested", "paired"])]
    pub strict: bool,
    #[command(flatten)]
    pub calibrate: CalibrateArgs,
}

pub fn gate(args: &GateArgs) -> Result<Exit> {
    if let Some(exit) = calibrate::run(&args.calibrate)? {
        return Ok(exit);
    }
    if let Some(results) = &args.attested {
        return attest::gate(results.as_deref());
    }
    let (folder, mut manifest) = Folder::open(&named_or_newest(args.run.as_ref())?)?;
    let study = studies::read(&manifest.experiment)?;
    if let Some(file) = &args.rules {
        let file = ExperimentFile::read(file, &[])?;
        manifest.experiment.head.gates = file.gates()?;
        check(&manifest.experiment.gates, &*study, &manifest.plan, None).map_err(|mistake| file.error(&mistake))?;
        calibrate::resolve(&mut manifest, &file)?;
    }
    manifest.invocation.strict |= args.strict;
    let run = load(&folder, manifest)?;
    if args.paired {
        paired::print(&run)?;
        return Ok(Exit::Pass);
    }
    let gates = if args.rules.is_some() { Gates::Given } else { Gates::Own };
    print(&run, &*study, &folder, args.json, gates)?;
    Ok(run.outcome().exit())
}

/// The named folder, or else the newest run's, whose path is printed.
pub fn named_or_newest(run: Option<&PathBuf>) -> Result<PathBuf> {
    if let Some(run) = run {
        return Ok(run.clone());
    }
    let newest = runs::newest_of_all()?;
    errln!("{}: the newest run", newest.display());
    Ok(newest)
}

/// Write the reports of a stored run again and print its table.
///
/// Exit code: 0 if the reports were written, with any verdict; use `ulplab gate` for the exit code of the verdict.
#[derive(Debug, clap::Args)]
pub struct ReportArgs {
    /// Folder of the run [default: the newest below runs/].
    pub run: Option<PathBuf>,
    /// Fill a findings template with the run's numbers instead, and write the page to --output.
    #[arg(long, value_name = "FILE", requires = "output")]
    pub findings: Option<PathBuf>,
    /// File to write the findings page to.
    #[arg(short, long, value_name = "FILE", value_parser = crate::output::file_name())]
    pub output: Option<PathBuf>,
}

pub fn report(args: &ReportArgs) -> Result<Exit> {
    let (folder, manifest) = Folder::open(&named_or_newest(args.run.as_ref())?)?;
    let study = studies::read(&manifest.experiment)?;
    match (&args.findings, &args.output) {
        (Some(template), Some(output)) => {
            let text = input::text(template)?;
            let run = load(&folder, manifest)?;
            let page = report::findings(&run, &*study, &text).map_err(|message| Error::config(template, message))?;
            write_text(output, &page)?;
        }
        _ => finish(&folder, &load(&folder, manifest)?, &*study, false)?,
    }
    Ok(Exit::Pass)
}

/// Whose gates the shown verdicts come from. The report in the folder uses the run's own.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Gates {
    Own,
    Given,
}

/// The table (or the verdicts as JSON Lines) and, last, one line: verdict, counts, seconds, path of the report. The path has
/// its own line if it does not fit, so that it can be copied whole.
fn print(run: &Run, study: &dyn Study, folder: &Folder, json: bool, gates: Gates) -> Result<()> {
    paired::warnings(run).iter().for_each(|warning| errln!("{warning}"));
    if json {
        loss::blind(run).iter().for_each(|why| errln!("{why}"));
    }
    let mut out = output::stdout();
    let written = if json {
        run.verdicts.iter().try_for_each(|verdict| {
            serde_json::to_writer(&mut out, verdict)?;
            writeln!(out)
        })
    } else {
        let page = match gates {
            Gates::Own => folder.path.join("report.html").display().to_string(),
            Gates::Given => "(report.html has the verdicts of the run's own gates)".into(),
        };
        let (cells, seconds) = (counted(run.cells(), "cell"), run.manifest.seconds);
        // The text ends with the verdict and its counts.
        let width = output::width();
        let text = report::terminal(run, study, width, output::colour());
        let text = format!("{}; {cells} in {seconds:.1} s", text.trim_end());
        // Counted without colours, which begin and end at the verdict.
        let last =
            report::tally(run, study).line().chars().count() + format!("; {cells} in {seconds:.1} s").chars().count();
        match last.saturating_add(2 + page.chars().count()) <= output::table_width() {
            true => writeln!(out, "{text}; {page}"),
            false => writeln!(out, "{text}\n{page}"),
        }
    };
    written.map_err(Error::io("stdout", "write"))
}
