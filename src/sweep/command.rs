//! `ulplab sweep`: plan, run, gate and report in one go.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use reference::paths::deepseek_v4::{Config, Model};

use super::attest;
use super::commands;
use super::compile::Compile;
use super::execute::{Bench, Text};
use super::experiment::{Experiment, Kind};
use super::folder::Folder;
use super::judge;
use super::kernels;
use super::load::Source;
use super::mutants::{self, Fate};
use super::peers::Peers;
use super::plan::{Cell, Partition, plan, select};
use super::ready::Ready;
use super::run::{Manifest, RecipeInfo};
use super::store;
use crate::backend::cuda::time::Stopwatch;
use crate::backend::cuda::{Device, Source as KernelFile, Toolkit};
use crate::dataset::{Checkpoint, Manifest as Datasets};
use crate::error::{Error, Exit, Result};
use crate::kernels::Data;
use crate::record::Record;
use crate::report;

/// Set by the signal handler; running cells are finished, no new one is begun.
static STOP: AtomicBool = AtomicBool::new(false);

/// Run an experiment: plan, measure, gate, report.
#[derive(Debug, Default, clap::Args)]
pub struct SweepArgs {
    /// The experiment file.
    pub experiment: PathBuf,
    /// Override a key of the experiment, e.g. --set tokens=128.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub overrides: Vec<String>,
    /// Only cells whose id (recipe/phase/window) matches.
    #[arg(long, value_name = "GLOB")]
    pub only: Vec<String>,
    /// No cells whose id matches.
    #[arg(long, value_name = "GLOB")]
    pub skip: Vec<String>,
    /// Seed of every random draw; the experiment's own if not given.
    #[arg(long)]
    pub seed: Option<u64>,
    /// Folder of the run [default: runs/<name>/<time>].
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Go on with an unfinished run: the one in --out, or the newest of this experiment.
    #[arg(long)]
    pub resume: bool,
    /// Run only every N-th cell from the M-th on; the partitions share one --out.
    #[arg(long, value_name = "slice:M/N")]
    pub partition: Option<Partition>,
    /// Print the cells of the plan, one per line, and run none.
    #[arg(long)]
    pub dry_run: bool,
    /// Print verdicts as JSON Lines on stdout in place of the table.
    #[arg(long)]
    pub json: bool,
    /// No progress bar.
    #[arg(long)]
    pub no_progress: bool,
    /// Of kernels: run them on a GPU, or only compile them and hold them against their attestations. Without a GPU `cuda`
    /// does the latter too.
    #[arg(long, value_enum, default_value = "cuda")]
    pub device: OnDevice,
    /// Of kernels: only cases whose time is taken, and a table of the times.
    #[arg(long)]
    pub timed: bool,
    /// Of kernels: plant the fault of that name, e.g. rope.cos_sin_swapped.
    #[arg(long, value_name = "OP.MUTANT")]
    pub mutant: Option<String>,
    /// Of kernels: then plant every fault and tell which check notices it; exit code 100 if one goes unnoticed. Without a
    /// GPU, only compile them.
    #[arg(long, conflicts_with = "mutant")]
    pub mutants: bool,
    /// Of kernels: write what the run showed of those that pass to <DIR>/<device>/kernels.json.
    #[arg(long, value_name = "DIR", conflicts_with = "mutant")]
    pub attest: Option<PathBuf>,
    /// Of kernels: set times of other people's code on the same cases beside, as experiments/peers/kernels.py writes them.
    #[arg(long, value_name = "FILE")]
    pub peers: Option<PathBuf>,
    /// Folder of the data sets [default: $ULPLAB_DATASETS, or datasets/ here or in a folder above].
    #[arg(long, value_name = "DIR")]
    pub datasets: Option<PathBuf>,
}

/// Where kernels are run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum OnDevice {
    #[default]
    Cuda,
    /// Nowhere.
    Compile,
}

/// Everything decided before the first cell runs.
struct Prepared {
    experiment: Experiment,
    /// Folder of the checkpoint, where there is a model.
    folder: Option<PathBuf>,
    /// Tokens of each window of text.
    ids: Vec<Vec<u32>>,
    cells: Vec<Cell>,
    /// Of kernels: the files they are in.
    sources: Vec<KernelFile>,
    peers: Option<Peers>,
    ready: Ready,
    manifest: Manifest,
}

