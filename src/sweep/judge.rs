//! From the cells of a run to its verdicts and reports.

use std::collections::HashMap;
use std::io::Write;
use std::path::PathBuf;
use std::str::FromStr;

use reference::paths::deepseek_v4::SITES;

use super::attest;
use super::experiment::{Experiment, Kind, Rule};
use super::folder::Folder;
use super::kernels::TIME;
use super::load::Source;
use super::operations;
use super::plan::REFERENCE;
use super::recurrence;
use super::run::{Hindrance, Manifest, Run};
use super::runs;
use super::source::Origin;
use super::store;
use super::summary::summarize;
use super::swap_ffn;
use crate::atomic::write_text;
use crate::error::{Error, Exit, Result, did_you_mean};
use crate::gate::{Binding, CHECKS, Unmeasured, direction, explain, judge};
use crate::input;
use crate::metrics::{Bound, METRICS};
use crate::output;
use crate::pattern::{matches, matches_nothing};
use crate::record::{Phase, Record};
use crate::report;

/// Finds what is wrong with the rules of an experiment before anything is run: `(offending text, message)`.
pub fn check(experiment: &Experiment) -> Result<(), (String, String)> {
    let sites = sites(experiment);
    for rule in &experiment.gates {
        let recipes = || measured_in(experiment, rule.phase);
        let wrong = |place: &str| {
            let place = place.to_string();
            move |message: String| (place, format!("gate: {message}"))
        };
        let metric = METRICS
            .iter()
            .find(|metric| metric.name == rule.metric)
            .ok_or_else(|| {
                let hint = did_you_mean(&rule.metric, METRICS.iter().map(|metric| metric.name));
                wrong(&rule.metric)(format!("unknown metric '{}'{hint}", rule.metric))
            })?;
        let bound = Bound::from_str(&rule.require).map_err(wrong(&rule.require))?;
        direction::check_rule(metric, bound, rule).map_err(wrong(&rule.require))?;
        if !experiment.phases().contains(&rule.phase) {
            let message = format!("gate on {}: the experiment has no {} phase", rule.metric, rule.phase);
            return Err((rule.metric.clone(), message));
        }
        if rule.why.trim().is_empty() {
            let message = format!(
                "gate on {}: why is empty, expected the reason of its bound",
                rule.metric
            );
            return Err((rule.metric.clone(), message));
        }
        if rule.recipes.is_empty() {
            let message = format!(
                "gate on {}: recipes = [] binds no recipe; expected patterns of names",
                rule.metric
            );
            return Err((rule.metric.clone(), message));
        }
        if let Some(pattern) = rule
            .recipes
            .iter()
            .find(|pattern| !recipes().any(|name| matches(pattern, name)))
        {
            return Err((
                pattern.clone(),
                format!("gate: {}", matches_nothing("recipe", pattern, recipes())),
            ));
        }
        let layered = rule.at.strip_prefix("layers.").and_then(|rest| rest.split_once('.'));
        let name = layered.map_or(rule.at.clone(), |(_, name)| format!("layers.0.{name}"));
        if experiment.kind == Kind::Kernels {
            check_output(experiment, &rule.at)?;
        } else if !rule.at.contains("**") && !sites.iter().any(|site| matches(&name, site)) {
            let names = sites.iter().map(String::as_str);
            let message = checkpoint_missing(experiment, &rule.at)
                .unwrap_or_else(|| format!("gate: {}", matches_nothing("site", &rule.at, names)));
            return Err((rule.at.clone(), message));
        }
    }
    Ok(())
}

/// Names of the recipes that have cells in a phase.
fn measured_in(experiment: &Experiment, phase: Phase) -> impl Iterator<Item = &str> {
    let own = experiment.kind == Kind::Model && phase == Phase::Cumulative;
    let recipes = experiment.recipes.iter().map(|recipe| recipe.name.as_str());
    recipes.chain(own.then_some(REFERENCE))
}

/// The error text for a gate at a step or token that the experiment does not reach, as when its shape was made smaller.
fn checkpoint_missing(experiment: &Experiment, at: &str) -> Option<String> {
    let unit = match experiment.kind {
        Kind::Recurrence => "steps",
        Kind::SwapFfn => "tokens",
        _ => return None,
    };
    let needed: usize = at.rsplit_once('.')?.1.parse().ok()?;
    let [rows, reached] = experiment.shape;
    (needed > reached).then(|| {
        format!(
            "gate at '{at}' needs {needed} {unit}, and shape = [{rows}, {reached}] has {reached}: give a larger shape, or \
             other gates with --rules FILE or --set 'gate=[…]'"
        )
    })
}

