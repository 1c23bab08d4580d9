//! Sessions of processes that worked on a run: one small file per process, for progress reports. No verdict depends on sessions.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::plan::Cell;
use super::{now, scheduler};
use crate::{json, signal};
use ulplab_core::atomic::{is_temporary, write_atomic};
use ulplab_core::error::{Error, Result};
use ulplab_core::input;
use ulplab_core::text::shown;

/// Time between two writes of a session file while its process works.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// Time without a write of the session file after which a process is taken for dead. A living process writes the file several
/// times in that time.
const SILENCE: SignedDuration = SignedDuration::from_secs(60);
/// Value of `ended` after a success.
const DONE: &str = "done";

/// Work of one process on a run. If the process is killed, the last written state remains in its session file.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Session {
    /// Time at which the process began, in RFC 3339.
    pub started_at: String,
    /// Seconds from the start to the last write of the session file.
    pub seconds: f64,
    /// `slice:M/N` if the process works on a share of the cells; `None` for all cells.
    pub partition: Option<String>,
    pub threads: usize,
    /// Number of cells that the process finished.
    pub cells: usize,
    /// Estimated cost of the finished cells.
    #[serde(default)]
    pub cost: u64,
    /// Name of the machine.
    pub host: Option<String>,
    /// The scheduler's name of the task.
    pub task: Option<String>,
    /// Number of times that the scheduler had restarted the task when this session began.
    #[serde(default)]
    pub restarts: u32,
    /// `done`, or the error message; `None` while the process works, or if it was killed.
    pub ended: Option<String>,
    /// True if the scheduler has restarted the task of this session: the session's process is dead. Not part of the file.
    #[serde(skip)]
    restarted: bool,
}

/// The state of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    Running,
    Done,
    /// The process ended with this error.
    Failed(String),
    /// The process stopped without writing `ended`: it was killed, ran out of memory, or its machine went down.
    Died,
}

impl Session {
    /// Returns the state of the process at the time `at`.
    pub fn state(&self, at: Timestamp) -> State {
        match self.ended.as_deref() {
            Some(DONE) => State::Done,
            Some(error) => State::Failed(error.into()),
            None if self.restarted => State::Died,
            None if self.last_sign().is_some_and(|last| at.duration_since(last) <= SILENCE) => State::Running,
            None => State::Died,
        }
    }

    /// Returns the time of the last write of the session file by its process.
    pub fn last_sign(&self) -> Option<Timestamp> {
        let begin: Timestamp = self.started_at.parse().ok()?;
        let worked = SignedDuration::try_from_secs_f64(self.seconds.max(0.0)).ok()?;
        begin.checked_add(worked).ok()
    }

    /// Describes the process by its share, machine and scheduler name, as far as known.
    pub fn who(&self) -> String {
        let share = self.partition.clone().unwrap_or("all cells".into());
        let host = self.host.as_ref().map(|host| format!("on {host}"));
        let task = self.task.as_ref().map(|task| format!("({task})"));
        let known = [Some(share), host, task].into_iter().flatten();
        known.collect::<Vec<_>>().join(" ")
    }
}

/// The session of this process while it works. A thread writes the session's file regularly: other processes see that this
/// process is alive.
pub struct ActiveSession {
    work: Arc<Work>,
    /// Channel that is dropped to end the thread.
    alive: Option<Sender<()>>,
    heart: Option<JoinHandle<()>>,
}

struct Work {
    file: PathBuf,
    begun: Session,
    clock: Instant,
    cells: AtomicUsize,
    cost: AtomicU64,
}

impl Work {
    fn write(&self, ended: Option<String>) -> Result<()> {
        let session = Session {
            seconds: self.clock.elapsed().as_secs_f64(),
            cells: self.cells.load(Ordering::Relaxed),
            cost: self.cost.load(Ordering::Relaxed),
            ended,
            ..self.begun.clone()
        };
        let text = serde_json::to_vec_pretty(&json::keys(&session)).expect("plain data has a form in JSON");
        write_atomic(&self.file, |out| out.write_all(&text))
    }
}

