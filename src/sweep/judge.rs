//! From the cells of a run to its verdicts and reports.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::str::FromStr;

use reference::paths::deepseek_v4::SITES;

use super::attest;
use super::experiment::{Experiment, Kind, Rule};
use super::folder::Folder;
use super::load::Source;
use super::plan::REFERENCE;
use super::recurrence;
use super::run::{Manifest, Run};
use super::source::Origin;
use super::store;
use super::summary::summarize;
use super::swap_ffn;
use crate::atomic::write_text;
use crate::error::{Error, Exit, Result, did_you_mean};
use crate::gate::judge;
use crate::metrics::{Bound, METRICS};
use crate::pattern::{matches, matches_nothing};
use crate::record::{Phase, Record};
use crate::report;

/// Finds what is wrong with the rules of an experiment before anything is run: `(offending text, message)`.
pub fn check(experiment: &Experiment) -> Result<(), (String, String)> {
    let recipes = || {
        experiment
            .recipes
            .iter()
            .map(|recipe| recipe.name.as_str())
            .chain([REFERENCE])
    };
    let sites = sites(experiment);
    for rule in &experiment.gates {
        let metrics = || METRICS.iter().map(|metric| metric.name);
        if !metrics().any(|name| name == rule.metric) {
            let hint = did_you_mean(&rule.metric, metrics());
            return Err((
                rule.metric.clone(),
                format!("gate: unknown metric '{}'{hint}", rule.metric),
            ));
        }
        Bound::from_str(&rule.require).map_err(|message| (rule.require.clone(), format!("gate: {message}")))?;
        if !experiment.phases().contains(&rule.phase) {
            let message = format!("gate on {}: the experiment has no {} phase", rule.metric, rule.phase);
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
        if !rule.at.contains("**") && !sites.iter().any(|site| matches(&name, site)) {
            let names = sites.iter().map(String::as_str);
            return Err((
                rule.at.clone(),
                format!("gate: {}", matches_nothing("site", &rule.at, names)),
            ));
        }
    }
    Ok(())
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
                if site.in_layers {
                    layered(site.name)
                } else {
                    site.name.to_string()
                }
            })
            .collect(),
        Kind::RoundTrip | Kind::Recall => sources.collect(),
        Kind::Recurrence => recurrence::sites(experiment),
        Kind::SwapFfn => swap_ffn::sites(experiment),
        // Outputs are named by the operations.
        Kind::Kernels => Vec::new(),
    }
}

/// Judges a complete run, writes all reports into its folder and prints the table; [`exit`] is the verdict.
pub fn finish(folder: &Folder, manifest: Manifest, json: bool) -> Result<Run> {
    let run = load(folder, manifest)?;
    store::write_run(&run, &folder.path)?;
    report::write_all(&run, &folder.path)?;
    print(&run, folder, json)?;
    Ok(run)
}

/// Reads the cells of a run and derives everything from them. A run with missing cells is an error.
pub fn load(folder: &Folder, manifest: Manifest) -> Result<Run> {
    let missing: Vec<&String> = manifest.cells.iter().filter(|id| !folder.has(id)).collect();
    if let Some(first) = missing.first() {
        let (missing, all, path) = (missing.len(), manifest.cells.len(), folder.path.display());
        return Err(Error::Incomplete(format!(
            "{path}: {missing} of {all} cells are missing, the first is '{first}'"
        )));
    }
    let mut records = Vec::new();
    for id in &manifest.cells {
        records.extend(folder.read_cell(id)?);
    }
    let summaries = summarize(&records);
    let verdicts =
        judge(&bind(&manifest, &records), &summaries).map_err(|message| Error::data(&folder.path, message))?;
    Ok(Run {
        manifest,
        records,
        summaries,
        verdicts,
    })
}

