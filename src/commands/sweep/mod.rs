//! `ulplab sweep`: plan, run, gate and report in one go.

use std::cell::RefCell;
use std::collections::HashSet;
use std::path::{Path, PathBuf};

use indicatif::ProgressBar;

use super::judged;
use crate::dataset::{Manifest as Datasets, Tokens};
use crate::experiment::file::ExperimentFile;
use crate::experiment::{Mistake, Window};
use crate::gate::{self, UntilDecided, check_sequential, resolve};
use crate::progress::{self, Lines};
use crate::run::folder::Folder;
use crate::run::invocation::Invocation;
use crate::run::partition::{Partition, PartitionArg, cost};
use crate::run::plan::{Cell, select, unnameable};
use crate::run::session::ActiveSession;
use crate::run::{self, Manifest, Run, runs, scheduler, store};
use crate::studies::inputs::{Inputs, verified};
use crate::studies::limits::{Bytes, available, check_cells, check_size};
use crate::studies::{self, Lab, Measured, ParsedExperiment, Planned, ReadyRecipes, Share};
use crate::{itself, provenance, signal};
use ulplab_core::error::{Error, Exit, Result};
use ulplab_core::record::Record;
use ulplab_core::text::shown;

/// Run an experiment: plan, measure, gate, report.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct SweepArgs {
    /// The experiment file.
    pub experiment: PathBuf,
    /// Override a key of the experiment, e.g. --set tokens=128, --set 'kernels=["rope.*"]' or --set 'gate=[]'. The changed
    /// experiment can still PASS; a run limited by --only or --skip cannot.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub overrides: Vec<String>,
    /// Use the gates of this file instead of the experiment's own. The file is an experiment, or contains only [[gate]].
    #[arg(long, value_name = "FILE")]
    pub rules: Option<PathBuf>,
    /// Run only cells whose id (recipe/phase/window) matches. A run with cells left out is at best PARTLY JUDGED, exit code 4.
    #[arg(long, value_name = "GLOB")]
    pub only: Vec<String>,
    /// Leave out cells whose id matches. As with --only, such a run is at best PARTLY JUDGED.
    #[arg(long, value_name = "GLOB")]
    pub skip: Vec<String>,
    /// Seed of every random draw [default: the experiment's own].
    #[arg(long)]
    pub seed: Option<u64>,
    /// Folder of the run [default: runs/<name>/<time>].
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Continue an unfinished run: the one in --out, or the newest of this experiment.
    #[arg(long)]
    pub resume: bool,
    /// Run only a share of the cells: slice:M/N is the M-th of N shares of about equal estimated cost; hash:M/N deals cells by a
    /// hash of their ids, so that they keep their share when others are added; op:NAME are those of an operation with kernels,
    /// op:NAME:M/N those of a share of its cases. `slice` and `hash` without numbers take M and N from the task of a Slurm array,
    /// of an indexed Kubernetes job, or of a GitLab job with `parallel`. The partitions share one --out, or have one each. A
    /// partition that finds all cells present when its share is done judges the run; the others exit with 0. So run `ulplab merge`
    /// at the end.
    #[arg(long, value_name = "PART")]
    pub partition: Option<PartitionArg>,
    /// End at the first window after which every gate is decided; all gates have statistic = "sequential".
    #[arg(long, conflicts_with_all = ["only", "skip", "partition"])]
    pub until_decided: bool,
    /// Judge nothing, exit code 4, if the text or the checkpoint cannot tell formats apart: the reference's loss is at least 90 % of that
    /// of uniform guesses, or the losses of all recipes lie within each other's noise. Without --strict the report says so.
    #[arg(long)]
    pub strict: bool,
    /// Print the planned cells, one per line, without running them.
    #[arg(long)]
    pub dry_run: bool,
    /// Print verdicts as JSON Lines on stdout instead of the table.
    #[arg(long)]
    pub json: bool,
    /// Refuse a run that needs more memory, e.g. 16G [default: the free memory of the machine].
    #[arg(long, value_name = "SIZE")]
    pub max_memory: Option<Bytes>,
    /// Show no progress bar.
    #[arg(long)]
    pub no_progress: bool,
    /// Folder of the data sets [default: $ULPLAB_DATASETS, or datasets/ here or in a folder above].
    #[arg(long, value_name = "DIR")]
    pub datasets: Option<PathBuf>,
}

impl SweepArgs {
    /// The part of the arguments that the run's folder stores.
    pub fn invocation(&self) -> Invocation {
        Invocation {
            experiment: self.experiment.clone(),
            set: self.overrides.clone(),
            rules: self.rules.clone(),
            only: self.only.clone(),
            skip: self.skip.clone(),
            until_decided: self.until_decided,
            strict: self.strict,
            datasets: self.datasets.clone(),
            ..Invocation::default()
        }
    }
}

