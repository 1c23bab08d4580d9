//! `ulplab baseline`: runs that a person accepted, with a reason. Later runs are compared with them.
//!
//! A baseline is a copy of a run with a file that says who accepted the run and why. That file is written last, so an interrupted
//! copy is not a baseline. Baselines are in `baselines/<experiment>/<device>`, which should be under version control. Only a run
//! whose gates all hold can become a baseline. A later run is compared with the last baseline of its experiment and device, as
//! `ulplab diff` does. If the data, the model, a recipe or the definition of a metric changed in between, the runs are
//! incomparable.

mod drift;

use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{diff, judged};
use crate::entries::entries;
use crate::itself::git;
use crate::run::definitions::Definitions;
use crate::run::folder::Folder;
use crate::run::runs::slug;
use crate::run::verdict::{Outcome, Verdict};
use crate::run::{Manifest, Run, now};
use ulplab_core::atomic::create_atomic;
use ulplab_core::error::{Error, Exit, Result, refuse};
use ulplab_core::input;
use ulplab_core::text::shown;

/// Accept runs as baselines, compare runs with them, and show how accepted runs drift.
#[derive(Debug, clap::Args)]
pub struct BaselineArgs {
    #[command(subcommand)]
    command: BaselineCommand,
    /// Folder of all baselines.
    #[arg(long, global = true, value_name = "DIR", default_value = "baselines")]
    baselines: PathBuf,
}

#[derive(Debug, clap::Subcommand)]
enum BaselineCommand {
    Accept(AcceptArgs),
    Compare(CompareArgs),
    Log(drift::LogArgs),
}

/// Make a run the baseline of its experiment and device. Its gates must all hold, on all cells that it plans.
#[derive(Debug, clap::Args)]
struct AcceptArgs {
    /// Folder of the run [default: the newest below runs/].
    run: Option<PathBuf>,
    /// The reason, e.g. what changed since the baseline before, and why that is right.
    #[arg(long, value_name = "TEXT")]
    why: String,
    /// The person who accepts the run [default: $USER, or $LOGNAME, or git's user.name].
    #[arg(long, value_name = "NAME")]
    by: Option<String>,
}

/// Compare a run with the last baseline of its experiment and device, as `ulplab diff` does.
///
/// Exit codes as in `ulplab diff`; 4 without a comparable baseline: none exists, or the data, the model, the seed, a recipe, the
/// rule of a format or the definition of a metric changed.
#[derive(Debug, clap::Args)]
struct CompareArgs {
    /// Folder of the run [default: the newest below runs/].
    run: Option<PathBuf>,
    #[command(flatten)]
    how: diff::DiffOptions,
}

pub fn run(args: &BaselineArgs) -> Result<Exit> {
    let store = &args.baselines;
    match &args.command {
        BaselineCommand::Accept(accept) => accept.run(store),
        BaselineCommand::Compare(compare) => compare.run(store),
        BaselineCommand::Log(log) => log.run(store),
    }
}

impl AcceptArgs {
    fn run(&self, store: &Path) -> Result<Exit> {
        for (option, text) in [("--why", Some(&self.why)), ("--by", self.by.as_ref())] {
            let empty = text.is_some_and(|text| text.trim().is_empty());
            Error::refuse(empty, format_args!("{option} is empty, expected a text"))?;
        }
        let (folder, manifest) = judged::open_run(self.run.as_deref())?;
        let by = self.by.clone().or_else(|| somebody(&folder.path)).ok_or_else(|| {
            let nobody = "nobody accepts it: neither $USER, $LOGNAME nor git's user.name says who";
            Error::Usage(format!("{nobody}; give --by NAME"))
        })?;
        let run = Run::load(&folder, manifest)?;
        let refused = |why: String| format!("{}: {why}; it does not become a baseline", folder.path.display());
        let outcome = run.outcome();
        if outcome != Outcome::Pass {
            errln!("error: {}", refused(of_outcome(outcome, &run.verdicts)));
            return Ok(outcome.exit());
        }
        if let Some(fault) = &run.manifest.invocation.mutant {
            return Err(Error::Usage(refused(format!("the fault '{fault}' is planted in it"))));
        }
        let (made, here) = (&run.manifest.version, env!("CARGO_PKG_VERSION"));
        let why = format!("ulplab {made} made it, and this is {here}, whose definitions may differ: run it again");
        Error::refuse(made != here, refused(why))?;
        let accepted = Accepted {
            schema: SCHEMA,
            run: run.manifest.fingerprint.clone(),
            accepted_at: now(),
            by: by.trim().into(),
            why: self.why.trim().into(),
            definitions: Definitions::of(&run),
        };
        let path = add(store, &folder, &run.manifest, &accepted)?;
        outln!("{}: accepted", path.display());
        Ok(Exit::Pass)
    }
}

