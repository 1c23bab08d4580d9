//! What is asked and planned, before the first cell of a sweep runs.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

use super::SweepArgs;
use crate::backend::cuda::Source as KernelFile;
use crate::commands::{calibrate, decided, judge};
use crate::dataset::{Checkpoint, Manifest as Datasets, Tokenizer, Tokens};
use crate::experiment::file::ExperimentFile;
use crate::experiment::{Mistake, Window};
use crate::run::partition::{Asked, Partition};
use crate::run::plan::{Cell, Plan, select, unnameable};
use crate::run::{self, Manifest, RecipeInfo, scheduler, store};
use crate::studies::kernels::peers::Peers;
use crate::studies::kernels::{self, OnDevice, operations, programs};
use crate::studies::limits::{available, check_cells, check_size};
use crate::studies::{self, ParsedExperiment, Runs};
use crate::{itself, provenance};
use ulplab_core::error::{Error, Result};
use ulplab_core::text::shown;

/// What is asked, as its files say it.
pub struct Question {
    pub file: ExperimentFile,
    /// The file of `--rules`.
    rules: Option<ExperimentFile>,
    pub parsed: ParsedExperiment,
    /// The files of kernels, if any run or stand in.
    pub sources: Vec<KernelFile>,
}

/// Everything decided before the first cell runs.
pub struct Prepared<'a> {
    pub question: &'a Question,
    pub runs: Runs<'a>,
    /// Folder of the checkpoint, if there is a model.
    pub folder: Option<PathBuf>,
    /// Each window of text.
    pub texts: Vec<Tokens>,
    pub cells: Vec<Cell>,
    pub peers: Option<Peers>,
    pub manifest: Manifest,
    /// The share of this process; none if it works on all cells.
    pub partition: Option<Partition>,
}

impl Prepared<'_> {
    /// Opens the checkpoint.
    ///
    /// # Errors
    /// There is no model, and errors of its files.
    pub fn open(&self) -> Result<Checkpoint> {
        let folder = self.folder.as_deref();
        let folder = folder.ok_or_else(|| Error::Usage("the experiment has no model".into()))?;
        Checkpoint::open_without(folder, &self.question.parsed.experiment.inert)
    }
}

/// Reads the experiment and the other files that say what is asked.
pub fn read(args: &SweepArgs) -> Result<Question> {
    read_file(args, ExperimentFile::read(&args.experiment, &args.overrides)?)
}

/// The same of an experiment that is already read.
pub fn read_file(args: &SweepArgs, file: ExperimentFile) -> Result<Question> {
    let mut parsed = studies::parse(&file)?;
    let head = &mut parsed.experiment.head;
    head.seed = args.seed.unwrap_or(head.seed);
    let rules = args
        .rules
        .as_deref()
        .map(|rules| ExperimentFile::read(rules, &[]))
        .transpose()?;
    if let Some(rules) = &rules {
        head.gates = rules.gates()?;
    }
    if args.kernels.alone && parsed.study.kernels().is_none() {
        let path = args.experiment.display();
        let why = format!("this is no experiment of kernels; `ulplab sweep {path}` runs it");
        return Err(Error::config(&file.path, why));
    }
    let mut sources = Vec::new();
    if parsed.study.kernels().is_some() || parsed.study.stands_in() {
        sources = KernelFile::read_all(&kernels::folder()?)?;
    }
    if let Some(mutant) = &args.kernels.mutant {
        kernels::check_mutant(mutant, &sources)?;
    }
    parsed
        .resolve_kernels(&sources)
        .map_err(|mistake| file.error(&mistake))?;
    Ok(Question {
        file,
        rules,
        parsed,
        sources,
    })
}

