//! `ulplab sweep`: plan, run, gate and report in one go.

mod args;
mod prepare;
pub mod workers;

use std::collections::HashSet;
use std::io::IsTerminal;
use std::sync::OnceLock;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::decided::{self, UntilDecided};
use super::judge;
use crate::backend::cuda::time::Stopwatch;
use crate::backend::cuda::{Device, Session};
use crate::progress::Lines;
use crate::run::folder::Folder;
use crate::run::partition::{Partition, Share, cost};
use crate::run::plan::Cell;
use crate::run::session::ActiveSession;
use crate::run::{Hindrance, Manifest, runs};
use crate::signal;
use crate::studies::kernels::capsules::Capsules;
use crate::studies::kernels::compile::Compile;
use crate::studies::kernels::mutants::{self, MutantFiles};
use crate::studies::kernels::peers::Peers;
use crate::studies::kernels::{self, OnDevice, attest, operations, programs};
use crate::studies::{Bench, Runs, Text};
pub use args::SweepArgs;
pub(super) use prepare::{Prepared, Question, prepare, read, read_file};
use ulplab_core::error::{Error, Exit, Result, counted};
use ulplab_core::record::Record;
use ulplab_operations::ops::Data;
use workers::Shared;

pub fn run(args: &SweepArgs) -> Result<Exit> {
    let question = read(args)?;
    let study = &*question.parsed.study;
    let mut prepared = prepare(args, &question)?;
    if args.dry_run {
        if args.kernels.fast_only {
            errln!(
                "--fast-only: which variants take a case depends on the GPU, so those called `simple` are listed, too"
            );
        }
        return print_plan(&prepared);
    }
    if let Some(folder) = &args.kernels.keep_failed {
        Capsules::prepare(folder)?;
    }
    let device = match (study.kernels(), args.kernels.device) {
        (Some(_), OnDevice::Cuda) if args.kernels.timed => Some(Ok(Device::open()?)),
        (Some(_), OnDevice::Cuda) => Some(Device::open()),
        (Some(_), OnDevice::Compile) => return compiler(args, &prepared).run("--device compile"),
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
    if device.is_none() && study.stands_in() {
        prepared.manifest.device = Device::open()?.describe();
    }
    if let (Some(device), Some(study)) = (&device, study.kernels()) {
        prepared.manifest.device = device.describe();
        prepared.manifest.hindered = kernels::for_others(study, &question.sources, device);
        if args.kernels.fast_only {
            let on = (&device.arch[..], device.sms);
            prepared.cells = kernels::without_simple(study, &question.sources, on, prepared.cells)?;
            prepared.manifest.keep(&prepared.cells);
        }
        // Who works on a share of a run reads them there.
        let begun = args
            .out
            .as_ref()
            .filter(|_| prepared.partition.is_some())
            .map(|out| Folder::open(out));
        prepared.manifest.ceilings = match begun {
            Some(Ok((_, stored))) => stored.ceilings,
            _ => Some(Stopwatch::new(device)?.ceilings()?),
        };
        prepared
            .peers
            .as_ref()
            .map_or(Ok(()), |peers| peers.check_device(&device.name))?;
    }
    let folder = enter_and_execute(args, &mut prepared, device.as_ref())?;
    // Read again: this process's session, and those of others, count by now.
    let (folder, manifest) = Folder::open(&folder.path)?;
    let found = decided::records(&folder, &manifest).and_then(|records| {
        let cells: Vec<&Cell> = prepared.cells.iter().collect();
        let results = match faults(args, &prepared, &folder) {
            Some(files) => files.all(&prepared.question.sources, &cells)?,
            None => Vec::new(),
        };
        Ok((records, results))
    });
    let (records, mutant_results) = match (&prepared.partition, found) {
        // Its own work is done; what others have yet to do is no failure of this one.
        (Some(partition), Err(why @ (Error::Incomplete(_) | Error::Data { .. }))) => {
            errln!("{partition} is done, and nothing is judged yet: {why}");
            let results = match faults(args, &prepared, &folder) {
                Some(files) => files.found(&prepared.question.sources, &share(&prepared)?)?,
                None => Vec::new(),
            };
            return Ok(if mutants::print(&results) {
                Exit::GateFailed
            } else {
                Exit::Pass
            });
        }
        (_, found) => found?,
    };
    let run = judge::derive(&folder, manifest, records)?;
    judge::finish(&folder, &run, study, args.json)?;
    if args.kernels.timed && !args.json {
        out!("\n{}", kernels::times(&run));
    }
    let unnoticed = mutants::print(&mutant_results);
    if let (Some(results), Some(device)) = (&args.kernels.attest, &device) {
        let machine = attest::Machine::new(device)?;
        let attestation = attest::Attestation::of(&run, &question.sources, &machine, &mutant_results);
        outln!("{}", attestation.write(results)?.display());
    }
    let exit = match run.outcome() {
        _ if unnoticed => Exit::GateFailed,
        outcome if args.kernels.timed && !run.records.is_empty() => outcome.exit_of_bench(),
        outcome => outcome.exit(),
    };
    let incomplete = prepared.peers.as_ref().and_then(Peers::incomplete);
    Ok(match incomplete.filter(|_| exit == Exit::Pass) {
        Some(why) => {
            errln!("INCOMPLETE: {why}");
            Exit::Incomplete
        }
        None => exit,
    })
}

/// Measures the cells of an experiment that needs no GPU, and judges nothing.
pub fn measure(args: &SweepArgs) -> Result<(Folder, Manifest)> {
    let question = read(args)?;
    let mut prepared = prepare(args, &question)?;
    let folder = enter_and_execute(args, &mut prepared, None)?;
    Folder::open(&folder.path)
}

/// Works on the run's folder until its cells, or this process's share of them, are done.
fn enter_and_execute(args: &SweepArgs, prepared: &mut Prepared, device: Option<&Device>) -> Result<Folder> {
    let (folder, manifest) = enter(args, prepared)?;
    prepared.manifest = manifest;
    // Without a GPU there may be programs to share; kernels would be compiled by each process, and run by none.
    let runs_all = device.is_some() || prepared.manifest.hindered.is_empty();
    let shared = match &args.kernels.workers {
        Some(workers) if prepared.partition.is_none() && runs_all => {
            let faults = args.kernels.mutants || args.kernels.attest.is_some();
            let gpus = device.map_or(Ok(0), |_| Device::count())?;
            Shared::new(workers, &prepared.cells, faults, gpus)?
        }
        _ => None,
    };
    if let Some(shared) = shared {
        // Those that share it leave sessions of their own.
        let bar = progress(args, prepared.cells.len(), 0);
        signal::while_running(|| shared.run(&folder, &prepared.cells, &bar))?;
        return Ok(folder);
    }
    let partition = prepared.partition.as_ref().map(ToString::to_string);
    let session = ActiveSession::begin(&folder.sessions(), partition)?;
    let outcome = signal::while_running(|| execute(args, prepared, device, &folder, &session));
    let written = session.end(outcome.as_ref().err());
    outcome?;
    written?;
    Ok(folder)
}

/// Gives what inputs of a shipped experiment's cases are made of. Its model is read when a case asks for it.
pub fn with_data<T>(run: impl FnOnce(&Data) -> Result<T>) -> Result<T> {
    let args = SweepArgs {
        experiment: kernels::SHIPPED.into(),
        no_progress: true,
        ..SweepArgs::default()
    };
    let question = read(&args)?;
    let prepared = prepare(&args, &question)?;
    let model = OnceLock::new();
    let sites = |pattern: &str| {
        let load = || prepared.open()?.load();
        let model = model.get_or_init(|| load().map_err(|error: Error| error.to_string()));
        let ids = &prepared.texts.first().ok_or("no text is given")?.ids;
        let model = &**model.as_ref().map_err(Clone::clone)?;
        kernels::sites(Text { model, ids }, pattern)
    };
    let seed = question.parsed.experiment.seed;
    run(&Data::new(seed, &sites).with_checkpoint(prepared.folder.as_deref()))
}

fn compiler<'a>(args: &'a SweepArgs, prepared: &'a Prepared) -> Compile<'a> {
    Compile {
        sources: &prepared.question.sources,
        cells: &prepared.cells,
        whole: prepared.manifest.left_out.is_empty(),
        architectures: &args.kernels.architectures,
        faults: args.kernels.mutants,
        json: args.json,
        digesting: &digests,
    }
}

/// Digests of rewritten files as they are, with the data of the shipped experiment where a judgement was rewritten.
pub fn digests(files: &[attest::Rewritten]) -> Result<attest::Now> {
    let all = |data: &Data| {
        let digests = files
            .iter()
            .map(|file| (file.op().to_string(), file.digests(data).map_err(|why| why.to_string())));
        Ok(digests.collect())
    };
    match files.iter().any(attest::Rewritten::has_other_judgement) {
        // Without the shipped experiment no file can be held against what it was; others are still shown.
        true => with_data(all).or_else(|why| {
            let failed = |file: &attest::Rewritten| (file.op().to_string(), Err(why.to_string()));
            Ok(files.iter().map(failed).collect())
        }),
        false => all(&Data::new(0, &|pattern| {
            Err(format!("no model is read for '{pattern}'"))
        })),
    }
}

/// Compiles kernels if there is no device. Programs may run without one: an exit code is returned only if there is nothing
/// else to run.
fn compile(args: &SweepArgs, prepared: &mut Prepared, why: &Error) -> Result<Option<Exit>> {
    let study = prepared.question.parsed.study.kernels();
    let commands = study.map_or(&[][..], |study| &study.commands);
    let program = |cell: &Cell| programs::is_of(commands, cell);
    if !prepared.cells.iter().all(program) {
        compiler(args, prepared).run(&format!("no GPU ({why})"))?;
    }
    let (programs, variants): (Vec<Cell>, Vec<Cell>) = prepared.cells.drain(..).partition(program);
    if programs.is_empty() {
        outln!(
            "NOT RUN: kernels were compiled, and none of {} was run: {why}",
            counted(variants.len(), "cell")
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

/// The run's folder, new, resumed or shared, with its manifest on disk.
fn enter(args: &SweepArgs, prepared: &Prepared) -> Result<(Folder, Manifest)> {
    let mut manifest = prepared.manifest.clone();
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
    Folder::enter(&path, &manifest, args.resume || prepared.partition.is_some())
}

/// The cells of this process.
fn share<'a>(prepared: &'a Prepared) -> Result<Vec<&'a Cell>> {
    match &prepared.partition {
        Some(partition) => partition.of(&prepared.manifest.plan, &prepared.cells),
        None => Ok(prepared.cells.iter().collect()),
    }
}

/// Prints the cells of this process, one per line, and how much they are of a plan that is shared.
fn print_plan(prepared: &Prepared) -> Result<Exit> {
    let share = share(prepared)?;
    for cell in &share {
        outln!("{}", cell.id);
    }
    if let Some(partition) = &prepared.partition {
        let part = |a: u64, b: u64| 100.0 * a as f64 / b.max(1) as f64;
        let (own, all) = (cost(share.iter().copied()), cost(&prepared.cells));
        let (cells, of) = (share.len(), prepared.cells.len());
        errln!(
            "{partition}: {cells} of {of} cells, {:.1} % of the estimated cost",
            part(own, all)
        );
    }
    Ok(Exit::Pass)
}

/// Where it is kept what came of faults, if they are planted and there are kernels to plant them in.
fn faults(args: &SweepArgs, prepared: &Prepared, folder: &Folder) -> Option<MutantFiles> {
    let planted = args.kernels.mutants && prepared.manifest.ceilings.is_some();
    planted.then(|| MutantFiles::new(&folder.path, folder.run()))
}

fn execute(
    args: &SweepArgs,
    prepared: &Prepared,
    device: Option<&Device>,
    folder: &Folder,
    session: &ActiveSession,
) -> Result<()> {
    let share = share(prepared)?;
    let mut pending = Vec::new();
    for &cell in &share {
        if !folder.finished(&cell.id)? {
            pending.push(cell);
        }
    }
    if pending.is_empty() && !args.kernels.mutants {
        return Ok(());
    }
    let bar = progress(args, share.len(), pending.len());
    let _lines = Lines::new(&bar, "cells", args.no_progress);
    let Prepared {
        question, runs, texts, ..
    } = prepared;
    let (seed, plan) = (question.parsed.experiment.seed, &prepared.manifest.plan);
    let of_sites = match runs {
        Runs::Kernels(study) => operations::reading_sites(study).map_err(|mistake| Error::Usage(mistake.message))?,
        Runs::Windows(_) => HashSet::new(),
    };
    let draws = plan.windows.len().saturating_sub(texts.len());
    let reads = |cell: &&Cell| match runs {
        Runs::Kernels(_) => of_sites.contains(&format!("{}/{}", cell.recipe, plan.windows[cell.window])),
        Runs::Windows(_) => cell.window >= draws,
    };
    // Operations whose faults are planted here, and which of them. Each fault is tried on all cases, whoever runs these.
    let (planted, own): (Vec<&str>, Share) = match &prepared.partition {
        _ if !args.kernels.mutants => (vec![], Share::WHOLE),
        Some(Partition::Op(op, own)) => (vec![op], *own),
        _ => (kernels::ops_of(share), Share::WHOLE),
    };
    let plants = |cell: &String| {
        planted
            .iter()
            .any(|op| cell.split_once('.').is_some_and(|(of, _)| of == *op))
    };
    let model = match &prepared.folder {
        Some(_) if pending.iter().any(reads) || of_sites.iter().any(plants) => Some(prepared.open()?.load()?),
        _ => None,
    };
    let done = |cell: &Cell, records: Vec<Record>| {
        folder.write_cell(cell, &records)?;
        session.finished(cell);
        bar.inc(1);
        if args.kernels.timed
            && let Some(line) = kernels::line(&records)
        {
            bar.suspend(|| errln!("{line}"));
        }
        Ok(())
    };
    let text = |at: usize| {
        model.as_deref().map(|model| Text {
            model,
            ids: &texts[at].ids,
        })
    };
    let study = match runs {
        Runs::Kernels(study) => study,
        Runs::Windows(ready) => {
            let mut decision = UntilDecided::new(folder, &prepared.manifest);
            // They are in the order of the plan, window by window.
            let mut rest = &pending[..];
            for (index, window) in plan.windows.iter().enumerate() {
                let cells;
                (cells, rest) = rest.split_at(rest.partition_point(|cell| cell.window == index));
                bar.set_message(window.clone());
                let read = index.checked_sub(draws);
                let bench = Bench {
                    window,
                    text: read.and_then(text),
                    bytes: read.and_then(|at| texts[at].bytes),
                    folder: prepared.folder.as_deref(),
                    load_f64: &|| prepared.open()?.load(),
                    load_by: &|numerics| prepared.open()?.load_by(numerics),
                    stop: &signal::STOP,
                    done: &done,
                };
                if !cells.is_empty() {
                    // On a thread of the pool, which the many small pieces of a token need not wake then.
                    rayon::scope(|_| ready.window(&bench, cells))?;
                }
                if args.until_decided && decision.after(index)? {
                    break;
                }
            }
            bar.finish_and_clear();
            return Ok(());
        }
    };
    let keep = args.kernels.keep_failed.as_ref().map(|folder| Capsules {
        folder: folder.clone(),
        invocation: args.invocation(true),
        several: study.draws.is_some_and(|draws| draws > 1),
    });
    let text = texts.first().and_then(|_| text(0));
    let sites = |pattern: &str| match text {
        Some(text) => kernels::sites(text, pattern),
        None => Err("no model is given".into()),
    };
    let cells = kernels::Cells {
        study,
        data: &Data::new(seed, &sites).with_checkpoint(prepared.folder.as_deref()),
        done: &done,
        stop: &signal::STOP,
        keep: keep.as_ref(),
    };
    let program = |cell: &&Cell| programs::is_of(&study.commands, cell);
    let (programs, variants): (Vec<&Cell>, Vec<&Cell>) = pending.into_iter().partition(program);
    programs::run(&cells, &programs)?;
    let Some(device) = device.filter(|_| !variants.is_empty() || args.kernels.mutants) else {
        bar.finish_and_clear();
        return Ok(());
    };
    let on_device = kernels::Variants {
        cells,
        sources: &question.sources,
        session: Session::open(device)?,
        ceilings: prepared.manifest.ceilings,
        mutant: args.kernels.mutant.as_deref(),
        peers: prepared.peers.as_ref(),
    };
    on_device.run(&variants)?;
    bar.finish_and_clear();
    if !args.kernels.mutants {
        return Ok(());
    }
    let files = MutantFiles::new(&folder.path, folder.run());
    on_device.mutants(&planted, own, &files)
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