/// Where a rule may look, layers as layer 0.
fn sites(experiment: &Experiment) -> Vec<String> {
    let layered = |name: &str| format!("layers.0.{name}");
    let sources = experiment.sources.iter().flat_map(|source| {
        let layers = matches!(source.from, Origin::Site(_)).then(|| layered(&source.name));
        std::iter::once(source.name.clone()).chain(layers)
    });
    match experiment.kind {
        Kind::Model => SITES
            .iter()
            .map(|site| {
                if site.in_layers() {
                    layered(site.name)
                } else {
                    site.name.to_string()
                }
            })
            .collect(),
        Kind::RoundTrip | Kind::Recall => sources.collect(),
        Kind::Recurrence => recurrence::sites(experiment),
        Kind::SwapFfn => swap_ffn::sites(experiment),
        // See `check_output`.
        Kind::Kernels => Vec::new(),
    }
}

/// Whether some operation of the run has outputs that a rule means. The checks besides outputs are bound in any case.
fn check_output(experiment: &Experiment, at: &str) -> Result<(), (String, String)> {
    if at.contains("**") || CHECKS.iter().chain([&TIME]).any(|site| matches(at, site)) {
        return Ok(());
    }
    let mut names = Vec::new();
    for operation in operations::of_recipes(experiment) {
        let outputs = operation
            .outputs()
            .map_err(|why| (at.to_string(), format!("gate at '{at}': {why}")))?;
        if !outputs.all || outputs.names.iter().any(|name| matches(at, name)) {
            return Ok(());
        }
        names.extend(outputs.names);
    }
    names.sort();
    names.dedup();
    let hint = did_you_mean(at, names.iter().map(String::as_str));
    let all = names.iter().map(String::as_str).chain(CHECKS).collect::<Vec<_>>();
    let message = format!(
        "gate: '{at}' matches no output of the operations{hint}; measured at {}, {TIME}",
        all.join(", ")
    );
    Err((at.to_string(), message))
}

/// Writes all reports of a run into its folder and prints the table; [`exit`] is the verdict.
pub fn finish(folder: &Folder, run: &Run, json: bool) -> Result<()> {
    store::write_run(run, &folder.path)?;
    report::write_all(run, &folder.path)?;
    print(run, folder, json, Gates::Own)
}

/// Reads the cells of a run and derives everything from them. A run with missing or damaged cells is an error.
pub fn load(folder: &Folder, manifest: Manifest) -> Result<Run> {
    let records = folder.records(&manifest)?;
    derive(folder, manifest, records)
}

/// What follows from the records of all cells.
pub fn derive(folder: &Folder, mut manifest: Manifest, records: Vec<Record>) -> Result<Run> {
    manifest.complete = true;
    let summaries = summarize(&records);
    let mut verdicts = judge(&bind(&manifest), &summaries).map_err(|message| Error::data(&folder.path, message))?;
    verdicts.iter_mut().for_each(|verdict| verdict.locate(&records));
    explain(&mut verdicts, &records);
    Ok(Run {
        manifest,
        records,
        summaries,
        verdicts,
    })
}

/// Each rule with each of the recipes that it binds in the experiment, whether their cells were selected or not.
fn bind<'m>(manifest: &'m Manifest) -> Vec<Binding<'m>> {
    let (run, left_out) = (counts(&manifest.cells), counts(&manifest.left_out));
    let binding = |rule: &'m Rule, recipe: &'m str| {
        let cells = (recipe, rule.phase.name());
        let [run, left_out] = [&run, &left_out].map(|counts| counts.get(&cells).copied().unwrap_or(0));
        let unmeasured = match manifest.hindered.get(recipe) {
            Some(Hindrance::OtherDevice(why)) => Unmeasured::NotForDevice(why.clone()),
            Some(Hindrance::Missing(why)) => Unmeasured::NotJudged(why.clone()),
            None if run == 0 => Unmeasured::NotJudged("none of its cells was selected".into()),
            None if manifest.experiment.kind == Kind::Kernels => {
                Unmeasured::NotJudged(format!("it takes none of {run} cases"))
            }
            None if left_out > 0 => Unmeasured::NotJudged(format!(
                "nothing was measured there in {run} of {} cells, and the others were not selected",
                run + left_out
            )),
            None => Unmeasured::Mistake,
        };
        Binding {
            rule,
            recipe,
            planned: run + left_out,
            left_out,
            unmeasured,
        }
    };
    let of_rule = |rule: &'m Rule| {
        let recipes = measured_in(&manifest.experiment, rule.phase);
        let bound = recipes.filter(|recipe| rule.recipes.iter().any(|pattern| matches(pattern, recipe)));
        bound.map(|recipe| binding(rule, recipe)).collect::<Vec<_>>()
    };
    manifest.experiment.gates.iter().flat_map(of_rule).collect()
}

