//! `ulplab dev bench`: times of the reference, and of conversions of formats and layouts.

pub mod formats;
mod layouts;

use std::path::{Path, PathBuf};
use std::time::Instant;

use reference::Plain;
use reference::paths::Input;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::dataset::{Checkpoint, Manifest as Datasets};
use crate::json;
use ulplab_core::error::{Error, Exit, Result};
use ulplab_core::input;

/// Time the FP32 reference: one forward over a window, and one decode step after it.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct BenchArgs {
    #[command(subcommand)]
    pub command: Option<BenchCommand>,
    /// Checkpoint: a name from datasets/manifest.toml, or a folder.
    #[arg(long, default_value = "dsv4-mini")]
    pub model: String,
    /// Tokens of the forward, and context of the decode step.
    #[arg(long, default_value_t = 512)]
    pub tokens: usize,
    /// Number of repetitions.
    #[arg(long, default_value_t = 9)]
    pub repeats: usize,
    /// File with the figures of a peer, written by experiments/peers/transformers_forward.py.
    #[arg(long, value_name = "FILE")]
    pub peer: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// Folder of the data sets [default: $ULPLAB_DATASETS, or datasets/ here or in a folder above].
    #[arg(long, value_name = "DIR")]
    pub datasets: Option<PathBuf>,
}

/// Other things to time.
#[derive(Debug, clap::Subcommand)]
pub enum BenchCommand {
    Formats(formats::FormatsArgs),
    Layouts(layouts::LayoutsArgs),
}

/// Seconds of repeated runs.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Timing {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

/// Also printed by the peer scripts.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Figures {
    /// Name of the program.
    pub name: String,
    pub threads: usize,
    pub tokens: usize,
    /// One forward of `tokens` tokens.
    pub forward: Timing,
    /// One token after them.
    pub decode: Timing,
}

pub fn run(args: &BenchArgs) -> Result<Exit> {
    match &args.command {
        Some(BenchCommand::Formats(args)) => return formats::run(args),
        Some(BenchCommand::Layouts(args)) => return layouts::run(args),
        None => {}
    }
    if args.tokens == 0 || args.repeats == 0 {
        return Err(Error::Usage("--tokens and --repeats must be 1 or more".into()));
    }
    let peer: Option<Figures> = args.peer.as_deref().map(read).transpose()?;
    let ours = measure(args)?;
    if args.json {
        json::print(&ours)?;
        return Ok(Exit::Pass);
    }
    let row = |name: &str, what: &str, time: Timing| {
        let [median, min, max] = [time.median, time.min, time.max].map(|seconds| seconds * 1e3);
        outln!("{name:24} {what:16} {median:9.2} ms  ({min:.2} to {max:.2})");
    };
    for figures in [Some(&ours), peer.as_ref()].into_iter().flatten() {
        let forward = format!("forward of {}", figures.tokens);
        row(&figures.name, &forward, figures.forward);
        row(&figures.name, "decode step", figures.decode);
    }
    if let Some(peer) = &peer {
        let (tokens, threads) = (peer.tokens, peer.threads);
        let forward = peer.forward.median / ours.forward.median;
        let decode = peer.decode.median / ours.decode.median;
        match (tokens, threads) == (ours.tokens, ours.threads) {
            true => outln!("times {}: forward {forward:.1}, decode step {decode:.1}", peer.name),
            false => outln!("the peer ran {tokens} tokens on {threads} threads: no ratio"),
        }
    }
    Ok(Exit::Pass)
}

/// Reads a file of figures that a peer script printed.
fn read<T: DeserializeOwned>(file: &Path) -> Result<T> {
    let figures = serde_json::from_str(&input::text(file)?);
    figures.map_err(|error| Error::data(file, format!("not a file of figures: {error}")))
}

fn measure(args: &BenchArgs) -> Result<Figures> {
    let datasets = Datasets::open(args.datasets.as_deref())?;
    let mut checkpoint = Checkpoint::open(&datasets.checkpoint(&args.model)?)?;
    let vocabulary = checkpoint.vocabulary as u32;
    let model = checkpoint.load::<f32>()?;
    let ids: Vec<u32> = (0..args.tokens as u32).map(|i| (i * 31 + 7) % vocabulary).collect();
    let mut forward = Vec::new();
    let mut decode = Vec::new();
    for _ in 0..args.repeats {
        let mut state = model.state(Vec::new()).map_err(Error::Reference)?;
        forward.push(seconds(|| model.run(&mut *state, Input::Ids(&ids), &mut Plain))?);
        decode.push(seconds(|| model.run(&mut *state, Input::Ids(&ids[..1]), &mut Plain))?);
    }
    Ok(Figures {
        name: "ulplab reference (f32)".into(),
        threads: rayon::current_num_threads(),
        tokens: args.tokens,
        forward: timing(forward),
        decode: timing(decode),
    })
}

fn seconds<R>(work: impl FnOnce() -> Result<R, String>) -> Result<f64> {
    let started = Instant::now();
    work().map_err(Error::Reference)?;
    Ok(started.elapsed().as_secs_f64())
}

fn timing(mut times: Vec<f64>) -> Timing {
    times.sort_by(f64::total_cmp);
    Timing {
        median: times[times.len() / 2],
        min: times[0],
        max: times[times.len() - 1],
    }
}
