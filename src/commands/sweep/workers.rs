//! Processes that share a run of kernels: each works on the cells of one operation at a time, or on a share of its cases and of the faults
//! that are planted in it, as `--partition op:NAME:M/N` does.
//!
//! They are processes, not threads, since a kernel with an illegal access, or one that never returns, ends whoever launched it. What
//! a process leaves in the run's folder counts, and nothing else: the cells of one that ended early are missing, so that the run is
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
use crate::run::partition::{Partition, Share};
use crate::run::plan::Cell;
use crate::signal;
use crate::studies::kernels::{Devices, Workers, ops_of};
use ulplab_core::error::{Error, Result};

/// Operations whose cells take longest, measured on two H100s, and whose references of timed cases take more than 25 s of a core: begun
/// first, so that none of them is the last to end, and shared among GPUs.
pub const LONGEST: [&str; 12] = [
    "delta_decode",
    "decode_step",
    "delta_prefill",
    "delta_handover",
    "fp4_gemm",
    "diagonal_ssm",
    "swap_ffn",
    "moe_fp4",
    "record_write",
    "record_attention",
    "record_read",
    "linear",
];
/// More processes on a card than that wait for each other.
const MOST_JOBS: usize = 8;
/// Into how many shares one of those that take longest is cut where faults are planted, and any at most: each makes the problems that it
/// judges by again.
const LONG_SHARES: usize = 4;
pub const MOST_SHARES: usize = 8;
/// Threads of all processes together, for each core: some wait for a compiler or a card while others compute. With as many threads in each
/// process as there are cores, a machine of 64 had a load of 700.
const THREADS_OF_A_CORE: usize = 3;
/// The variable that says how many threads a process has.
const THREADS: &str = "ULPLAB_THREADS";
/// How often finished cells are counted.
const INTERVAL: Duration = Duration::from_millis(500);
/// How often their number is said where no bar shows it.
const SAID: Duration = Duration::from_secs(10);

/// The processes of a run.
pub struct Shared {
    /// What is to be done, in this order.
    pieces: Vec<Partition>,
    /// What `CUDA_VISIBLE_DEVICES` is for each process; none if it stays as it is.
    cards: Vec<Option<String>>,
}

impl Shared {
    /// Processes for these cells on a machine with so many GPUs; none if one process does it as well. Programs on a machine without a GPU
    /// are shared if the user says so.
    ///
    /// # Errors
    /// A GPU that does not exist.
    pub fn new(workers: &Workers, cells: &[Cell], faults: bool, gpus: usize) -> Result<Option<Self>> {
        let mut ops = ops_of(cells);
        ops.sort_by_key(|op| {
            LONGEST
                .iter()
                .position(|longest| longest == op)
                .unwrap_or(LONGEST.len())
        });
        let cards = cards(&workers.devices, gpus)?;
        let cores = cores();
        let most = if gpus == 0 { 1 } else { MOST_JOBS };
        let jobs = workers.jobs.unwrap_or((cores / 2 / cards.len()).clamp(1, most));
        let mut each: Vec<Option<String>> = Vec::new();
        for _ in 0..jobs {
            each.extend(cards.iter().cloned());
        }
        let pieces = pieces(&ops, cards.len(), if faults { each.len() } else { 0 });
        each.truncate(pieces.len());
        let alone = each.len() <= 1 && each.iter().all(Option::is_none);
        Ok((!alone).then_some(Self { pieces, cards: each }))
    }