/// The question, as its files say it.
pub struct Question {
    pub file: ExperimentFile,
    /// The file of `--rules`.
    rules: Option<ExperimentFile>,
    pub parsed: ParsedExperiment,
}

/// Everything decided before the first cell runs.
pub struct Prepared<'a> {
    pub ready: Box<dyn ReadyRecipes + 'a>,
    /// The model and each window of text.
    pub inputs: Inputs,
    pub cells: Vec<Cell>,
    pub manifest: Manifest,
    /// The share of this process; none if it works on all cells.
    pub partition: Option<Partition>,
}

pub fn run(args: &SweepArgs) -> Result<Exit> {
    answer(args, &read(args)?)
}

/// Runs an experiment that is read, and judges it.
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
    let folder = enter_and_execute(args, &mut prepared)?;
    // Read again: this process's session, and those of others, count by now.
    let (folder, manifest) = Folder::open(&folder.path)?;
    let cells: Vec<&Cell> = prepared.cells.iter().collect();
    let records = gate::records(&folder, &manifest);
    let complete = prepared.ready.check_kept(&folder, &manifest, &cells);
    let records = records.and_then(|records| complete.map(|()| records));
    let records = match (&prepared.partition, records) {
        // This process is done. Cells that others have yet to run are not its failure.
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

/// Measures the cells of an experiment that needs no GPU, and judges nothing.
pub fn measure(args: &SweepArgs) -> Result<(Folder, Manifest)> {
    let question = read(args)?;
    let mut prepared = prepare(args, &question)?;
    let folder = enter_and_execute(args, &mut prepared)?;
    Folder::open(&folder.path)
}

/// Works on the run's folder until its cells, or this process's share of them, are done.
fn enter_and_execute(args: &SweepArgs, prepared: &mut Prepared) -> Result<Folder> {
    let (folder, manifest) = enter(args, prepared)?;
    prepared.manifest = manifest;
    let shared = match &prepared.partition {
        None => prepared.ready.processes(&prepared.manifest, &prepared.cells)?,
        Some(_) => None,
    };
    if let Some(processes) = shared {
        // Each of them leaves a session of its own.
        let bar = progress(args, prepared.cells.len(), 0);
        signal::while_running(|| processes.run(&folder, &prepared.cells, &bar))?;
        return Ok(folder);
    }
    let partition = prepared.partition.as_ref().map(ToString::to_string);
    let session = ActiveSession::begin(&folder.sessions(), partition)?;
    let outcome = signal::while_running(|| execute(args, prepared, &folder, &session));
    let written = session.end(outcome.as_ref().err());
    outcome?;
    written?;
    Ok(folder)
}

/// The run's folder, new, resumed or shared, with its manifest on disk.
fn enter(args: &SweepArgs, prepared: &Prepared) -> Result<(Folder, Manifest)> {
    let mut manifest = prepared.manifest.clone();
    manifest.fingerprint = manifest.identity();
    let name = &manifest.experiment.name;
    let path = match &args.out {
        Some(out) => out.clone(),
        None if args.resume => runs::newest(&runs::of(name))?,
        None => runs::fresh(name, &manifest.started_at),
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

/// Reads the experiment, and the file with its gates.
pub fn read(args: &SweepArgs) -> Result<Question> {
    read_file(args, ExperimentFile::read(&args.experiment, &args.overrides)?)
}

/// The same of an experiment that is already read.
pub fn read_file(args: &SweepArgs, file: ExperimentFile) -> Result<Question> {
    let parsed = studies::parse(&file)?;
    Question::new(args, file, parsed)
}

impl Question {
    /// An experiment with the seed and the gates that the arguments give it.
    pub fn new(args: &SweepArgs, file: ExperimentFile, mut parsed: ParsedExperiment) -> Result<Self> {
        let head = &mut parsed.experiment.head;
        head.seed = args.seed.unwrap_or(head.seed);
        let rules = args.rules.as_deref().map(|rules| ExperimentFile::read(rules, &[]));
        let rules = rules.transpose()?;
        if let Some(rules) = &rules {
            head.gates = rules.gates()?;
        }
        parsed.resolve(&file)?;
        Ok(Self { file, rules, parsed })
    }
}

/// Plans the run, and checks everything that can be checked before its first cell.
pub fn prepare<'a>(args: &SweepArgs, question: &'a Question) -> Result<Prepared<'a>> {
    let Question { file, rules, parsed } = question;
    let wrong = |mistake: Mistake| file.error(&mistake);
    let (head, study) = (&parsed.experiment.head, &*parsed.study);
    let partition = args.partition.as_ref().map(partition).transpose()?;
    study.check().map_err(wrong)?;
    let plan = study.plan();
    check_cells(&plan).map_err(wrong)?;

    let datasets = Datasets::open(args.datasets.as_deref())?;
    let reading = study.reading();
    let (mut inputs, description) = Inputs::find(file, head, reading, &datasets)?;
    let notes = &description.notes;
    notes.iter().for_each(|note| errln!("note: {}", shown(note)));
    let config = description.config.as_deref();
    let limit = args.max_memory.or_else(available);
    check_size(study, config, rayon::current_num_threads(), limit).map_err(wrong)?;
    inputs.read_texts(file, head, reading, &datasets, &description)?;
    check_overlaps(reading.windows, &inputs.texts).map_err(wrong)?;
    let gates = rules.as_ref().unwrap_or(file);
    let gated = study.check_gates(&head.gates, &plan, config);

    if let Some((cell, message)) = unnameable(&plan.cells()) {
        return Err(file.error(&parsed.place_of(cell, message)));
    }
    let selectable = study.selectable(&plan).map_err(wrong)?;
    // Formats and sites are named by recipes, and gates by both.
    let mut ready = study.ready(head.seed, config).map_err(wrong)?;
    gated.map_err(|mistake| gates.error(&mistake))?;
    if args.until_decided {
        check_sequential(&head.gates).map_err(|mistake| gates.error(&mistake))?;
    }
    let cells = select(selectable, &args.only, &args.skip)?;
    let mut recipes = study.recipes();
    for recipe in &mut recipes {
        let bytes = ready.bytes(&recipe.name);
        recipe.bytes_per_vector = bytes.vector;
        recipe.bytes_per_token = bytes.token;
        recipe.of_bf16 = bytes.of_bf16;
    }
    let folder = args.experiment.parent();
    let folder = folder.filter(|folder| !folder.as_os_str().is_empty());
    let mut manifest = Manifest {
        data: verified(reading, &datasets)?,
        notes: description.notes.clone(),
        vocabulary: config.and_then(|config| config.vocabulary()),
        schema: store::SCHEMA,
        version: env!("CARGO_PKG_VERSION").into(),
        commit: itself::commit_of(folder.unwrap_or(Path::new("."))),
        program: provenance::program(),
        experiment: parsed.experiment.clone(),
        plan,
        invocation: args.invocation(),
        device: "cpu".into(),
        threads: rayon::current_num_threads(),
        started_at: run::now(),
        recipes,
        ..Manifest::default()
    };
    ready.prepare(file, &cells, &mut manifest)?;
    manifest.keep(&cells);
    resolve(&mut manifest, gates)?;
    Ok(Prepared {
        ready,
        inputs,
        cells,
        manifest,
        partition,
    })
}

/// Refuses windows at given places that share bytes of a text: as samples they would count several times. Draws may share some, for
/// each is drawn for itself.
fn check_overlaps(windows: &[Window], texts: &[Tokens]) -> std::result::Result<(), Mistake> {
    let span = |at: usize| {
        let (window, text) = (&windows[at], &texts[at]);
        window.offset..window.offset.saturating_add(text.bytes.unwrap_or(text.ids.len()))
    };
    for (at, window) in windows.iter().enumerate().filter(|(_, window)| window.draw.is_none()) {
        let before = windows[..at].iter().enumerate();
        for (other, earlier) in before.filter(|(_, other)| other.draw.is_none()) {
            let (own, its) = (span(at), span(other));
            let same_text = earlier.text == window.text && own.start < its.end && its.start < own.end;
            if same_text || are_copies(&texts[at].ids, &texts[other].ids) {
                let (earlier, later, apart) = (earlier.name(), window.name(), its.len().max(own.len()));
                let why = format!("so they are not independent; expected offsets at least {apart} bytes apart");
                let message = format!("windows '{earlier}' and '{later}' share text, {why}");
                return Err(Mistake::at("offset", message).within("window", at));
            }
        }
    }
    Ok(())
}

/// True if windows are equal, or share a run of three quarters of them and at least 48 tokens: copies of a text under other names.
fn are_copies(window: &[u32], other: &[u32]) -> bool {
    let run = (3 * window.len().min(other.len()) / 4).max(48);
    if window.len().min(other.len()) < run {
        return window == other;
    }
    let runs: HashSet<&[u32]> = other.windows(run).collect();
    window.windows(run).any(|run| runs.contains(run))
}

/// The share that the user wants. A share from the environment is printed.
fn partition(asked: &PartitionArg) -> Result<Partition> {
    let (partition, from) = scheduler::resolve(asked, |name| std::env::var(name).ok())?;
    if let Some(from) = from {
        errln!("--partition {partition}, from {from}");
    }
    Ok(partition)
}