/// Each rule with the recipes it binds. A run of selected cells (`--only`) may leave a rule without any: it is dropped. So
/// it may be that a kernel takes none of the cases: it is not judged.
fn bind<'a>(manifest: &'a Manifest, records: &[Record]) -> Vec<(&'a Rule, Vec<&'a str>)> {
    let recipes = || {
        manifest
            .recipes
            .iter()
            .map(|recipe| recipe.name.as_str())
            .chain([REFERENCE])
    };
    let ran = |recipe: &str, phase: Phase| {
        let prefix = format!("{recipe}/{phase}/");
        let took = manifest.experiment.kind != Kind::Kernels || records.iter().any(|record| record.recipe == recipe);
        took && manifest.cells.iter().any(|id| id.starts_with(&prefix))
    };
    let bound = |rule: &Rule| {
        recipes()
            .filter(|name| rule.recipes.iter().any(|pattern| matches(pattern, name)) && ran(name, rule.phase))
            .collect()
    };
    let rules = manifest.experiment.gates.iter().map(|rule| (rule, bound(rule)));
    rules
        .filter(|(_, recipes): &(_, Vec<&str>)| !recipes.is_empty())
        .collect()
}

/// Judge a stored run again, by its own gates or by those of an experiment file; or hold the kernels in the tree against
/// what was verified on a GPU.
#[derive(Debug, clap::Args)]
pub struct GateArgs {
    /// Folder of the run.
    #[arg(required_unless_present = "attested")]
    pub run: Option<PathBuf>,
    /// Whether every kernel, its flags and its bounds are as they were when they were verified, by the results in DIR
    /// [default: experiments/results].
    #[arg(long, value_name = "DIR", num_args = 0..=1, conflicts_with_all = ["run", "rules", "json"])]
    pub attested: Option<Option<PathBuf>>,
    /// Take the gates from this experiment file in place of the run's own.
    #[arg(long, value_name = "FILE")]
    pub rules: Option<PathBuf>,
    /// Print verdicts as JSON Lines on stdout in place of the table.
    #[arg(long)]
    pub json: bool,
}

pub fn gate(args: &GateArgs) -> Result<Exit> {
    let Some(run) = &args.run else {
        return attest::gate(args.attested.as_ref().and_then(Option::as_deref));
    };
    let (folder, mut manifest) = Folder::open(run)?;
    if let Some(file) = &args.rules {
        let source = Source::read(file)?;
        manifest.experiment.gates = source.parse(&[])?.gates;
        check(&manifest.experiment).map_err(|(place, message)| source.error_at(&place, message))?;
    }
    let run = load(&folder, manifest)?;
    if run.verdicts.is_empty() {
        return Err(Error::NothingSelected("no gate binds any recipe of the run".into()));
    }
    print(&run, &folder, args.json)?;
    Ok(exit(&run))
}

/// Write the reports of a stored run again and print its table.
#[derive(Debug, clap::Args)]
pub struct ReportArgs {
    /// Folder of the run.
    pub run: PathBuf,
    /// Fill a findings template with the run's numbers instead, and write the page to --output.
    #[arg(long, value_name = "FILE", requires = "output")]
    pub findings: Option<PathBuf>,
    /// Where the findings page goes.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

pub fn report(args: &ReportArgs) -> Result<Exit> {
    let (folder, manifest) = Folder::open(&args.run)?;
    match (&args.findings, &args.output) {
        (Some(template), Some(output)) => {
            let text = std::fs::read_to_string(template).map_err(Error::io(template, "read"))?;
            let run = load(&folder, manifest)?;
            let page = report::findings(&run, &text).map_err(|message| Error::config(template, message))?;
            write_text(output, &page)?;
        }
        _ => drop(finish(&folder, manifest, false)?),
    }
    Ok(Exit::Pass)
}

/// The verdict of a run.
pub fn exit(run: &Run) -> Exit {
    if run.verdicts.iter().all(|verdict| verdict.pass) {
        Exit::Pass
    } else {
        Exit::GateFailed
    }
}

/// The table (or the verdicts as JSON Lines) and, last, one line: verdict, counts, seconds, path of the report.
fn print(run: &Run, folder: &Folder, json: bool) -> Result<()> {
    let mut out = std::io::stdout().lock();
    let written = if json {
        run.verdicts.iter().try_for_each(|verdict| {
            serde_json::to_writer(&mut out, verdict)?;
            writeln!(out)
        })
    } else {
        let colour = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        let width = comfy_table::Table::new().width().map_or(120, usize::from);
        let page = folder.path.join("report.html");
        let (cells, seconds) = (run.manifest.cells.len(), run.manifest.seconds);
        // The text ends with the verdict and its counts.
        let text = report::terminal(run, width, colour);
        writeln!(
            out,
            "{}; {cells} cells in {seconds:.1} s; {}",
            text.trim_end(),
            page.display()
        )
    };
    written.map_err(Error::io("stdout", "write"))
}
