//! `ulplab status`: the progress of a run, on any machine that can read the folder of the run.

use std::collections::HashSet;
use std::path::PathBuf;

use jiff::Timestamp;
use serde::Serialize;

use super::judged::open_run;
use crate::json;
use crate::run::Manifest;
use crate::run::folder::Folder;
use crate::run::partition::{PartitionArg, cost};
use crate::run::plan::Cell;
use crate::run::session::{Session, State, sessions};
use ulplab_core::error::{Exit, Result, counted};
use ulplab_core::text::shown;

/// Show the progress of a run: done, running and missing cells, the time left, and the last failed task. Reads only the folder of
/// the run, without a scheduler.
///
/// Exit code: 0 for any state.
#[derive(Debug, clap::Args)]
pub struct StatusArgs {
    /// Folder of the run [default: the newest below runs/].
    #[arg(value_name = "FOLDER")]
    pub run: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// The progress of a run.
#[derive(Debug, Serialize)]
struct Status {
    /// Number of cells that the run measures.
    cells: usize,
    done: usize,
    /// The share of the estimated cost that is done, from 0 to 1.
    done_cost: f64,
    /// Number of cells that are not done and belong to the partition of a running task.
    running: usize,
    /// Number of cells that are not done and do not belong to the partition of a running task.
    missing: usize,
    tasks: Tasks,
    /// Estimated seconds until the running tasks are done; `None` if unknown.
    seconds_left: Option<f64>,
    last_failure: Option<Failure>,
}

/// Number of tasks by state. A task that the scheduler restarted counts once for each start.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Tasks {
    running: usize,
    done: usize,
    failed: usize,
    died: usize,
}

#[derive(Debug, Serialize)]
struct Failure {
    task: String,
    /// Time at which the task last wrote its session file.
    at: String,
    cells: usize,
    why: String,
    /// Number of cells of the failed task's partition that are still not done.
    still_missing: usize,
}

pub fn run(args: &StatusArgs) -> Result<Exit> {
    let (folder, manifest) = open_run(args.run.as_deref())?;
    let status = Status::of(&folder, &manifest, Timestamp::now())?;
    match args.json {
        true => outln!("{}", json::line(&json::keys(&status))),
        false => status.print(&folder, &manifest.experiment.name),
    }
    Ok(Exit::Pass)
}

impl Status {
    fn of(folder: &Folder, manifest: &Manifest, at: Timestamp) -> Result<Self> {
        let kept: HashSet<&str> = manifest.cells.iter().map(String::as_str).collect();
        let mut cells = manifest.plan.cells();
        cells.retain(|cell| kept.contains(cell.id.as_str()));
        let missing: HashSet<&str> = folder.missing(manifest)?.into_iter().collect();
        let sessions = sessions(&folder.sessions());
        // Returns the cells that are not done in the partition of a session (a process that measures cells).
        let left = |session: &Session| -> Vec<&Cell> {
            let mut share = match session.partition.as_deref().map(str::parse) {
                Some(Ok(PartitionArg::Given(partition))) => partition.of(&manifest.plan, &cells).unwrap_or_default(),
                Some(_) => Vec::new(),
                None => cells.iter().collect(),
            };
            share.retain(|cell| missing.contains(cell.id.as_str()));
            share
        };
        let mut tasks = Tasks::default();
        let mut running: HashSet<&str> = HashSet::new();
        let mut longest = 0;
        for session in &sessions {
            match session.state(at) {
                State::Running => {
                    let left = left(session);
                    tasks.running += 1;
                    longest = longest.max(cost(left.iter().copied()));
                    running.extend(left.iter().map(|cell| cell.id.as_str()));
                }
                State::Done => tasks.done += 1,
                State::Failed(_) => tasks.failed += 1,
                State::Died => tasks.died += 1,
            }
        }
        let worked: u64 = sessions.iter().map(|session| session.cost).sum();
        let seconds: f64 = sessions.iter().map(|session| session.seconds).sum();
        let ended_badly = |session: &&Session| matches!(session.state(at), State::Failed(_) | State::Died);
        let ended = sessions.iter().filter(ended_badly);
        let last = ended.max_by_key(|session| session.last_sign());
        let at_time = |at: Timestamp| at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let all = cost(&cells);
        let undone = cost(cells.iter().filter(|cell| missing.contains(cell.id.as_str())));
        Ok(Self {
            cells: cells.len(),
            done: cells.len() - missing.len(),
            done_cost: (all - undone) as f64 / all.max(1) as f64,
            running: running.len(),
            missing: missing.len() - running.len(),
            seconds_left: (tasks.running > 0 && worked > 0).then(|| longest as f64 * seconds / worked as f64),
            tasks,
            last_failure: last.map(|session| Failure {
                task: session.who(),
                at: session.last_sign().map_or(String::new(), at_time),
                cells: session.cells,
                why: match session.state(at) {
                    State::Failed(why) => why,
                    _ => "it fell silent: killed, out of memory, or its machine went down".into(),
                },
                still_missing: left(session).len(),
            }),
        })
    }

    fn print(&self, folder: &Folder, experiment: &str) {
        let path = folder.path.display();
        let (share, done, cells) = (100.0 * self.done_cost, self.done, self.cells);
        let experiment = shown(experiment);
        outln!("{experiment}: {done} of {cells} cells are done, {share:.1} % of the estimated cost");
        let (running, failed) = (self.tasks.running, self.tasks.failed);
        let (done, died) = (self.tasks.done, self.tasks.died);
        outln!("tasks: {running} at work, {done} done, {failed} failed, {died} died");
        if running > 0 {
            let cells = counted(self.running, "cell");
            match self.seconds_left {
                Some(left) => outln!("those at work have {cells} to do: about {} left", duration(left)),
                None => outln!("those at work have {cells} to do, and have finished none that tells how long it takes"),
            }
        }
        if self.missing > 0 {
            let verb = if self.missing == 1 { "is" } else { "are" };
            let cells = counted(self.missing, "cell");
            outln!("{cells} {verb} missing, and no task at work has them in its share; start those tasks again");
        }
        if self.done == self.cells {
            outln!("`ulplab merge {path}` judges the run");
        }
        if let Some(failure) = &self.last_failure {
            let (task, at, why) = (&failure.task, &failure.at, &failure.why);
            let after = counted(failure.cells, "cell");
            let text = format!("last to fail: {task}, last heard of at {at} after {after}: {why}");
            outln!("{}", shown(&text));
            match failure.still_missing {
                0 => outln!("  its share has been done since"),
                missing => outln!("  {} of its share still to be done", counted(missing, "cell")),
            }
        }
    }
}

/// Formats seconds for a reader, in seconds, minutes or hours.
fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 100.0 => format!("{s:.0} s"),
        s if s < 6000.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.1} h", s / 3600.0),
    }
}