    /// Runs all of them to their ends, and shows how many cells are finished. What they say on standard error is passed on.
    ///
    /// # Errors
    /// A process cannot be started, or a signal came. That one ended early is said; whether the run is whole is for its folder to tell.
    pub fn run(&self, folder: &Folder, cells: &[Cell], bar: &ProgressBar) -> Result<()> {
        let queue = Mutex::new(self.pieces.iter().collect::<VecDeque<_>>());
        let next = || queue.lock().ok()?.pop_front();
        // If the user does not say how many.
        let threads = threads_of(cores(), self.cards.len());
        let work = |card: &Option<String>| -> Result<()> {
            while let Some(piece) = next().filter(|_| !signal::STOP.load(Ordering::Relaxed)) {
                let mut command = itself::command()?;
                command.args(arguments(itself::words(), &folder.path, piece));
                command
                    .stdin(Stdio::null())
                    .stdout(Stdio::null())
                    .stderr(Stdio::piped());
                if let Some(card) = card {
                    command.env("CUDA_VISIBLE_DEVICES", card);
                }
                if std::env::var_os(THREADS).is_none() {
                    command.env(THREADS, threads.to_string());
                }
                let started = command.spawn();
                let mut child =
                    started.map_err(|why| Error::Setup(format!("{}: {why}", command.get_program().display())))?;
                let own = format!("{piece} is done");
                for line in child
                    .stderr
                    .take()
                    .into_iter()
                    .flat_map(|said| BufReader::new(said).lines())
                {
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
            let ended = threads
                .into_iter()
                .map(|thread| thread.join().expect("the thread does not panic"));
            ended.collect::<Result<Vec<()>>>()
        })?;
        bar.finish_and_clear();
        if signal::STOP.load(Ordering::Relaxed) {
            return Err(Error::Interrupted);
        }
        Ok(())
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Threads of each of so many processes on a machine with so many cores; an option on their command line comes before it.
pub fn threads_of(cores: usize, processes: usize) -> usize {
    (THREADS_OF_A_CORE * cores / processes.max(1)).clamp(2, cores.clamp(2, 1024))
}

/// The operations, of which those that take longest are cut into a share for each card. Where processes plant faults, each of which can be
/// planted on its own, all are cut into more, if else there were too few for them.
pub fn pieces(ops: &[&str], cards: usize, planting: usize) -> Vec<Partition> {
    let each = planting.div_ceil(ops.len().max(1)).clamp(1, MOST_SHARES);
    let cut = |op: &&str| {
        let n = match LONGEST.contains(op) {
            true => cards.max(each).max(planting.min(LONG_SHARES)),
            false => each,
        };
        let op = op.to_string();
        (1..=n).map(move |m| Partition::Op(op.clone(), Share { m, n }))
    };
    ops.iter().flat_map(cut).collect()
}

/// What `CUDA_VISIBLE_DEVICES` is for each of the GPUs, of `count` that are visible.
pub fn cards(devices: &Devices, count: usize) -> Result<Vec<Option<String>>> {
    let numbers: Vec<usize> = match devices {
        // What runs then are programs, which need none.
        _ if count == 0 => return Ok(vec![None]),
        Devices::First => return Ok(vec![None]),
        Devices::These(numbers) if *numbers == [0] => return Ok(vec![None]),
        Devices::All if count <= 1 => return Ok(vec![None]),
        Devices::All => (0..count).collect(),
        Devices::These(numbers) => numbers.clone(),
    };
    if let Some(missing) = numbers.iter().find(|number| **number >= count) {
        let last = count.saturating_sub(1);
        return Err(Error::Usage(format!(
            "--devices: there is no GPU {missing}: the visible ones are 0 to {last}"
        )));
    }
    // A number is one of those that are visible to this process.
    let visible = std::env::var("CUDA_VISIBLE_DEVICES")
        .ok()
        .filter(|visible| !visible.is_empty());
    let names: Option<Vec<&str>> = visible
        .as_deref()
        .map(|visible| visible.split(',').map(str::trim).collect());
    let name = |number: usize| match &names {
        Some(names) => names.get(number).map(ToString::to_string),
        None => Some(number.to_string()),
    };
    Ok(numbers.into_iter().map(name).collect())
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
    let more = ["--jobs", "1", "--no-progress", "--out"].map(OsString::from);
    arguments.extend(more);
    arguments.push(run.into());
    arguments.push("--partition".into());
    arguments.push(piece.to_string().into());
    arguments
}