/// Returns a default name for the person who accepts a run: the variable `USER` or `LOGNAME`, else git's `user.name`.
fn somebody(run: &Path) -> Option<String> {
    let of_env = ["USER", "LOGNAME"].iter().filter_map(|name| std::env::var(name).ok());
    let folders = [run, Path::new(".")].into_iter();
    let of_git = folders.filter_map(|folder| git(folder, &["config", "user.name"]));
    of_env.chain(of_git).find(|name| !name.trim().is_empty())
}

fn of_outcome(outcome: Outcome, verdicts: &[Verdict]) -> String {
    match outcome {
        Outcome::Pass => "all gates hold".into(),
        Outcome::Fail => failures(verdicts),
        Outcome::Incomplete => "it is incomplete".into(),
        Outcome::NotJudged => "no gate judges it".into(),
        Outcome::PartlyJudged => "not everything in it was judged".into(),
    }
}

/// Describes the failing gates in a phrase: their number, and the first of them.
fn failures(verdicts: &[Verdict]) -> String {
    let failed: Vec<&Verdict> = verdicts.iter().filter(|verdict| verdict.fails()).collect();
    let first = failed
        .first()
        .map(|first| format!(" on '{}': {}", first.recipe, first.message));
    let first = first.unwrap_or_default();
    match failed.len() {
        1 => format!("a gate fails,{first}"),
        count => format!("{count} gates fail, the first{first}"),
    }
}

impl CompareArgs {
    fn run(&self, store: &Path) -> Result<Exit> {
        let (folder, manifest) = judged::open_run(self.run.as_deref())?;
        let baselines = of(store, &manifest.experiment.name, &manifest.device)?;
        let Some(base) = baselines.last() else {
            errln!("{}", none_for(&manifest, store)?);
            return Ok(Exit::NotJudged);
        };
        let run = Run::load(&folder, manifest)?;
        let found = incomparable(base, &run.manifest, &Definitions::of(&run));
        if !found.is_empty() {
            let Accepted { accepted_at, by, .. } = &base.accepted;
            let base = base.path.display();
            let accepted = shown(&format!("{by} accepted at {accepted_at}"));
            outln!("INCOMPARABLE with {base}, which {accepted}:");
            found.iter().for_each(|what| outln!("  {}", shown(what)));
            outln!("accept a run of today as a new baseline, if what changed is right");
            return Ok(Exit::NotJudged);
        }
        diff::between(&base.path, &folder.path, &self.how)
    }
}

/// Returns the reasons why a run cannot be compared with a baseline; empty if it can.
fn incomparable(base: &Baseline, new: &Manifest, now: &Definitions) -> Vec<String> {
    let question = diff::differences(&base.manifest, new);
    let question = question.iter().filter(|found| !found.comparable);
    let question = question.map(|found| found.sentence(" then, ", " now"));
    question.chain(base.accepted.definitions.changed(now)).collect()
}

fn none_for(manifest: &Manifest, store: &Path) -> Result<String> {
    let (name, device) = (&manifest.experiment.name, &manifest.device);
    let mut others = all(store)?;
    others.retain(|base| &base.manifest.experiment.name == name);
    let mut others: Vec<String> = others.into_iter().map(|base| base.manifest.device).collect();
    others.dedup();
    let others = match others.is_empty() {
        true => String::new(),
        false => format!(", but of '{}'", others.join("', '")),
    };
    let folder = store.display();
    Ok(format!(
        "NOT COMPARED: {folder} has no baseline of '{name}' on '{device}'{others}; `ulplab baseline accept RUN --why TEXT` makes one"
    ))
}

