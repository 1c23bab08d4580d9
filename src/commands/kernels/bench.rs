//! `ulplab kernels bench`: times all timed cases of the kernels on this GPU, next to peers (kernels of other libraries) and the
//! limits of the hardware.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::backend::cuda::{Device, Session};
use crate::ops::{COMPOSITIONS, OPS};
use crate::run::{now, runs};
use crate::studies::kernels::file;
use crate::{itself, shipped};
use ulplab_core::error::{Error, Exit, Result};
use ulplab_core::pattern::matches;

/// Time every timed case of the kernels on this machine's GPU, next to their peers and to kernels that only move the bytes.
///
/// First `experiments/peers/kernels.py` checks and times the peers that are installed for Python (torch, Triton, torchao, fla).
/// Processes compile peers and ulplab's kernels in parallel; one process at a time uses the GPU. Then `ulplab kernels time`
/// checks ulplab's kernels, and times those that are right. Both print a line for each time, and the remaining work. All results
/// are stored: the same command with the same --out continues where it was stopped. The exit code is 103 if peers are left out,
/// or if Python lacks the module of a peer.
#[derive(Debug, clap::Args)]
pub struct BenchArgs {
    /// Folder of the results: `peers.json`, and the run folder `run` for `ulplab report` and `ulplab diff` [default:
    /// runs/bench_kernels/<time>].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Time only cells whose id (recipe/phase/window) matches, and no peers of other operations.
    #[arg(long, value_name = "GLOB")]
    only: Option<String>,
    /// Also time the variants called `simple` on cases that another variant supports.
    #[arg(long)]
    simple: bool,
    /// Seconds after which no further peer is timed; peers.json lists the peers left out. 0 times no peer.
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    peer_seconds: u32,
    /// Python interpreter with the modules of the peers (torch, Triton, torchao, fla).
    #[arg(long, value_name = "PROGRAM", default_value = "python3")]
    python: PathBuf,
    /// Processes that check kernels in parallel; one process at a time measures times [default: half of the cores, at most 8].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    jobs: Option<u16>,
}

/// The shipped script that times the peers (kernels of other libraries).
const PEERS: &str = "experiments/peers/kernels.py";

pub fn run(args: &BenchArgs) -> Result<Exit> {
    let out = args.out.clone().unwrap_or_else(|| runs::fresh("bench_kernels", &now()));
    std::fs::create_dir_all(&out).map_err(Error::io(&out, "create"))?;
    let (peers, run) = (out.join("peers.json"), out.join("run"));
    // Times the peers only for a new run. A resumed run keeps the times that its first session stored.
    if args.peer_seconds > 0 && !run.exists() {
        std::thread::scope(|scope| {
            scope.spawn(|| compile_ahead(args));
            time_peers(args, &peers)
        })?;
    }
    let mut command = itself::command()?;
    command.args(["kernels", "time", "--out"]).arg(&run);
    command.args((!args.simple).then_some("--fast-only"));
    command.args(run.exists().then_some("--resume"));
    if peers.exists() {
        command.arg("--peers").arg(&peers);
    }
    command.args(args.only.iter().flat_map(|only| ["--only", only]));
    if let Some(jobs) = args.jobs {
        command.args(["--jobs", &jobs.to_string()]);
    }
    // `exec` replaces this process: `kernels time` receives the signals and sets the exit code.
    let why = command.exec();
    Err(Error::Setup(format!("{}: {why}", command.get_program().display())))
}

/// Times the peers (kernels of other libraries) that `file` lacks. Peers that fail are printed and left out of the file.
fn time_peers(args: &BenchArgs, file: &Path) -> Result<()> {
    let missing = || Error::Setup(format!("{PEERS} not found among the shipped files"));
    let script = shipped::find(PEERS).ok_or_else(missing)?;
    let mut command = Command::new(&args.python);
    command.arg(script).arg(file);
    command.args(["--seconds", &args.peer_seconds.to_string()]);
    if let Some(only) = &args.only {
        command.args(["--only", &case_pattern(only)]);
    }
    let python = args.python.display();
    let ended = command.status();
    let ended = ended.map_err(|why| Error::Setup(format!("{python}: {why}")))?;
    // Exit code `Incomplete` is not an error: the file then names the peers that are left out.
    if !ended.success() && ended.code() != Some(Exit::Incomplete as i32) {
        errln!("no peers from here on: {python} {PEERS} ended with {ended}; --peer-seconds 0 leaves them out");
    }
    Ok(())
}

/// Compiles ulplab's kernels into the cache while the peers (kernels of other libraries) are timed. An error here occurs again in
/// the run, which reports it.
fn compile_ahead(args: &BenchArgs) {
    let Ok(device) = Device::open() else { return };
    let Ok(session) = Session::open(&device) else { return };
    let only = args.only.as_deref().map_or("*", operation_pattern);
    for op in OPS.iter().filter(|op| matches(only, op.name())) {
        let Ok(source) = file(*op, &COMPOSITIONS) else { continue };
        let cases = op.cases();
        let variants = source.header.variants.iter();
        let works = variants.flat_map(|variant| cases.iter().map(move |case| (None, variant, case)));
        session.compile_ahead(&source, &works.collect::<Vec<_>>());
    }
}

/// Returns the operation in a pattern of cells: the part before the first `.` or `/`.
fn operation_pattern(only: &str) -> &str {
    only.split(['.', '/']).next().unwrap_or(only)
}

/// Converts a pattern of cells (`operation.variant/phase/case`) to the pattern of the peers (`operation/case`).
pub fn case_pattern(only: &str) -> String {
    let op = operation_pattern(only);
    let case = only.rsplit('/').next().unwrap_or("*").replace("**", "*");
    format!("{op}/{case}")
}
