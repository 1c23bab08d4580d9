//! `ulplab sweep`: plans, runs, judges and reports an experiment in one command.

mod args;
mod prepare;

use std::cell::RefCell;

use indicatif::ProgressBar;

use super::judged;
use crate::gate::{self, UntilDecided};
use crate::progress::{self, Lines};
use crate::run::folder::Folder;
use crate::run::partition::cost;
use crate::run::plan::Cell;
use crate::run::session::ActiveSession;
use crate::run::{Manifest, Run, runs};
use crate::signal;
use crate::studies::{Lab, Measured, Planned, Share};
pub use args::SweepArgs;
pub(super) use prepare::{Prepared, Question, prepare, read, read_file};
use ulplab_core::error::{Error, Exit, Result};
use ulplab_core::record::Record;

pub fn run(args: &SweepArgs) -> Result<Exit> {
    answer(args, &read(args)?)
}

/// Runs an experiment that is already parsed, and judges the run.
pub(super) fn answer(args: &SweepArgs, question: &Question) -> Result<Exit> {
    let mut prepared = prepare(args, question)?;
    if args.dry_run {
        return print_plan(&prepared);
    }
    let Prepared {
        ready, manifest, cells, ..
    } = &mut prepared;
    let planned = Planned {
        manifest,
        cells,
        shared: args.out.as_deref().filter(|_| args.partition.is_some()),
        json: args.json,
    };
    if let Some(exit) = ready.open(planned)? {
        return Ok(exit);
    }
    let (folder, manifest) = enter_and_execute(args, &mut prepared)?;
    let cells: Vec<&Cell> = prepared.cells.iter().collect();
    let records = gate::records(&folder, &manifest);
    let complete = prepared.ready.check_kept(&folder, &manifest, &cells);
    let records = records.and_then(|records| complete.map(|()| records));
    let records = match (&prepared.partition, records) {
        // This process finished its own cells, but cells of other tasks are missing: the run is not judged, and this is not a
        // failure.
        (Some(partition), Err(why @ (Error::Incomplete(_) | Error::Data { .. }))) => {
            errln!("{partition} is done, and nothing is judged yet: {why}");
            return prepared.ready.conclude_share(&folder, &manifest, &share(&prepared)?);
        }
        (_, records) => records?,
    };
    let run = Run::judge(&folder, manifest, records)?;
    judged::finish(&folder, &run, &*question.parsed.study, args.json)?;
    prepared.ready.conclude(Measured {
        folder: &folder,
        run: &run,
        cells: &cells,
        json: args.json,
    })
}

/// Measures the cells of an experiment that needs no GPU. Does not judge them.
pub fn measure(args: &SweepArgs) -> Result<(Folder, Manifest)> {
    let question = read(args)?;
    let mut prepared = prepare(args, &question)?;
    enter_and_execute(args, &mut prepared)
}

/// Creates or opens the folder of the run, and measures all unfinished cells of this process. Returns the folder, and the manifest
/// read again: its seconds of work now include those of all processes on the run.
fn enter_and_execute(args: &SweepArgs, prepared: &mut Prepared) -> Result<(Folder, Manifest)> {
    let (folder, manifest) = enter(args, prepared)?;
    prepared.manifest = manifest;
    let shared = match &prepared.partition {
        None => prepared.ready.processes(&prepared.manifest, &prepared.cells)?,
        Some(_) => None,
    };
    if let Some(processes) = shared {
        // Writes no session file here: each child process writes its own.
        let bar = progress(args, prepared.cells.len(), 0);
        signal::while_running(|| processes.run(&folder, &prepared.cells, &bar))?;
        return Folder::open(&folder.path);
    }
    let partition = prepared.partition.as_ref().map(ToString::to_string);
    let session = ActiveSession::begin(&folder.sessions(), partition)?;
    let outcome = signal::while_running(|| execute(args, prepared, &folder, &session));
    let written = session.end(outcome.as_ref().err());
    outcome?;
    written?;
    Folder::open(&folder.path)
}

/// Creates the folder of the run, or opens the folder of a run to resume or to share with other processes. Returns the folder,
/// and the manifest stored in it.
fn enter(args: &SweepArgs, prepared: &Prepared) -> Result<(Folder, Manifest)> {
    let mut manifest = prepared.manifest.clone();
    manifest.fingerprint = manifest.identity();
    let name = &manifest.experiment.name;
    let path = match &args.out {
        Some(out) => out.clone(),
        None if args.resume => runs::newest(&runs::of(name))?,
        None => runs::fresh(name, &manifest.started_at),
    };
    let none = format_args!("{}: no run to resume", path.display());
    Error::refuse(args.resume && !path.exists(), none)?;
    Folder::enter(&path, &manifest, args.resume || prepared.partition.is_some())
}

/// Returns the cells that this process runs: those of its partition, or all.
fn share<'a>(prepared: &'a Prepared) -> Result<Vec<&'a Cell>> {
    match &prepared.partition {
        Some(partition) => partition.of(&prepared.manifest.plan, &prepared.cells),
        None => Ok(prepared.cells.iter().collect()),
    }
}

/// Prints the cells of this process, one per line; for a partition, also its share of all cells and of the cost.
fn print_plan(prepared: &Prepared) -> Result<Exit> {
    let share = share(prepared)?;
    for cell in &share {
        outln!("{}", cell.id);
    }
    if let Some(partition) = &prepared.partition {
        let (own, all) = (cost(share.iter().copied()), cost(&prepared.cells));
        let percent = 100.0 * own as f64 / all.max(1) as f64;
        let (cells, of) = (share.len(), prepared.cells.len());
        errln!("{partition}: {cells} of {of} cells, {percent:.1} % of the estimated cost");
    }
    Ok(Exit::Pass)
}

/// Runs the cells of this process that are not yet finished.
fn execute(args: &SweepArgs, prepared: &Prepared, folder: &Folder, session: &ActiveSession) -> Result<()> {
    let share = share(prepared)?;
    let mut pending = Vec::new();
    for &cell in &share {
        if !folder.finished(&cell.id)? {
            pending.push(cell);
        }
    }
    let bar = progress(args, share.len(), pending.len());
    let _lines = Lines::new(&bar, "cells", args.no_progress);
    let done = |cell: &Cell, records: Vec<Record>| {
        folder.write_cell(cell, &records)?;
        session.finished(cell);
        bar.inc(1);
        Ok(())
    };
    let manifest = &prepared.manifest;
    let decision = RefCell::new(UntilDecided::new(folder, manifest));
    let decided = |window| Ok(args.until_decided && decision.borrow_mut().after(window)?);
    let lab = Lab {
        decided: &decided,
        bar: bar.clone(),
        share: Some(Share {
            folder,
            partition: prepared.partition.as_ref(),
            cells: &share,
        }),
        ceilings: manifest.ceilings,
        ..Lab::new(&manifest.plan, &prepared.inputs, &signal::STOP, &done)
    };
    prepared.ready.run(&lab, &pending)?;
    bar.finish_and_clear();
    Ok(())
}

fn progress(args: &SweepArgs, all: usize, pending: usize) -> ProgressBar {
    let template = "{bar:40} {pos}/{len} cells  {elapsed} (about {eta} left)  {msg}";
    let bar = progress::bar(Some(all), template, args.no_progress);
    bar.set_position((all - pending) as u64);
    bar
}
