//! `ulplab sweep`: plan, run, gate and report in one go.

mod args;

use std::collections::{BTreeMap, HashSet};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use reference::paths::deepseek_v4::{Config, Model};

use super::judge;
use crate::backend::cuda::time::Stopwatch;
use crate::backend::cuda::{Device, Session, Source as KernelFile};
use crate::dataset::{Checkpoint, Manifest as Datasets};
use crate::experiment::load::Source;
use crate::experiment::{Experiment, Kind, Recipe};
use crate::report;
use crate::run;
use crate::run::folder::Folder;
use crate::run::plan::{Cell, check_file_names, plan, select};
use crate::run::session::Begun;
use crate::run::{Hindrance, Manifest, RecipeInfo};
use crate::run::{runs, store};
use crate::signal;
use crate::studies::execute::{Bench, Text};
use crate::studies::kernels;
use crate::studies::kernels::OnDevice;
use crate::studies::kernels::attest;
use crate::studies::kernels::capsules::Capsules;
use crate::studies::kernels::compile::Compile;
use crate::studies::kernels::mutants;
use crate::studies::kernels::mutants::Fate;
use crate::studies::kernels::operations;
use crate::studies::kernels::peers::Peers;
use crate::studies::kernels::programs;
use crate::studies::limits::{available, check_cells, check_size};
use crate::studies::ready::Ready;
pub use args::SweepArgs;
use ulplab_core::error::{Error, Exit, Result};
use ulplab_core::ops::Data;
use ulplab_core::record::Record;

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
    signal::handle()?;
    let mut prepared = prepare(args)?;
    if args.dry_run {
        for cell in &prepared.cells {
            outln!("{}", cell.id);
        }
        return Ok(Exit::Pass);
    }
    if let Some(folder) = &args.kernels.keep_failed {
        Capsules::prepare(folder)?;
    }
    let device = match (prepared.experiment.kind, args.kernels.device) {
        (Kind::Kernels, OnDevice::Cuda) if args.kernels.timed => Some(Ok(Device::open()?)),
        (Kind::Kernels, OnDevice::Cuda) => Some(Device::open()),
        (Kind::Kernels, OnDevice::Compile) => Some(Err(Error::Setup("none is asked for".into()))),
        _ => None,
    };
    let device = match device.transpose() {
        Ok(device) => device,
        Err(why) => {
            if let Some(exit) = compile(args, &mut prepared, &why)? {
                return Ok(exit);
            }
            None
        }
    };
    if prepared.experiment.kernels_stand_in() {
        prepared.manifest.device = Device::open()?.describe();
    }
    if let Some(device) = &device {
        prepared.manifest.device = device.describe();
        prepared.manifest.hindered = kernels::for_others(&prepared.experiment, &prepared.sources, device);
        prepared.manifest.ceilings = Some(Stopwatch::new(device)?.ceilings()?);
        prepared
            .peers
            .as_ref()
            .map_or(Ok(()), |peers| peers.check_device(&device.name))?;
    }
    let (folder, manifest) = enter(args, prepared.manifest)?;
    prepared.manifest = manifest;
    let session = Begun::now();
    let outcome = signal::while_running(|| execute(args, &prepared, device.as_ref(), &folder, &session));
    let partition = args.partition.map(|partition| partition.to_string());
    let written = session.end(&folder.sessions(), partition, outcome.as_ref().err());
    let fates = outcome?;
    written?;
    // Read again: this process's session, and those of others, count by now.
    let (folder, manifest) = Folder::open(&folder.path)?;
    let records = match (args.partition, folder.records(&manifest)) {
        // Its own work is done; what others have yet to do is no failure of this one.
        (Some(partition), Err(why @ (Error::Incomplete(_) | Error::Data { .. }))) => {
            errln!("{partition} is done, and nothing is judged yet: {why}");
            let unnoticed = mutants::print(&fates);
            return Ok(if unnoticed { Exit::GateFailed } else { Exit::Pass });
        }
        (_, records) => records?,
    };
    let run = judge::derive(&folder, manifest, records)?;
    judge::finish(&folder, &run, args.json)?;
    if args.kernels.timed && !args.json {
        out!("\n{}", report::times(&run));
    }
    let unnoticed = mutants::print(&fates);
    if let (Some(results), Some(device)) = (&args.kernels.attest, &device) {
        let machine = attest::Machine::new(device)?;
        let attestation = attest::Attestation::of(&run, &prepared.sources, &machine, &fates);
        outln!("{}", attestation.write(results)?.display());
    }
    Ok(match run.outcome() {
        _ if unnoticed => Exit::GateFailed,
        outcome if args.kernels.timed && !run.records.is_empty() => outcome.exit_of_bench(),
        outcome => outcome.exit(),
    })
}