pub fn run(args: &SweepArgs) -> Result<Exit> {
    let mut prepared = prepare(args)?;
    if args.dry_run {
        for cell in &prepared.cells {
            println!("{}", cell.id);
        }
        return Ok(Exit::Pass);
    }
    let device = match (prepared.experiment.kind, args.device) {
        (Kind::Kernels, OnDevice::Cuda) if args.timed => Some(Ok(Device::open()?)),
        (Kind::Kernels, OnDevice::Cuda) => Some(Device::open()),
        (Kind::Kernels, OnDevice::Compile) => Some(Err(Error::Setup("none is asked for".into()))),
        _ => None,
    };
    let mut compiled = Exit::Pass;
    let device = match device.transpose() {
        Ok(device) => device,
        Err(why) => {
            let only = args.device == OnDevice::Compile;
            let program = |cell: &Cell| commands::is_of(&prepared.experiment.commands, cell);
            if only || !prepared.cells.iter().all(program) {
                let compile = Compile {
                    sources: &prepared.sources,
                    cells: &prepared.cells,
                    faults: args.mutants,
                    json: args.json,
                };
                compiled = compile.run(&why)?;
            }
            // Programs may do without a GPU.
            let cells = prepared.cells.iter().filter(|cell| program(cell) && !only);
            prepared.cells = cells.cloned().collect();
            if prepared.cells.is_empty() {
                return Ok(compiled);
            }
            prepared.manifest.cells = prepared.cells.iter().map(|cell| cell.id.clone()).collect();
            None
        }
    };
    if prepared.experiment.kernels_stand_in() {
        prepared.manifest.device = Device::open()?.describe();
    }
    if let Some(device) = &device {
        prepared.manifest.device = device.describe();
        prepared.manifest.ceilings = Some(Stopwatch::new(device)?.ceilings()?);
        prepared
            .peers
            .as_ref()
            .map_or(Ok(()), |peers| peers.check_device(&device.name))?;
    }
    let (folder, mut manifest) = folder(args, &prepared)?;
    let started = Instant::now();
    let before = manifest.seconds;
    let outcome = execute(args, &prepared, device.as_ref(), &folder);
    manifest.seconds = before + started.elapsed().as_secs_f64();
    manifest.complete = prepared.cells.iter().all(|cell| folder.has(&cell.id));
    folder.write_manifest(&manifest)?;
    let fates = outcome?;
    let run = judge::finish(&folder, manifest, args.json)?;
    if args.timed && !args.json {
        print!("\n{}", report::times(&run));
    }
    let unnoticed = mutants::print(&fates);
    if let (Some(results), Some(device)) = (&args.attest, &device) {
        let machine = attest::Machine::new(device)?;
        let attestation = attest::Attestation::of(&run, &prepared.sources, &machine, &fates);
        println!("{}", attestation.write(results)?.display());
    }
    Ok(match judge::exit(&run) {
        Exit::Pass if unnoticed => Exit::GateFailed,
        Exit::Pass => compiled,
        exit => exit,
    })
}

fn prepare(args: &SweepArgs) -> Result<Prepared> {
    let source = Source::read(&args.experiment)?;
    let mut experiment = source.parse(&args.overrides)?;
    experiment.seed = args.seed.unwrap_or(experiment.seed);
    let mut sources = Vec::new();
    if experiment.kind == Kind::Kernels {
        sources = KernelFile::read_all(&kernels::folder()?)?;
        kernels::fill(&mut experiment, &sources).map_err(|(place, message)| source.error_at(&place, message))?;
    }
    if let Some(mutant) = &args.mutant {
        kernels::check_mutant(mutant, &sources)?;
    }
    experiment
        .check()
        .map_err(|(place, message)| source.error_at(&place, message))?;

    let datasets = Datasets::open(args.datasets.as_deref())?;
    let folder = experiment
        .model
        .as_ref()
        .map(|model| datasets.checkpoint(model))
        .transpose()?;
    let checkpoint = folder.as_ref().map(|folder| Checkpoint::open(folder)).transpose()?;
    let config = checkpoint.as_ref().map(|checkpoint| &checkpoint.config);
    let ready = Ready::resolve(&experiment, config).map_err(|(place, message)| source.error_at(&place, message))?;
    let ids = experiment.windows.iter().map(|window| {
        let text = datasets.text(&window.text, window.offset, experiment.tokens)?;
        Ok(text.into_iter().map(u32::from).collect())
    });
    let ids = ids.collect::<Result<Vec<Vec<u32>>>>()?;
    judge::check(&experiment).map_err(|(place, message)| source.error_at(&place, message))?;

    if experiment.kind != Kind::Kernels && (args.peers.is_some() || args.timed) {
        let option = if args.timed { "--timed" } else { "--peers" };
        return Err(Error::Usage(format!("{option} is for kernels only")));
    }
    let mut planned = plan(&experiment);
    if args.timed {
        let timed = kernels::timed();
        planned.retain(|cell| timed.contains(&format!("{}/{}", cell.kernel().0, experiment.cases[cell.window])));
    }
    let cells = select(planned, &args.only, &args.skip)?;
    let peers = args.peers.as_deref().map(Peers::read).transpose()?;
    let manifest = manifest(args, &experiment, &datasets, config, &cells, &ready, peers.as_ref())?;
    Ok(Prepared {
        experiment,
        folder,
        ids,
        cells,
        sources,
        peers,
        ready,
        manifest,
    })
}

