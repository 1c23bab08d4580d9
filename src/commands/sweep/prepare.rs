//! Reads and checks an experiment, and plans its run, before anything is measured.

use std::collections::HashSet;
use std::path::Path;

use super::SweepArgs;
use crate::dataset::{Manifest as Datasets, Tokens};
use crate::experiment::file::ExperimentFile;
use crate::experiment::{Mistake, Window};
use crate::gate::{check_sequential, resolve};
use crate::run::partition::{Partition, PartitionArg};
use crate::run::plan::{Cell, select, unnameable};
use crate::run::{self, Manifest, scheduler, store};
use crate::studies::inputs::{Inputs, verified};
use crate::studies::limits::{available, check_cells, check_size};
use crate::studies::{self, ParsedExperiment, ReadyRecipes};
use crate::{itself, provenance};
use ulplab_core::error::Result;
use ulplab_core::text::shown;

/// The input of a sweep: an experiment and its gates, as read from files.
pub struct Question {
    pub file: ExperimentFile,
    /// The file of `--rules`, whose gates replace those of the experiment.
    rules: Option<ExperimentFile>,
    pub parsed: ParsedExperiment,
}

/// Results of planning: everything that is decided before the first cell runs.
pub struct Prepared<'a> {
    pub ready: Box<dyn ReadyRecipes + 'a>,
    /// The model and each window of text.
    pub inputs: Inputs,
    pub cells: Vec<Cell>,
    pub manifest: Manifest,
    /// The cells that this process runs; `None` for all cells.
    pub partition: Option<Partition>,
}

/// Reads the experiment's file and, if `--rules` is given, the file with the gates that replace the experiment's gates.
pub fn read(args: &SweepArgs) -> Result<Question> {
    read_file(args, ExperimentFile::read(&args.experiment, &args.overrides)?)
}

/// Same as [`read`], for an experiment file that was already read.
pub fn read_file(args: &SweepArgs, file: ExperimentFile) -> Result<Question> {
    let parsed = studies::parse(&file)?;
    Question::new(args, file, parsed)
}

impl Question {
    /// Applies the seed and the gates of the arguments to an experiment.
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
    let mut inputs = Inputs::find(file, head, reading, &datasets)?;
    inputs.notes.iter().for_each(|note| errln!("note: {}", shown(note)));
    let (threads, limit) = (rayon::current_num_threads(), args.max_memory.or_else(available));
    check_size(study, inputs.config.as_deref(), threads, limit).map_err(wrong)?;
    inputs.read_texts(file, head, reading, &datasets)?;
    let config = inputs.config.as_deref();
    check_overlaps(reading.windows, &inputs.texts).map_err(wrong)?;
    let gates = rules.as_ref().unwrap_or(file);
    let gated = study.check_gates(&head.gates, &plan, config);

    if let Some((cell, message)) = unnameable(&plan.cells()) {
        return Err(file.error(&parsed.place_of(cell, message)));
    }
    let selectable = study.selectable(&plan).map_err(wrong)?;
    // Reports mistakes in recipes before mistakes in gates, since gates depend on the formats and sites of recipes.
    let mut ready = study.ready(head.seed, config).map_err(wrong)?;
    gated.map_err(|mistake| gates.error(&mistake))?;
    if args.until_decided {
        check_sequential(&head.gates).map_err(|mistake| gates.error(&mistake))?;
    }
    let cells = select(selectable, &args.only, &args.skip)?;
    let mut recipes = study.recipes();
    for recipe in &mut recipes {
        recipe.bytes = ready.bytes(&recipe.name);
    }
    let folder = args.experiment.parent().filter(|folder| !folder.as_os_str().is_empty());
    let mut manifest = Manifest {
        schema: store::SCHEMA,
        version: env!("CARGO_PKG_VERSION").into(),
        commit: itself::commit_of(folder.unwrap_or(Path::new("."))),
        program: provenance::program(),
        experiment: parsed.experiment.clone(),
        plan,
        invocation: args.invocation(),
        data: verified(reading, &datasets)?,
        notes: inputs.notes.clone(),
        device: "cpu".into(),
        threads: rayon::current_num_threads(),
        started_at: run::now(),
        recipes,
        vocabulary: config.and_then(|config| config.vocabulary()),
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

/// Refuses windows at fixed offsets that share bytes of a text, since shared text would count several times in the statistics.
/// Drawn windows may overlap, since each is drawn independently.
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

/// True if one window repeats the other: both contain the same sequence of tokens, of at least 48 tokens and at least three
/// quarters of the shorter window. Windows that are too short for such a sequence must be equal.
fn are_copies(window: &[u32], other: &[u32]) -> bool {
    let run = (3 * window.len().min(other.len()) / 4).max(48);
    if window.len().min(other.len()) < run {
        return window == other;
    }
    let runs: HashSet<&[u32]> = other.windows(run).collect();
    window.windows(run).any(|run| runs.contains(run))
}

/// Returns the partition that `--partition` selects. If environment variables give the numbers, prints the partition.
fn partition(asked: &PartitionArg) -> Result<Partition> {
    let (partition, from) = scheduler::resolve(asked, |name| std::env::var(name).ok())?;
    if let Some(from) = from {
        errln!("--partition {partition}, from {from}");
    }
    Ok(partition)
}