/// Compiles kernels for want of a device. Programs may do without one: the exit code is there if nothing else is to be run.
fn compile(args: &SweepArgs, prepared: &mut Prepared, why: &Error) -> Result<Option<Exit>> {
    let asked = args.kernels.device == OnDevice::Compile;
    let program = |cell: &Cell| programs::is_of(&prepared.experiment.commands, cell);
    if asked || !prepared.cells.iter().all(program) {
        let compile = Compile {
            sources: &prepared.sources,
            cells: &prepared.cells,
            whole: prepared.manifest.left_out.is_empty(),
            faults: args.kernels.mutants,
            json: args.json,
        };
        let attested = compile.run(why)?;
        if asked {
            return Ok(Some(attested));
        }
    }
    let (programs, variants): (Vec<Cell>, Vec<Cell>) = prepared.cells.drain(..).partition(program);
    if programs.is_empty() {
        outln!(
            "NOT RUN: kernels were compiled, and none of {} cells was run: {why}",
            variants.len()
        );
        return Ok(Some(Exit::NotJudged));
    }
    for cell in variants {
        let why = Hindrance::Missing(format!("it was compiled and not run: {why}"));
        prepared.manifest.hindered.insert(cell.recipe, why);
    }
    prepared.manifest.keep(&programs);
    prepared.cells = programs;
    Ok(None)
}

