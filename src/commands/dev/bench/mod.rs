//! `ulplab dev bench`: times of the reference, and of conversions of formats and layouts.

pub mod formats;

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::time::Instant;

use reference::Plain;
use reference::paths::Input;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::dataset::{Checkpoint, Manifest as Datasets};
use crate::json;
use ulplab_core::error::{Error, Exit, Result, refuse};
use ulplab_core::input;
use ulplab_core::layouts::{Groups, LAYOUTS, Layout};

/// Time the FP32 reference: one forward pass over a window, and one decode step after it.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct BenchArgs {
    #[command(subcommand)]
    pub command: Option<BenchCommand>,
    /// Checkpoint: a name from datasets/manifest.toml, or a folder.
    #[arg(long, default_value = "dsv4-mini")]
    pub model: String,
    /// Tokens of the forward pass, which are the context of the decode step.
    #[arg(long, default_value_t = 512)]
    pub tokens: usize,
    /// Number of repetitions.
    #[arg(long, default_value_t = 9)]
    pub repeats: usize,
    /// File with the times of a peer (another library), written by experiments/peers/transformers_forward.py.
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
    Layouts(LayoutsArgs),
}

/// Seconds of one run: median, minimum and maximum over several repeats.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Timing {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

/// Times of the reference. The scripts that time other libraries print the same record.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Figures {
    /// Name of the program.
    pub name: String,
    pub threads: usize,
    pub tokens: usize,
    /// One forward pass over `tokens` tokens.
    pub forward: Timing,
    /// One decode step after these tokens.
    pub decode: Timing,
}

pub fn run(args: &BenchArgs) -> Result<Exit> {
    match &args.command {
        Some(BenchCommand::Formats(args)) => return formats::run(args),
        Some(BenchCommand::Layouts(args)) => return time_layouts(args),
        None => {}
    }
    let none = [args.tokens, args.repeats].contains(&0);
    Error::refuse(none, "--tokens and --repeats must be 1 or more")?;
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

/// Reads a file of figures (times of another program) that a peer script printed.
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
        let mut run = |ids| seconds(|| model.run(&mut *state, Input::Ids(ids), &mut Plain)).map_err(Error::Reference);
        forward.push(run(&ids[..])?);
        decode.push(run(&ids[..1])?);
    }
    Ok(Figures {
        name: "ulplab reference (f32)".into(),
        threads: rayon::current_num_threads(),
        tokens: args.tokens,
        forward: timing(forward),
        decode: timing(decode),
    })
}

fn seconds<R>(work: impl FnOnce() -> Result<R, String>) -> Result<f64, String> {
    let started = Instant::now();
    work()?;
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

/// Time scale layouts on one core, in both directions, and a plain copy of the matrix for comparison.
#[derive(Debug, clap::Args)]
pub struct LayoutsArgs {
    /// Rows of the matrix.
    #[arg(long, default_value_t = 8192)]
    pub rows: usize,
    /// Bytes of a row.
    #[arg(long, default_value_t = 4096)]
    pub bytes: usize,
    /// Number of groups, of different sizes, for layouts with groups.
    #[arg(long, default_value_t = 8)]
    pub groups: usize,
    /// Number of repetitions.
    #[arg(long, default_value_t = 25)]
    pub repeats: usize,
    /// Time only this layout; repeatable.
    #[arg(long = "layout", value_name = "NAME")]
    pub layouts: Vec<String>,
}

fn time_layouts(args: &LayoutsArgs) -> Result<Exit> {
    let none = [args.rows, args.bytes, args.groups, args.repeats].contains(&0);
    Error::refuse(none, "--rows, --bytes, --groups and --repeats must be 1 or more")?;
    let named = args.layouts.iter().map(|name| Layout::find(name));
    let mut layouts = named.collect::<Result<Vec<_>, String>>().map_err(Error::Usage)?;
    if layouts.is_empty() {
        layouts = LAYOUTS.iter().collect();
    }
    let repeats = args.repeats;
    outln!("GB/s read and written; median of {repeats} (slowest to fastest), and of memcpy");
    for layout in layouts {
        time_layout(layout, args).map_err(Error::Usage)?;
    }
    Ok(Exit::Pass)
}

fn time_layout(layout: &Layout, args: &LayoutsArgs) -> Result<(), String> {
    let (rows, cols) = (args.rows, args.bytes / layout.scale);
    let ends = match layout.groups {
        Groups::None => Vec::new(),
        Groups::Rows => ends(rows, args.groups),
        Groups::Cols => ends(cols, args.groups),
    };
    let placement = layout.place(&[rows, cols], &ends)?;
    let matrix: Vec<u8> = (0..placement.matrix_len()).map(|i| ((i * 31) >> 3) as u8).collect();
    // Writes both buffers once before the first run, so that no run pays for page faults.
    let (mut buffer, mut back) = (vec![1; placement.len()], vec![1; matrix.len()]);
    let [mut copy, mut forward, mut inverse] = [const { Vec::new() }; 3];
    for _ in 0..args.repeats {
        copy.push(seconds(|| {
            back.copy_from_slice(black_box(&matrix));
            Ok(())
        })?);
        black_box(&mut back);
        forward.push(seconds(|| placement.forward_into(black_box(&matrix), &mut buffer))?);
        black_box(&mut buffer);
        inverse.push(seconds(|| placement.inverse_into(black_box(&buffer), &mut back))?);
        black_box(&mut back);
    }
    let why = format_args!("{}: the inverse does not give the matrix back", layout.name);
    refuse(back != matrix, why)?;
    let moved = (placement.matrix_len() + placement.len()) as f64 / 1e9;
    let copied = 2.0 * placement.matrix_len() as f64 / 1e9;
    let rates = |bytes: f64, time: Timing| {
        let [median, slowest, fastest] = [time.median, time.max, time.min].map(|seconds| bytes / seconds);
        (median, format!("({slowest:.2} to {fastest:.2})"))
    };
    let (memcpy, memcpy_range) = rates(copied, timing(copy));
    let (name, shape) = (layout.name, format!("({rows}, {cols})"));
    for (direction, times) in [("forward", forward), ("inverse", inverse)] {
        let (rate, range) = rates(moved, timing(times));
        let ratio = rate / memcpy;
        outln!(
            "{name:24} {shape:14} {direction}  {rate:6.2}  {range}  memcpy {memcpy:6.2} {memcpy_range}  ratio {ratio:.2}"
        );
    }
    Ok(())
}

/// Divides `length` into groups, each larger than the one before, and returns the end of each group.
fn ends(length: usize, groups: usize) -> Vec<usize> {
    let share = |g: usize| (g as f64 / groups as f64).powf(1.7);
    (1..=groups).map(|g| (length as f64 * share(g)) as usize).collect()
}