fn manifest(
    args: &SweepArgs,
    experiment: &Experiment,
    datasets: &Datasets,
    config: Option<&Config>,
    cells: &[Cell],
    ready: &Ready,
    peers: Option<&Peers>,
) -> Result<Manifest> {
    let mut texts: Vec<&str> = experiment.windows.iter().map(|window| window.text.as_str()).collect();
    texts.sort_unstable();
    texts.dedup();
    let mut data = Vec::new();
    for name in experiment.model.as_deref().into_iter().chain(texts) {
        data.extend(datasets.verify(name)?);
    }
    // A run of kernels is gone on with only if they and what judges them are as they were.
    if experiment.kernels_stand_in() || experiment.kind == Kind::Kernels {
        for source in KernelFile::read_all(&kernels::folder()?)? {
            data.push((source.path.display().to_string(), source.digest().to_hex().to_string()));
            let judgement = crate::kernels::find(&source.op).map(crate::kernels::digest);
            data.extend(judgement.map(|digest| (format!("judgement of {}", source.op), digest.to_string())));
        }
    }
    data.extend(peers.map(|peers| (peers.file.display().to_string(), peers.digest.clone())));
    let commit = commit(&args.experiment);
    let identity = serde_json::to_vec(&(env!("CARGO_PKG_VERSION"), &commit, experiment, &data))
        .map_err(|error| Error::Usage(format!("the experiment cannot be written as JSON: {error}")))?;
    let recipes = experiment
        .recipes
        .iter()
        .map(|recipe| {
            let rounding = ready.roundings.get(&recipe.name).zip(config);
            let bytes = rounding.map(|(rounding, config)| rounding.cache_bytes(config));
            let (bytes_per_vector, bytes_per_token) = bytes.unwrap_or_default();
            let (name, doc, noise) = (recipe.name.clone(), recipe.doc.clone(), recipe.noise);
            RecipeInfo {
                name,
                doc,
                noise,
                bytes_per_vector,
                bytes_per_token,
            }
        })
        .collect();
    Ok(Manifest {
        schema: store::SCHEMA,
        version: env!("CARGO_PKG_VERSION").into(),
        commit,
        experiment: experiment.clone(),
        fingerprint: blake3::hash(&identity).to_hex().to_string(),
        data,
        device: "cpu".into(),
        threads: rayon::current_num_threads(),
        started_at: jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        seconds: 0.0,
        cells: cells.iter().map(|cell| cell.id.clone()).collect(),
        recipes,
        peers: peers.map(Peers::names).unwrap_or_default(),
        ceilings: None,
        complete: false,
    })
}

/// The commit of the working tree the experiment is in, `+` behind it where it has uncommitted changes.
fn commit(experiment: &Path) -> Option<String> {
    let folder = experiment
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let git = |args: &[&str]| {
        let output = std::process::Command::new("git")
            .arg("-C")
            .arg(folder)
            .args(args)
            .output()
            .ok()?;
        output
            .status
            .success()
            .then(|| String::from_utf8_lossy(&output.stdout).trim().to_string())
    };
    let head = git(&["rev-parse", "HEAD"])?;
    let changed = git(&["status", "--porcelain", "--untracked-files=no"])?;
    Some(if changed.is_empty() { head } else { head + "+" })
}

/// The run's folder, new or resumed, with its manifest on disk.
fn folder(args: &SweepArgs, prepared: &Prepared) -> Result<(Folder, Manifest)> {
    let home = Path::new("runs").join(&prepared.experiment.name);
    let shared = args.partition.is_some() && args.out.as_ref().is_some_and(|out| out.join("run.json").is_file());
    if args.resume || shared {
        let path = match &args.out {
            Some(out) => out.clone(),
            None => newest(&home)?,
        };
        let (folder, manifest) = Folder::open(&path)?;
        if manifest.fingerprint != prepared.manifest.fingerprint || manifest.cells != prepared.manifest.cells {
            let message =
                "holds a run of another experiment, seed, data, selection or commit; it cannot be gone on with";
            return Err(Error::Usage(format!("{}: {message}", path.display())));
        }
        return Ok((folder, manifest));
    }
    let path = match &args.out {
        Some(out) => out.clone(),
        None => unused(&home.join(prepared.manifest.started_at.replace(':', ""))),
    };
    let folder = Folder::create(&path)?;
    folder.write_manifest(&prepared.manifest)?;
    Ok((folder, prepared.manifest.clone()))
}