fn prepare(args: &SweepArgs) -> Result<Prepared> {
    let source = Source::read(&args.experiment)?;
    let mut experiment = source.parse(&args.overrides)?;
    experiment.seed = args.seed.unwrap_or(experiment.seed);
    let rules = args.rules.as_deref().map(Source::read).transpose()?;
    if let Some(rules) = &rules {
        experiment.gates = rules.gates()?;
    }
    let mut sources = Vec::new();
    if args.kernels.alone && experiment.kind != Kind::Kernels {
        let why = format!(
            "this is no experiment of kernels; `ulplab sweep {}` runs it",
            args.experiment.display()
        );
        return Err(Error::config(&source.file, why));
    }
    if experiment.kind == Kind::Kernels {
        sources = KernelFile::read_all(&kernels::folder()?)?;
        kernels::fill(&mut experiment, &sources).map_err(|(place, message)| source.error_at(&place, message))?;
    }
    if let Some(mutant) = &args.kernels.mutant {
        kernels::check_mutant(mutant, &sources)?;
    }
    experiment
        .check()
        .map_err(|(place, message)| source.error_at(&place, message))?;
    check_cells(&experiment).map_err(|(place, message)| source.error_at(&place, message))?;

    let datasets = Datasets::open(args.datasets.as_deref())?;
    let folder = experiment
        .model
        .as_ref()
        .map(|model| datasets.checkpoint(model).map_err(|error| source.of_data(model, error)))
        .transpose()?;
    let checkpoint = folder.as_ref().map(|folder| Checkpoint::open(folder)).transpose()?;
    let config = checkpoint.as_ref().map(|checkpoint| &checkpoint.config);
    check_size(
        &experiment,
        config,
        rayon::current_num_threads(),
        args.max_memory.or_else(available),
    )
    .map_err(|(place, message)| source.error_at(&place, message))?;
    let ready = Ready::resolve(&experiment, config).map_err(|(place, message)| source.error_at(&place, message))?;
    let ids = experiment.windows.iter().map(|window| {
        let text = datasets
            .text(&window.text, window.offset, experiment.tokens)
            .map_err(|error| source.of_data(&window.text, error))?;
        Ok(text.into_iter().map(u32::from).collect())
    });
    let ids = ids.collect::<Result<Vec<Vec<u32>>>>()?;
    let gates = rules.as_ref().unwrap_or(&source);
    judge::check(&experiment).map_err(|(place, message)| gates.error_at(&place, message))?;

    let mut selectable = plan(&experiment);
    check_file_names(&experiment, &selectable).map_err(|(place, message)| source.error_at(&place, message))?;
    if args.kernels.timed {
        let timed = operations::timed(&experiment).map_err(|(place, message)| source.error_at(&place, message))?;
        selectable.retain(|cell| timed.contains(&format!("{}/{}", cell.recipe, experiment.case_names[cell.window])));
    }
    let cells = select(selectable, &args.only, &args.skip)?;
    let peers = args.kernels.peers.as_deref().map(Peers::read).transpose()?;
    let mut manifest = manifest(args, &experiment, &datasets, config, &sources, &ready, peers.as_ref())?;
    let home = source.file.parent().unwrap_or(Path::new(""));
    let watched = operations::watched(&experiment, home);
    let watched = watched.map_err(|(place, message)| source.error_at(&place, message))?;
    manifest.data.extend(watched);
    if args.kernels.device == OnDevice::Cuda {
        programs::check_programs(&experiment, &cells).map_err(|(place, message)| source.error_at(&place, message))?;
    }
    manifest.keep(&cells);
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
    sources: &[KernelFile],
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
    let mut standing_in = Vec::new();
    if experiment.kernels_stand_in() {
        standing_in = KernelFile::read_all(&kernels::folder()?)?;
    }
    let op = |recipe: &Recipe| recipe.name.split_once('.').map(|(op, _)| op.to_string());
    let ops: HashSet<String> = experiment.recipes.iter().filter_map(op).collect();
    let measured = sources.iter().filter(|source| ops.contains(&source.op));
    for source in standing_in.iter().chain(measured) {
        let name = format!("kernels/{}.cu", source.op);
        data.push((name, source.digest().to_hex().to_string()));
        let judgement = ulplab_core::ops::find(&source.op).map(ulplab_core::ops::digest);
        data.extend(judgement.map(|digest| (format!("judgement of {}", source.op), digest.to_string())));
    }
    data.extend(operations::files(experiment)?);
    data.extend(peers.map(|peers| (peers.file.display().to_string(), peers.digest.clone())));
    let commit = commit(&args.experiment);
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
        invocation: args.invocation(experiment.kind == Kind::Kernels),
        fingerprint: String::new(),
        data,
        device: "cpu".into(),
        threads: rayon::current_num_threads(),
        started_at: run::now(),
        seconds: 0.0,
        cells: Vec::new(),
        left_out: Vec::new(),
        hindered: BTreeMap::new(),
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
            .args(["--no-optional-locks", "-C"])
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

/// The run's folder, new, resumed or shared, with its manifest on disk.
fn enter(args: &SweepArgs, mut manifest: Manifest) -> Result<(Folder, Manifest)> {
    manifest.fingerprint = manifest.identity();
    let home = runs::of(&manifest.experiment.name);
    let path = match &args.out {
        Some(out) => out.clone(),
        None if args.resume => runs::newest(&home)?,
        None => runs::unused(&home.join(manifest.started_at.replace(':', ""))),
    };
    if args.resume && !path.exists() {
        return Err(Error::Usage(format!("{}: no run to resume", path.display())));
    }
    Folder::enter(&path, &manifest, args.resume || args.partition.is_some())
}

fn execute(
    args: &SweepArgs,
    prepared: &Prepared,
    device: Option<&Device>,
    folder: &Folder,
    session: &Begun,
) -> Result<Vec<Fate>> {
    let share: Vec<&Cell> = match args.partition {
        Some(partition) => partition.of(&prepared.cells).collect(),
        None => prepared.cells.iter().collect(),
    };
    let mut pending = Vec::new();
    for &cell in &share {
        if !folder.finished(&cell.id)? {
            pending.push(cell);
        }
    }
    if pending.is_empty() && !args.kernels.mutants {
        return Ok(Vec::new());
    }
    let bar = progress(args, share.len(), pending.len());
    let experiment = &prepared.experiment;
    let kernel = experiment.kind == Kind::Kernels;
    let of_sites = match kernel {
        true => operations::reading_sites(experiment).map_err(|(_, why)| Error::Usage(why))?,
        false => HashSet::new(),
    };
    let reads = |cell: &&Cell| match kernel {
        true => of_sites.contains(&format!("{}/{}", cell.recipe, experiment.case_names[cell.window])),
        false => cell.window >= experiment.draws,
    };
    let model = match &prepared.folder {
        Some(folder) if pending.iter().any(reads) => Some(load(folder)?),
        _ => None,
    };
    let done = |cell: &Cell, records: Vec<Record>| {
        folder.write_cell(cell, &records)?;
        session.finished();
        bar.inc(1);
        Ok(())
    };
    let bench = Bench {
        experiment,
        ready: &prepared.ready,
        load_f64: &|| load(prepared.folder.as_deref().unwrap_or(Path::new(""))),
        stop: &signal::STOP,
        done: &done,
    };
    if kernel {
        let keep = args.kernels.keep_failed.as_ref().map(|folder| Capsules {
            folder: folder.clone(),
            experiment: args.experiment.clone(),
            seed: experiment.seed,
        });
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
            stop: &signal::STOP,
            keep: keep.as_ref(),
        };
        let program = |cell: &&Cell| programs::is_of(&experiment.commands, cell);
        let (programs, variants): (Vec<&Cell>, Vec<&Cell>) = pending.into_iter().partition(program);
        programs::run(&cells, &programs)?;
        let Some(device) = device.filter(|_| !variants.is_empty() || args.kernels.mutants) else {
            bar.finish_and_clear();
            return Ok(Vec::new());
        };
        let variants_of = kernels::Variants {
            cells,
            sources: &prepared.sources,
            session: Session::open(device)?,
            ceilings: prepared.manifest.ceilings,
            mutant: args.kernels.mutant.as_deref(),
            peers: prepared.peers.as_ref(),
        };
        variants_of.run(&variants)?;
        bar.finish_and_clear();
        return if args.kernels.mutants {
            variants_of.mutants(&share)
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