/// The file that makes a run a baseline.
const ACCEPTED: &str = "accepted.json";
const SCHEMA: u32 = 1;

/// The acceptance of a run: person, time and reason.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Accepted {
    schema: u32,
    /// Fingerprint of the run.
    run: String,
    /// Time in the format of RFC 3339.
    accepted_at: String,
    by: String,
    why: String,
    definitions: Definitions,
}

/// An accepted run.
#[derive(Debug)]
struct Baseline {
    path: PathBuf,
    manifest: Manifest,
    accepted: Accepted,
}

/// Returns the folder of the baselines of an experiment and a device, in the folder `store` of all baselines.
fn place(store: &Path, experiment: &str, device: &str) -> PathBuf {
    store.join(slug(experiment)).join(slug(device))
}

/// Copies a run into `store`, and marks the copy as accepted. Returns an error if the run is already a baseline.
fn add(store: &Path, folder: &Folder, manifest: &Manifest, accepted: &Accepted) -> Result<PathBuf> {
    let home = place(store, &manifest.experiment.name, &manifest.device);
    let name = manifest.started_at.replace(':', "");
    let path = home.join(format!("{name}-{}", &manifest.fingerprint[..8]));
    let (copy, same) = Folder::enter(&path, manifest, true)?;
    for cell in same.plan.cells() {
        copy.write_cell(&cell, &folder.read_cell(&cell.id)?)?;
    }
    let text = serde_json::to_vec_pretty(accepted).expect("plain data has a form in JSON");
    match create_atomic(&path.join(ACCEPTED), |out| out.write_all(&text))? {
        true => Ok(path),
        false => Err(Error::Usage(format!("{}: a baseline already", path.display()))),
    }
}

/// Returns the baselines of an experiment on a device, in the order of acceptance.
fn of(store: &Path, experiment: &str, device: &str) -> Result<Vec<Baseline>> {
    let mut found = in_folder(&place(store, experiment, device))?;
    // Several experiments or devices may have the same folder name, so compare the full names.
    found.retain(|base| base.manifest.experiment.name == experiment && base.manifest.device == device);
    Ok(found)
}

/// Returns all baselines, by experiment, device and time.
fn all(store: &Path) -> Result<Vec<Baseline>> {
    let mut found = Vec::new();
    for experiment in folders(store)? {
        for device in folders(&experiment)? {
            found.extend(in_folder(&device)?);
        }
    }
    Ok(found)
}

fn in_folder(path: &Path) -> Result<Vec<Baseline>> {
    let marked = folders(path)?.into_iter().filter(|path| path.join(ACCEPTED).exists());
    let mut found = marked.map(|path| read(&path)).collect::<Result<Vec<_>>>()?;
    found.sort_by(|a, b| a.accepted.accepted_at.cmp(&b.accepted.accepted_at));
    Ok(found)
}

fn read(path: &Path) -> Result<Baseline> {
    let file = path.join(ACCEPTED);
    let wrong = |message: String| Error::data(&file, message);
    let accepted: Accepted = serde_json::from_str(&input::text(&file)?).map_err(|error| wrong(error.to_string()))?;
    let other = format_args!("schema {}; this version of ulplab reads {SCHEMA}", accepted.schema);
    refuse(accepted.schema != SCHEMA, other).map_err(wrong)?;
    let (folder, manifest) = Folder::open(path)?;
    let (run, found) = (&accepted.run, &manifest.fingerprint);
    let message = format_args!("it accepts the run {run}, and the run next to it is {found}");
    refuse(found != run, message).map_err(wrong)?;
    Ok(Baseline {
        path: folder.path,
        manifest,
        accepted,
    })
}

/// Returns the folders in a folder, sorted by name; none if the folder does not exist.
fn folders(path: &Path) -> Result<Vec<PathBuf>> {
    if !path.exists() {
        return Ok(Vec::new());
    }
    let mut paths = entries(path, "read")?;
    paths.retain(|path| path.is_dir());
    Ok(paths)
}