/// The path itself, or the first of `path-2`, `path-3` … that is not taken: two runs may start in the same second.
fn unused(path: &Path) -> PathBuf {
    let numbered = (2..).map(|number| PathBuf::from(format!("{}-{number}", path.display())));
    std::iter::once(path.to_path_buf())
        .chain(numbered)
        .find(|path| !path.exists())
        .unwrap_or_default()
}

/// Runs are named by their time, so the newest is the last.
fn newest(home: &Path) -> Result<PathBuf> {
    let nothing = || Error::Usage(format!("{}: no run to resume", home.display()));
    let entries = std::fs::read_dir(home).map_err(|_| nothing())?;
    entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.join("run.json").is_file())
        .max()
        .ok_or_else(nothing)
}

fn execute(args: &SweepArgs, prepared: &Prepared, device: Option<&Device>, folder: &Folder) -> Result<Vec<Fate>> {
    let share: Vec<&Cell> = match args.partition {
        Some(partition) => partition.of(&prepared.cells).collect(),
        None => prepared.cells.iter().collect(),
    };
    let pending: Vec<&Cell> = share.iter().copied().filter(|cell| !folder.has(&cell.id)).collect();
    if pending.is_empty() && !args.mutants {
        return Ok(Vec::new());
    }
    // A second signal ends the process at once; cells are written whole or not at all, so nothing is lost by it.
    let handler = ctrlc::set_handler(|| {
        if STOP.swap(true, Ordering::Relaxed) {
            std::process::exit(Exit::Interrupted as i32);
        }
    });
    handler.map_err(|error| Error::Setup(format!("cannot handle signals: {error}")))?;

    let bar = progress(args, share.len(), pending.len());
    let experiment = &prepared.experiment;
    let kernel = experiment.kind == Kind::Kernels;
    let reads = |cell: &&Cell| kernel || cell.window >= experiment.draws;
    let model = match &prepared.folder {
        Some(folder) if pending.iter().any(reads) => Some(load(folder)?),
        _ => None,
    };
    let done = |cell: &Cell, records: Vec<Record>| {
        folder.write_cell(cell, &records)?;
        bar.inc(1);
        Ok(())
    };
    let bench = Bench {
        experiment,
        ready: &prepared.ready,
        load_f64: &|| load(prepared.folder.as_deref().unwrap_or(Path::new(""))),
        stop: &STOP,
        done: &done,
    };
    if kernel {
        let text = model
            .as_ref()
            .zip(prepared.ids.first())
            .map(|(model, ids)| Text { model, ids });
        let sites = |pattern: &str| match text {
            Some(text) => kernels::sites(text, pattern),
            None => Err("no model is given".into()),
        };
        let cells = kernels::Cells {
            experiment,
            data: &Data::new(experiment.seed, &sites),
            done: &done,
            stop: &STOP,
        };
        let program = |cell: &&Cell| commands::is_of(&experiment.commands, cell);
        let (programs, variants): (Vec<&Cell>, Vec<&Cell>) = pending.into_iter().partition(program);
        commands::run(&cells, &programs)?;
        let Some(device) = device.filter(|_| !variants.is_empty() || args.mutants) else {
            bar.finish_and_clear();
            return Ok(Vec::new());
        };
        let bench = kernels::Bench {
            cells,
            sources: &prepared.sources,
            device,
            ceilings: prepared.manifest.ceilings,
            toolkit: &Toolkit::open()?,
            mutant: args.mutant.as_deref(),
            peers: prepared.peers.as_ref(),
        };
        bench.run(&variants)?;
        bar.finish_and_clear();
        return if args.mutants {
            bench.mutants(&share)
        } else {
            Ok(Vec::new())
        };
    }
    for (index, name) in experiment.window_names().iter().enumerate() {
        let cells: Vec<&Cell> = pending.iter().copied().filter(|cell| cell.window == index).collect();
        if cells.is_empty() {
            continue;
        }
        bar.set_message(name.clone());
        let ids = index.checked_sub(experiment.draws).map(|text| &prepared.ids[text][..]);
        let text = model.as_ref().zip(ids).map(|(model, ids)| Text { model, ids });
        bench.window(name, text, &cells)?;
    }
    bar.finish_and_clear();
    Ok(Vec::new())
}

fn load<T: reference::Real>(folder: &Path) -> Result<Model<T>> {
    let mut checkpoint = Checkpoint::open(folder)?;
    Model::load(checkpoint.config.clone(), &mut checkpoint)
}

fn progress(args: &SweepArgs, all: usize, pending: usize) -> ProgressBar {
    let hidden = args.no_progress || !std::io::stderr().is_terminal();
    let target = if hidden {
        ProgressDrawTarget::hidden()
    } else {
        ProgressDrawTarget::stderr()
    };
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} cells  {elapsed} (about {eta} left)  {msg}");
    let bar = ProgressBar::with_draw_target(Some(all as u64), target)
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.set_position((all - pending) as u64);
    bar
}
