//! `ulplab sweep`: plan, run, gate and report in one go.

mod args;

use std::collections::{BTreeMap, HashSet};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use reference::paths::{Config, Model, Scalar};

use super::judge;
use crate::backend::cuda::time::Stopwatch;
use crate::backend::cuda::{Device, Session, Source as KernelFile};
use crate::dataset::{Checkpoint, Manifest as Datasets};
use crate::experiment::Mistake;
use crate::experiment::file::ExperimentFile;
use crate::run::folder::Folder;
use crate::run::plan::{Cell, Plan, select, unnameable};
use crate::run::session::Begun;
use crate::run::{self, Hindrance, Manifest, RecipeInfo, runs, store};
use crate::signal;
use crate::studies::kernels::capsules::Capsules;
use crate::studies::kernels::compile::Compile;
use crate::studies::kernels::mutants::{self, Fate};
use crate::studies::kernels::peers::Peers;
use crate::studies::kernels::{self, OnDevice, attest, operations, programs};
use crate::studies::limits::{available, check_cells, check_size};
use crate::studies::{self, Asked, Bench, Runs, Text};
pub use args::SweepArgs;
use ulplab_core::error::{Error, Exit, Result};
use ulplab_core::ops::Data;
use ulplab_core::record::Record;

/// Everything decided before the first cell runs.
struct Prepared {
    asked: Asked,
    config: Option<Box<dyn Config>>,
    /// Folder of the checkpoint, if there is a model.
    folder: Option<PathBuf>,
    /// Tokens of each window of text.
    ids: Vec<Vec<u32>>,
    cells: Vec<Cell>,
    /// The files of kernels.
    sources: Vec<KernelFile>,
    peers: Option<Peers>,
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
    let device = match (prepared.asked.study.kernels(), args.kernels.device) {
        (Some(_), OnDevice::Cuda) if args.kernels.timed => Some(Ok(Device::open()?)),
        (Some(_), OnDevice::Cuda) => Some(Device::open()),
        (Some(_), OnDevice::Compile) => Some(Err(Error::Setup("none is asked for".into()))),
        (None, _) => None,
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
    if device.is_none() && prepared.asked.study.stands_in() {
        prepared.manifest.device = Device::open()?.describe();
    }
    if let (Some(device), Some(study)) = (&device, prepared.asked.study.kernels()) {
        prepared.manifest.device = device.describe();
        prepared.manifest.hindered = kernels::for_others(study, &prepared.sources, device);
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
    let study = &*prepared.asked.study;
    judge::finish(&folder, &run, study, args.json)?;
    if args.kernels.timed && !args.json {
        out!("\n{}", kernels::times(&run));
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

/// Compiles kernels if there is no device. Programs may run without one: an exit code is returned only if there is nothing
/// else to run.
fn compile(args: &SweepArgs, prepared: &mut Prepared, why: &Error) -> Result<Option<Exit>> {
    let asked = args.kernels.device == OnDevice::Compile;
    let commands = prepared.asked.study.kernels().map_or(&[][..], |study| &study.commands);
    let program = |cell: &Cell| programs::is_of(commands, cell);
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
    let file = ExperimentFile::read(&args.experiment, &args.overrides)?;
    let wrong = |mistake: Mistake| file.error(&mistake);
    let mut asked = studies::parse(&file)?;
    let head = &mut asked.experiment.head;
    head.seed = args.seed.unwrap_or(head.seed);
    let rules = args
        .rules
        .as_deref()
        .map(|rules| ExperimentFile::read(rules, &[]))
        .transpose()?;
    if let Some(rules) = &rules {
        head.gates = rules.gates()?;
    }
    if args.kernels.alone && asked.study.kernels().is_none() {
        let path = args.experiment.display();
        let why = format!("this is no experiment of kernels; `ulplab sweep {path}` runs it");
        return Err(Error::config(&file.path, why));
    }
    let mut sources = Vec::new();
    if asked.study.kernels().is_some() {
        sources = KernelFile::read_all(&kernels::folder()?)?;
    }
    if let Some(mutant) = &args.kernels.mutant {
        kernels::check_mutant(mutant, &sources)?;
    }
    asked.resolve().map_err(wrong)?;
    let study = &*asked.study;
    study.check().map_err(wrong)?;
    let plan = study.plan();
    check_cells(&plan).map_err(wrong)?;

    let datasets = Datasets::open(args.datasets.as_deref())?;
    let reading = study.reading();
    let folder = reading.model.map(|model| datasets.checkpoint(model));
    let folder = folder
        .transpose()
        .map_err(|error| file.of_data(Mistake::at("model", ""), error))?;
    let checkpoint = folder.as_ref().map(|folder| Checkpoint::open(folder)).transpose()?;
    let config = checkpoint.map(|checkpoint| checkpoint.config);
    let limit = args.max_memory.or_else(available);
    check_size(study, config.as_deref(), rayon::current_num_threads(), limit).map_err(wrong)?;
    let ids = reading.windows.iter().enumerate().map(|(at, window)| {
        let text = datasets.text(&window.text, window.offset, reading.tokens);
        let text = text.map_err(|error| file.of_data(Mistake::at("text", "").within("window", at), error))?;
        Ok(text.into_iter().map(u32::from).collect())
    });
    let ids = ids.collect::<Result<Vec<Vec<u32>>>>()?;
    let gates = rules.as_ref().unwrap_or(&file);
    let gated = judge::check(&asked.experiment.gates, study, &plan);

    let mut selectable = plan.cells();
    if let Some((cell, message)) = unnameable(&selectable) {
        return Err(file.error(&asked.place_of(cell, message)));
    }
    if let Some(study) = study.kernels().filter(|_| args.kernels.timed) {
        let timed = operations::timed(study).map_err(wrong)?;
        selectable.retain(|cell| timed.contains(&format!("{}/{}", cell.recipe, study.case_names[cell.window])));
    }
    let peers = args.kernels.peers.as_deref().map(Peers::read).transpose()?;
    // Formats and sites are named by recipes, and gates by both.
    let bytes = sizes(&asked, config.as_deref()).map_err(wrong)?;
    gated.map_err(|mistake| gates.error(&mistake))?;
    let cells = select(selectable, &args.only, &args.skip)?;
    let mut manifest = manifest(args, &asked, plan, &datasets, &sources, bytes, peers.as_ref())?;
    if let Some(study) = asked.study.kernels() {
        let home = file.path.parent().unwrap_or(Path::new(""));
        manifest.data.extend(operations::watched(study, home).map_err(wrong)?);
        if args.kernels.device == OnDevice::Cuda {
            programs::check_programs(study, &cells).map_err(wrong)?;
        }
    }
    manifest.keep(&cells);
    Ok(Prepared {
        asked,
        config,
        folder,
        ids,
        cells,
        sources,
        peers,
        manifest,
    })
}

/// What reports say of recipes, with the sizes that they have in caches; finds what is wrong with recipes.
fn sizes(asked: &Asked, config: Option<&dyn Config>) -> Result<Vec<RecipeInfo>, Mistake> {
    let study = &asked.study;
    let mut recipes = study.recipes();
    if let Runs::Windows(ready) = study.ready(asked.experiment.seed, config)? {
        for recipe in &mut recipes {
            (recipe.bytes_per_vector, recipe.bytes_per_token) = ready.bytes(&recipe.name);
        }
    }
    Ok(recipes)
}

fn manifest(
    args: &SweepArgs,
    asked: &Asked,
    plan: Plan,
    datasets: &Datasets,
    sources: &[KernelFile],
    recipes: Vec<RecipeInfo>,
    peers: Option<&Peers>,
) -> Result<Manifest> {
    let reading = asked.study.reading();
    let mut texts: Vec<&str> = reading.windows.iter().map(|window| window.text.as_str()).collect();
    texts.sort_unstable();
    texts.dedup();
    let mut data = Vec::new();
    for name in reading.model.into_iter().chain(texts) {
        data.extend(datasets.verify(name)?);
    }
    // A run of kernels is continued only if the kernels and their judgement are unchanged.
    let mut standing_in = Vec::new();
    if asked.study.stands_in() {
        standing_in = KernelFile::read_all(&kernels::folder()?)?;
    }
    let op = |recipe: &RecipeInfo| recipe.name.split_once('.').map(|(op, _)| op.to_string());
    let ops: HashSet<String> = recipes.iter().filter_map(op).collect();
    let measured = sources.iter().filter(|source| ops.contains(&source.op));
    for source in standing_in.iter().chain(measured) {
        let name = format!("kernels/{}.cu", source.op);
        data.push((name, source.digest().to_hex().to_string()));
        let judgement = ulplab_core::ops::find(&source.op).map(ulplab_core::ops::digest);
        data.extend(judgement.map(|digest| (format!("judgement of {}", source.op), digest.to_string())));
    }
    if let Some(study) = asked.study.kernels() {
        data.extend(operations::files(study)?);
    }
    data.extend(peers.map(|peers| (peers.file.display().to_string(), peers.digest.clone())));
    Ok(Manifest {
        schema: store::SCHEMA,
        version: env!("CARGO_PKG_VERSION").into(),
        commit: commit(&args.experiment),
        experiment: asked.experiment.clone(),
        plan,
        invocation: args.invocation(asked.study.kernels().is_some()),
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

/// The commit of the working tree the experiment is in, with `+` appended if it has uncommitted changes.
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
    let Prepared { asked, config, ids, .. } = prepared;
    let (seed, plan) = (asked.experiment.seed, &prepared.manifest.plan);
    let runs = asked.study.ready(seed, config.as_deref());
    let runs = runs.map_err(|mistake| Error::Usage(mistake.message))?;
    let of_sites = match &runs {
        Runs::Kernels(study) => operations::reading_sites(study).map_err(|mistake| Error::Usage(mistake.message))?,
        Runs::Windows(_) => HashSet::new(),
    };
    let draws = plan.windows.len().saturating_sub(ids.len());
    let reads = |cell: &&Cell| match &runs {
        Runs::Kernels(_) => of_sites.contains(&format!("{}/{}", cell.recipe, plan.windows[cell.window])),
        Runs::Windows(_) => cell.window >= draws,
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
    let text = |ids| model.as_deref().map(|model| Text { model, ids });
    let study = match &runs {
        Runs::Kernels(study) => study,
        Runs::Windows(ready) => {
            for (index, window) in plan.windows.iter().enumerate() {
                let cells: Vec<&Cell> = pending.iter().copied().filter(|cell| cell.window == index).collect();
                if cells.is_empty() {
                    continue;
                }
                bar.set_message(window.clone());
                let bench = Bench {
                    window,
                    text: index.checked_sub(draws).and_then(|at| text(&ids[at])),
                    load_f64: &|| load(prepared.folder.as_deref().unwrap_or(Path::new(""))),
                    stop: &signal::STOP,
                    done: &done,
                };
                ready.window(&bench, &cells)?;
            }
            bar.finish_and_clear();
            return Ok(Vec::new());
        }
    };
    let keep = args.kernels.keep_failed.as_ref().map(|folder| Capsules {
        folder: folder.clone(),
        experiment: args.experiment.clone(),
        seed,
    });
    let text = ids.first().and_then(|ids| text(ids));
    let sites = |pattern: &str| match text {
        Some(text) => kernels::sites(text, pattern),
        None => Err("no model is given".into()),
    };
    let cells = kernels::Cells {
        study,
        data: &Data::new(seed, &sites),
        done: &done,
        stop: &signal::STOP,
        keep: keep.as_ref(),
    };
    let program = |cell: &&Cell| programs::is_of(&study.commands, cell);
    let (programs, variants): (Vec<&Cell>, Vec<&Cell>) = pending.into_iter().partition(program);
    programs::run(&cells, &programs)?;
    let Some(device) = device.filter(|_| !variants.is_empty() || args.kernels.mutants) else {
        bar.finish_and_clear();
        return Ok(Vec::new());
    };
    let on_device = kernels::Variants {
        cells,
        sources: &prepared.sources,
        session: Session::open(device)?,
        ceilings: prepared.manifest.ceilings,
        mutant: args.kernels.mutant.as_deref(),
        peers: prepared.peers.as_ref(),
    };
    on_device.run(&variants)?;
    bar.finish_and_clear();
    match args.kernels.mutants {
        true => on_device.mutants(&share),
        false => Ok(Vec::new()),
    }
}

fn load<T: Scalar>(folder: &Path) -> Result<Box<dyn Model<T>>> {
    Checkpoint::open(folder)?.load()
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