/// How many cells each recipe has in each phase.
fn counts(cells: &[String]) -> HashMap<(&str, &str), usize> {
    let mut counts = HashMap::new();
    for id in cells {
        let mut parts = id.splitn(3, '/');
        if let (Some(recipe), Some(phase)) = (parts.next(), parts.next()) {
            *counts.entry((recipe, phase)).or_insert(0) += 1;
        }
    }
    counts
}

/// Judge a stored run again, by its own gates or by those of an experiment file; or hold the kernels in the tree against
/// what was verified on a GPU.
#[derive(Debug, clap::Args)]
pub struct GateArgs {
    /// Folder of the run [default: the newest below runs/].
    pub run: Option<PathBuf>,
    /// Check that every kernel, its flags and its bounds are as they were when they were verified, by the results in DIR
    /// [default: experiments/results].
    #[arg(long, value_name = "DIR", num_args = 0..=1, conflicts_with_all = ["run", "rules", "json"])]
    pub attested: Option<Option<PathBuf>>,
    /// Take the gates from this file in place of the run's own: an experiment, or [[gate]] alone.
    #[arg(long, value_name = "FILE")]
    pub rules: Option<PathBuf>,
    /// Print verdicts as JSON Lines on stdout in place of the table.
    #[arg(long)]
    pub json: bool,
}

pub fn gate(args: &GateArgs) -> Result<Exit> {
    if let Some(results) = &args.attested {
        return attest::gate(results.as_deref());
    }
    let (folder, mut manifest) = Folder::open(&named_or_newest(args.run.as_ref())?)?;
    if let Some(file) = &args.rules {
        let source = Source::read(file)?;
        manifest.experiment.gates = source.gates()?;
        check(&manifest.experiment).map_err(|(place, message)| source.error_at(&place, message))?;
    }
    let run = load(&folder, manifest)?;
    let gates = if args.rules.is_some() { Gates::Given } else { Gates::Own };
    print(&run, &folder, args.json, gates)?;
    Ok(run.outcome().exit())
}

/// The folder that is named, or that of the newest run, which is said.
fn named_or_newest(run: Option<&PathBuf>) -> Result<PathBuf> {
    if let Some(run) = run {
        return Ok(run.clone());
    }
    let newest = runs::newest_of_all()?;
    errln!("{}: the newest run", newest.display());
    Ok(newest)
}

/// Write the reports of a stored run again and print its table.
///
/// Exit code: 0 if they were written, whatever they say; `ulplab gate` has the codes of the verdict.
#[derive(Debug, clap::Args)]
pub struct ReportArgs {
    /// Folder of the run [default: the newest below runs/].
    pub run: Option<PathBuf>,
    /// Fill a findings template with the run's numbers instead, and write the page to --output.
    #[arg(long, value_name = "FILE", requires = "output")]
    pub findings: Option<PathBuf>,
    /// Where the findings page goes.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

pub fn report(args: &ReportArgs) -> Result<Exit> {
    let (folder, manifest) = Folder::open(&named_or_newest(args.run.as_ref())?)?;
    match (&args.findings, &args.output) {
        (Some(template), Some(output)) => {
            let text = input::text(template)?;
            let run = load(&folder, manifest)?;
            let page = report::findings(&run, &text).map_err(|message| Error::config(template, message))?;
            write_text(output, &page)?;
        }
        _ => finish(&folder, &load(&folder, manifest)?, false)?,
    }
    Ok(Exit::Pass)
}

/// Whose verdicts are shown. The report in the folder has those of the run's own gates.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Gates {
    Own,
    Given,
}

/// The table (or the verdicts as JSON Lines) and, last, one line: verdict, counts, seconds, path of the report. The path has a
/// line of its own where it does not fit, so that it can be copied whole.
fn print(run: &Run, folder: &Folder, json: bool, gates: Gates) -> Result<()> {
    let mut out = output::stdout();
    let written = if json {
        run.verdicts.iter().try_for_each(|verdict| {
            serde_json::to_writer(&mut out, verdict)?;
            writeln!(out)
        })
    } else {
        let page = match gates {
            Gates::Own => folder.path.join("report.html").display().to_string(),
            Gates::Given => "(report.html holds the verdicts of the run's own gates)".into(),
        };
        let (cells, seconds) = (run.manifest.cells.len(), run.manifest.seconds);
        // The text ends with the verdict and its counts.
        let width = output::width();
        let text = report::terminal(run, width, output::colour());
        let text = format!("{}; {cells} cells in {seconds:.1} s", text.trim_end());
        // Counted without colours, which begin and end at the verdict.
        let last =
            report::tally(run).line().chars().count() + format!("; {cells} cells in {seconds:.1} s").chars().count();
        match last.saturating_add(2 + page.chars().count()) <= output::table_width() {
            true => writeln!(out, "{text}; {page}"),
            false => writeln!(out, "{text}\n{page}"),
        }
    };
    written.map_err(Error::io("stdout", "write"))
}
