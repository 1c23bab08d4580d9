//! Processes that share a run: each works on the cells of one operation at a time, or on a share of its cases and of the faults
//! that are planted in it, as `--partition op:NAME:M/N` does.
//!
//! They are processes, not threads, since a kernel with an illegal access, or one that never returns, ends the process that
//! launched it. What a process leaves in the run's folder counts, and nothing else: the cells of one that ended early are missing,
//! so that the run is incomplete.

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

/// Threads of all processes together, for each core: some wait for a compiler or a card while others compute. With as many threads in each
/// process as there are cores, a machine of 64 had a load of 700.
const THREADS_OF_A_CORE: usize = 3;
/// The variable that says how many threads a process has.
const THREADS: &str = "ULPLAB_THREADS";
/// Time between two counts of finished cells.
const INTERVAL: Duration = Duration::from_millis(500);
/// Time between two lines on their number if no bar shows it.
const SAID: Duration = Duration::from_secs(10);

/// The processes of a run.
pub struct Processes {
    /// The pieces of work, begun in this order.
    pub pieces: Vec<Partition>,
    /// The value of `CUDA_VISIBLE_DEVICES` for each process; none if it stays as it is.
    pub cards: Vec<Option<String>>,
}

impl Processes {
    /// Runs all pieces to their ends, and shows how many cells are finished. Standard error of the processes is passed on, and an early
    /// end is printed; the run's folder tells whether the run is complete.
    ///
    /// # Errors
    /// If a process cannot be started, or a signal came.
    pub fn run(&self, folder: &Folder, cells: &[Cell], bar: &ProgressBar) -> Result<()> {
        let queue = Mutex::new(self.pieces.iter().collect::<VecDeque<_>>());
        let next = || queue.lock().ok()?.pop_front();
        // If the user does not say how many.
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

/// Cores of this machine.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Threads of each of so many processes on a machine with so many cores; an option on their command line comes before it.
pub fn threads_of(cores: usize, processes: usize) -> usize {
    (THREADS_OF_A_CORE * cores / processes.max(1)).clamp(2, cores.clamp(2, 1024))
}

/// Options of this process that those that share its run must not have: their number of words.
const DROPPED: [(&str, usize); 6] = [
    ("--jobs", 2),
    ("--devices", 2),
    ("--out", 2),
    ("--resume", 1),
    ("--json", 1),
    ("--no-progress", 1),
];

/// The command line of a process for one piece, made of this process's own.
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
