//! Child processes that share the cells (units of work) of a run. Each process runs the cells of one operation at a time, or a
//! part of the operation's cases and planted faults, as with `--partition op:NAME:M/N`.
//!
//! Threads are not enough: a kernel that makes an illegal access or never returns ends the whole process that launched it. Only
//! the files that a process leaves in the run's folder count. If a process ends early, its cells are missing, and the run is
//! incomplete.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;

use crate::itself;
use crate::run::folder::Folder;
use crate::run::partition::Partition;
use crate::run::plan::Cell;
use crate::signal;
use ulplab_core::error::{Error, Result};

/// Threads of all processes together, per core: some threads wait for a compiler or a GPU while others compute. With one thread
/// per core in each process, a machine with 64 cores had a load of 700.
const THREADS_OF_A_CORE: usize = 3;
/// Environment variable with the number of threads of a process.
const THREADS: &str = "ULPLAB_THREADS";
/// Time between two counts of finished cells.
const INTERVAL: Duration = Duration::from_millis(500);
/// Time between two printed lines with the number of finished cells, if no progress bar shows it.
const SAID: Duration = Duration::from_secs(10);

/// The child processes of a run.
pub struct Processes {
    /// The pieces of work, in the order in which they are started.
    pub pieces: Vec<Partition>,
    /// The value of `CUDA_VISIBLE_DEVICES` for each process; `None` leaves the variable unchanged.
    pub cards: Vec<Option<String>>,
}

impl Processes {
    /// Runs the child processes for all pieces of work, and shows the number of finished cells. Forwards the processes' standard
    /// error, and prints a line if a process is killed. The run's folder tells whether the run is complete.
    ///
    /// # Errors
    /// Returns an error if a process cannot be started, or if this process receives a signal.
    pub fn run(&self, folder: &Folder, cells: &[Cell], bar: &ProgressBar) -> Result<()> {
        let queue = Mutex::new(self.pieces.iter().collect::<VecDeque<_>>());
        let next = || queue.lock().ok()?.pop_front();
        // Each process has this number of threads unless the user sets another.
        let threads = threads_of(cores(), self.cards.len());
        let work = |card: &Option<String>| -> Result<()> {
            while let Some(piece) = next().filter(|_| !signal::STOP.load(Ordering::Relaxed)) {
                let mut command = itself::command()?;
                command.args(arguments(&itself::start().words, &folder.path, piece));
                command.stdin(Stdio::null()).stdout(Stdio::null());
                command.stderr(Stdio::piped());
                if let Some(card) = card {
                    command.env("CUDA_VISIBLE_DEVICES", card);
                }
                if std::env::var_os(THREADS).is_none() {
                    command.env(THREADS, threads.to_string());
                }
                let started = command.spawn();
                let failed = |why| Error::Setup(format!("{}: {why}", command.get_program().display()));
                let mut child = started.map_err(failed)?;
                let own = format!("{piece} is done");
                let said = child.stderr.take().into_iter();
                for line in said.flat_map(|said| BufReader::new(said).lines()) {
                    let Ok(line) = line else { break };
                    if !line.contains(&own) {
                        bar.suspend(|| errln!("{line}"));
                    }
                }
                let ended = child.wait().map_err(|why| Error::Setup(format!("{piece}: {why}")))?;
                if ended.code().is_none() {
                    bar.suspend(|| errln!("the process for {piece} was killed: {ended}"));
                }
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = self.cards.iter().map(|card| scope.spawn(|| work(card))).collect();
            let (begun, mut said) = (Instant::now(), Instant::now());
            while threads.iter().any(|thread| !thread.is_finished()) {
                std::thread::sleep(INTERVAL);
                let done = cells.iter().filter(|cell| folder.has(&cell.id)).count();
                bar.set_position(done as u64);
                if bar.is_hidden() && said.elapsed() > SAID {
                    said = Instant::now();
                    errln!("{done} of {} cells after {} s", cells.len(), begun.elapsed().as_secs());
                }
            }
            let threads = threads.into_iter();
            let ended = threads.map(|thread| thread.join().expect("the thread does not panic"));
            ended.collect::<Result<Vec<()>>>()
        })?;
        bar.finish_and_clear();
        if signal::STOP.load(Ordering::Relaxed) {
            return Err(Error::Interrupted);
        }
        Ok(())
    }
}

/// Returns the number of cores of this machine.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Returns the number of threads for each of `processes` processes on a machine with `cores` cores. An option on the command line
/// overrides this number.
pub fn threads_of(cores: usize, processes: usize) -> usize {
    (THREADS_OF_A_CORE * cores / processes.max(1)).clamp(2, cores.clamp(2, 1024))
}

/// Options of this process that its child processes must not get, each with the number of words to drop.
const DROPPED: [(&str, usize); 6] = [
    ("--jobs", 2),
    ("--devices", 2),
    ("--out", 2),
    ("--resume", 1),
    ("--json", 1),
    ("--no-progress", 1),
];

/// Returns the command line of the child process for one piece, derived from this process's own command line.
pub fn arguments(own: &[OsString], run: &Path, piece: &Partition) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = Vec::new();
    let mut own = own.iter();
    while let Some(argument) = own.next() {
        let word = argument.to_string_lossy().into_owned();
        let dropped = DROPPED.iter().find(|(name, words)| {
            word == *name || *words == 2 && word.strip_prefix(name).is_some_and(|rest| rest.starts_with('='))
        });
        match dropped {
            None => arguments.push(argument.clone()),
            Some((name, 2)) if word == *name => drop(own.next()),
            Some(_) => {}
        }
    }
    arguments.extend(["--jobs", "1", "--no-progress", "--out"].map(OsString::from));
    arguments.extend([run.into(), "--partition".into(), piece.to_string().into()]);
    arguments
}