impl ActiveSession {
    /// Begins a session in a new file in `folder`.
    pub fn begin(folder: &Path, partition: Option<String>) -> Result<Self> {
        let variable = |name: &str| std::env::var(name).ok();
        let own = || Some(nix::unistd::gethostname().ok()?.to_string_lossy().into_owned());
        let begun = Session {
            started_at: now(),
            partition,
            threads: rayon::current_num_threads(),
            host: variable("SLURMD_NODENAME").or_else(own),
            task: scheduler::task(variable),
            restarts: scheduler::restarts(variable),
            ..Session::default()
        };
        let prefix = format!("{}-", begun.started_at.replace(':', ""));
        let mut builder = tempfile::Builder::new();
        let file = builder.prefix(&prefix).suffix(".json").disable_cleanup(true);
        let file = file.make_in(folder, |path| File::create_new(path));
        let file = file.map_err(Error::io(folder, "create a file in"))?;
        let work = Arc::new(Work {
            file: file.path().into(),
            begun,
            clock: Instant::now(),
            cells: AtomicUsize::new(0),
            cost: AtomicU64::new(0),
        });
        work.write(None)?;
        let (alive, ended) = mpsc::channel::<()>();
        let beats = Arc::clone(&work);
        let heart = std::thread::spawn(move || {
            while ended.recv_timeout(HEARTBEAT) == Err(RecvTimeoutError::Timeout) {
                // Ignore a failed write of the session file: the next write may succeed, and the cells have files of their own.
                let _ = beats.write(None);
            }
        });
        let interrupted = Arc::downgrade(&work);
        signal::at_end(move || {
            if let Some(work) = interrupted.upgrade() {
                let _ = work.write(Some(Error::Interrupted.to_string()));
            }
        });
        Ok(Self {
            work,
            alive: Some(alive),
            heart: Some(heart),
        })
    }

    /// Counts a finished cell.
    pub fn finished(&self, cell: &Cell) {
        self.work.cells.fetch_add(1, Ordering::Relaxed);
        self.work.cost.fetch_add(cell.cost, Ordering::Relaxed);
    }

    /// Stops the thread, and writes the result to the session file: success or the error.
    pub fn end(mut self, failed: Option<&Error>) -> Result<()> {
        self.stop();
        self.work.write(Some(failed.map_or(DONE.into(), Error::to_string)))
    }

    fn stop(&mut self) {
        self.alive = None;
        self.heart.take().map(JoinHandle::join);
    }
}

impl Drop for ActiveSession {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Returns the sessions (the work of one process each) in a folder, ordered by their start. Leaves out unreadable files.
pub fn sessions(folder: &Path) -> Vec<Session> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let files = entries.filter(|entry| !is_temporary(&entry.file_name()));
    let texts = files.filter_map(|entry| input::bytes(&entry.path()).ok());
    let mut sessions: Vec<Session> = texts.filter_map(|text| serde_json::from_slice(&text).ok()).collect();
    for session in &mut sessions {
        let [a, b, c] = [&mut session.partition, &mut session.host, &mut session.task];
        let texts = [a, b, c, &mut session.ended].into_iter().flatten();
        texts.for_each(|text| *text = shown(text));
    }
    sessions.sort_by(|a, b| a.started_at.cmp(&b.started_at));
    let mut last: HashMap<String, u32> = HashMap::new();
    for Session { task, restarts, .. } in &sessions {
        let last = last.entry(task.clone().unwrap_or_default()).or_default();
        *last = (*last).max(*restarts);
    }
    for session in &mut sessions {
        let last = session.task.as_ref().and_then(|task| last.get(task));
        session.restarted = last.is_some_and(|last| session.restarts < *last);
    }
    sessions
}

/// True if a folder has at least one session file, and the processes of all session files have ended.
pub fn all_ended(folder: &Path) -> bool {
    let (sessions, now) = (sessions(folder), Timestamp::now());
    !sessions.is_empty() && sessions.iter().all(|session| session.state(now) != State::Running)
}

/// Returns the number of seconds in which at least one session of the folder was working. Overlapping sessions count once.
pub fn seconds(folder: &Path) -> f64 {
    let times = sessions(folder).into_iter().filter_map(|session| {
        let begin = session.started_at.parse::<Timestamp>().ok()?.as_second() as f64;
        Some((begin, begin + session.seconds.max(0.0)))
    });
    let mut times: Vec<(f64, f64)> = times.collect();
    times.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (mut sum, mut until) = (0.0, f64::NEG_INFINITY);
    for (begin, end) in times {
        sum += (end - begin.max(until)).max(0.0);
        until = until.max(end);
    }
    sum
}