/// Plans the run, and checks everything that can be checked before its first cell.
pub fn prepare<'a>(args: &SweepArgs, question: &'a Question) -> Result<Prepared<'a>> {
    let Question {
        file, rules, parsed, ..
    } = question;
    let wrong = |mistake: Mistake| file.error(&mistake);
    let study = &*parsed.study;
    let partition = args.partition.as_ref().map(partition).transpose()?;
    study.check().map_err(wrong)?;
    let plan = study.plan();
    check_cells(&plan).map_err(wrong)?;

    let datasets = Datasets::open(args.datasets.as_deref())?;
    let reading = study.reading();
    let folder = reading.model.map(|model| datasets.checkpoint(model));
    let folder = folder
        .transpose()
        .map_err(|error| file.of_data(Mistake::at("model", ""), error))?;
    let inert = &parsed.experiment.inert;
    if let Some(key) = inert.first().filter(|_| folder.is_none()) {
        let message = format!("names '{key}' of a config.json, but the experiment reads no model");
        return Err(wrong(Mistake::at("inert", message)));
    }
    let checkpoint = folder
        .as_ref()
        .map(|folder| Checkpoint::open_without(folder, inert))
        .transpose()?;
    let tokenizer = checkpoint
        .as_ref()
        .filter(|_| !reading.windows.is_empty())
        .map(Checkpoint::tokenizer)
        .transpose()
        .map_err(|error| file.of_data(Mistake::at("model", ""), error))?;
    // Without a model a window is bytes.
    let tokenizer = tokenizer.unwrap_or(Tokenizer::Bytes);
    let (config, notes) = checkpoint
        .map(|checkpoint| (checkpoint.config, checkpoint.notes))
        .unzip();
    let notes: Vec<String> = notes.unwrap_or_default();
    notes.iter().for_each(|note| errln!("note: {}", shown(note)));
    let limit = args.max_memory.or_else(available);
    check_size(study, config.as_deref(), rayon::current_num_threads(), limit).map_err(wrong)?;
    let texts = reading.windows.iter().enumerate().map(|(at, window)| {
        let text = window.read(&datasets, &tokenizer, parsed.experiment.seed, reading.tokens);
        text.map_err(|error| file.of_data(Mistake::at("text", "").within("window", at), error))
    });
    let texts = texts.collect::<Result<Vec<Tokens>>>()?;
    check_overlaps(reading.windows, &texts).map_err(wrong)?;
    let gates = rules.as_ref().unwrap_or(file);
    let gated = judge::check(&parsed.experiment.gates, study, &plan, config.as_deref());

    let mut selectable = plan.cells();
    if let Some((cell, message)) = unnameable(&selectable) {
        return Err(file.error(&parsed.place_of(cell, message)));
    }
    if let Some(study) = study.kernels().filter(|_| args.kernels.timed) {
        let timed = operations::timed(study).map_err(wrong)?;
        selectable.retain(|cell| timed.contains(&format!("{}/{}", cell.recipe, study.case_names[cell.window])));
    }
    let peers = args.kernels.peers.as_deref().map(Peers::read).transpose()?;
    // Formats and sites are named by recipes, and gates by both.
    let runs = study.ready(parsed.experiment.seed, config.as_deref()).map_err(wrong)?;
    gated.map_err(|mistake| gates.error(&mistake))?;
    if args.until_decided {
        let rules = &parsed.experiment.gates;
        decided::check(rules).map_err(|mistake| gates.error(&mistake))?;
    }
    let cells = select(selectable, &args.only, &args.skip)?;
    let recipes = sized(study.recipes(), &runs);
    let mut manifest = manifest(args, question, plan, &datasets, recipes, peers.as_ref())?;
    manifest.notes = notes;
    if let Some(study) = study.kernels() {
        let home = file.path.parent().unwrap_or(Path::new(""));
        manifest.data.extend(operations::watched(study, home).map_err(wrong)?);
        if args.kernels.device == OnDevice::Cuda {
            programs::check_programs(study, &cells).map_err(wrong)?;
        }
    }
    manifest.vocabulary = config.as_ref().and_then(|config| config.vocabulary());
    manifest.keep(&cells);
    calibrate::resolve(&mut manifest, gates)?;
    Ok(Prepared {
        question,
        runs,
        folder,
        texts,
        cells,
        peers,
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
        let before = windows[..at]
            .iter()
            .enumerate()
            .filter(|(_, other)| other.draw.is_none());
        for (other, earlier) in before {
            let (own, its) = (span(at), span(other));
            let same_text = earlier.text == window.text && own.start < its.end && its.start < own.end;
            if same_text || are_copies(&texts[at].ids, &texts[other].ids) {
                let message = format!(
                    "windows '{}' and '{}' share text, so they are no independent samples; expected offsets at least {} bytes apart",
                    earlier.name(),
                    window.name(),
                    its.len().max(own.len())
                );
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

/// The share that the user wants; what is taken from the environment is said.
fn partition(asked: &Asked) -> Result<Partition> {
    let (partition, from) = scheduler::resolve(asked, |name| std::env::var(name).ok())?;
    if let Some(from) = from {
        errln!("--partition {partition}, from {from}");
    }
    Ok(partition)
}

/// What reports say of recipes, with the sizes that they have in caches.
fn sized(mut recipes: Vec<RecipeInfo>, runs: &Runs) -> Vec<RecipeInfo> {
    if let Runs::Windows(ready) = runs {
        for recipe in &mut recipes {
            let bytes = ready.bytes(&recipe.name);
            recipe.bytes_per_vector = bytes.vector;
            recipe.bytes_per_token = bytes.token;
            recipe.of_bf16 = bytes.of_bf16;
        }
    }
    recipes
}

fn manifest(
    args: &SweepArgs,
    question: &Question,
    plan: Plan,
    datasets: &Datasets,
    recipes: Vec<RecipeInfo>,
    peers: Option<&Peers>,
) -> Result<Manifest> {
    let ParsedExperiment { experiment, study } = &question.parsed;
    let reading = study.reading();
    let mut texts: Vec<&str> = reading.windows.iter().map(|window| window.text.as_str()).collect();
    texts.sort_unstable();
    texts.dedup();
    let mut data = Vec::new();
    for name in reading.model.into_iter().chain(texts) {
        data.extend(datasets.verify(name)?);
    }
    // A run of kernels is continued only if the kernels and their judgement are unchanged.
    let op = |recipe: &RecipeInfo| recipe.name.split_once('.').map(|(op, _)| op.to_string());
    let ops: HashSet<String> = recipes.iter().filter_map(op).collect();
    let used = |source: &&KernelFile| study.stands_in() || ops.contains(&source.op);
    for source in question.sources.iter().filter(used) {
        let name = format!("kernels/{}.cu", source.op);
        data.push((name, source.digest().to_hex().to_string()));
        let judgement = provenance::judgement(&source.op);
        data.extend(judgement.map(|digest| (format!("judgement of {}", source.op), digest.to_string())));
    }
    if let Some(study) = study.kernels() {
        data.extend(operations::files(study)?);
    }
    data.extend(peers.map(|peers| (peers.file.display().to_string(), peers.digest.clone())));
    Ok(Manifest {
        schema: store::SCHEMA,
        version: env!("CARGO_PKG_VERSION").into(),
        commit: commit(&args.experiment),
        program: provenance::program(),
        experiment: experiment.clone(),
        plan,
        invocation: args.invocation(study.kernels().is_some()),
        fingerprint: String::new(),
        data,
        device: "cpu".into(),
        threads: rayon::current_num_threads(),
        started_at: run::now(),
        seconds: 0.0,
        cells: Vec::new(),
        left_out: Vec::new(),
        hindered: BTreeMap::new(),
        notes: Vec::new(),
        recipes,
        vocabulary: None,
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
    itself::commit_of(folder)
}
