//! `ulplab inspect FILE`: statistics of the codes and scales of quantized tensors, or of tensors that the command quantizes in
//! memory. For a checkpoint, checks if it is complete and plausible.

mod checkpoint;
mod output;
mod stats;
mod summary;

use std::path::PathBuf;

use crate::progress::Progress;
pub use stats::{Histogram, SourceStats, Stats, Worst};
pub use summary::fit;
use ulplab_checkpoint::packed::{Naming, Opened, Stack, in_matrices, parts, tensor_named};
use ulplab_checkpoint::parity::output::write;
use ulplab_core::error::{Error, Exit, Result, refuse};
use ulplab_core::formats::{Format, GlobalScale};
use ulplab_core::pattern::selects;
use ulplab_core::tensorfile::{Tensor, TensorFile};
use ulplab_core::text::shown;

/// Judge a quantized checkpoint, or show the codes and scales of quantized tensors: histograms, largest codes and zeros; with
/// --source also clipping, underflow, SQNR, cosine and the worst blocks.
///
/// A folder with `config.json` is a checkpoint: its files, configuration, names, shapes, scales and codes are checked as
/// docs/checkpoints.md lists. The worst matrices are shown first. With --source, every matrix is also compared with its source
/// tensors, as loaders find them: under another prefix, in stacks of experts, in fused rows, or in a release that is itself
/// quantized. Exit code: 0 if nothing is wrong, 100 with at least one error, 4 if something was not judged or no tensor is
/// quantized.
///
/// Quantized tensors are recognised in the same way as by `ulplab dequantize`. If a file has none, its floating-point tensors are
/// quantized in memory to --format and shown in that form. A single tensor is shown with histograms. For several tensors there is
/// a summary and one line for each of the worst. Tensors are ranked by SQNR if the source is known, else by the fractions of NaN,
/// of largest codes and of zero codes. A largest code is not a loss: if a scale is derived from the largest magnitude of its
/// block, every block has such a code.
#[derive(Clone, Debug, clap::Args)]
pub struct InspectArgs {
    /// File of tensors, or folder of shards.
    pub file: PathBuf,
    /// File or folder with the unquantized tensors, under the same names. For a checkpoint, names that loaders map to these also
    /// count.
    #[arg(long, value_name = "FILE")]
    pub source: Option<PathBuf>,
    /// Kind of FILE [default: a checkpoint if it is a folder with config.json, unless an option states how tensors are read].
    #[arg(long = "as", value_name = "WHAT", value_enum)]
    pub taken_as: Option<FileKind>,
    /// Also write the report on a checkpoint to this file as an HTML page.
    #[arg(long, value_name = "FILE", value_parser = crate::output::file_name())]
    pub html: Option<PathBuf>,
    #[command(flatten)]
    pub naming: Naming,
    /// Show only tensors that match; repeatable.
    #[arg(long, value_name = "PATTERN")]
    pub only: Vec<String>,
    /// Leave out tensors that match; repeatable.
    #[arg(long, value_name = "PATTERN")]
    pub skip: Vec<String>,
    /// Show at most N tensors.
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub top: usize,
    /// Show all tensors.
    #[arg(long, conflicts_with = "top")]
    pub all: bool,
    /// Show the N worst blocks of a tensor.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub blocks: usize,
    /// Print JSON Lines: one record for each tensor; for a checkpoint, one for each finding and each matrix, and a summary. NaN
    /// is null, infinities are strings.
    #[arg(long)]
    pub json: bool,
    /// Show no progress bar.
    #[arg(long)]
    pub no_progress: bool,
}

/// The kind of a file or folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum FileKind {
    /// A quantized checkpoint, which is judged.
    Checkpoint,
    /// Tensors, whose statistics are shown.
    Tensors,
}

/// A tensor whose statistics are printed.
struct Subject<'a> {
    name: String,
    format: Format,
    shape: Vec<usize>,
    stack: Stack,
    bytes: Bytes<'a>,
}

/// Source of the codes and scales.
enum Bytes<'a> {
    /// Read from a file, with the unquantized source tensor if it is known.
    Stored(Box<Opened<'a>>, Option<Tensor<'a>>),
    /// Quantized in memory from this tensor.
    Source(Tensor<'a>),
}

/// A tensor and its statistics.
struct Inspection<'s> {
    of: &'s Subject<'s>,
    stats: Stats,
}

pub fn run(args: &InspectArgs) -> Result<Exit> {
    let named = args.naming.given();
    let default = match args.file.join("config.json").is_file() && named.is_none() {
        true => FileKind::Checkpoint,
        false => FileKind::Tensors,
    };
    if args.taken_as.unwrap_or(default) == FileKind::Checkpoint {
        let why = "has no meaning with --as checkpoint, whose conventions say it";
        let wrong = named.map(|flag| Error::Usage(format!("--{flag} {why}")));
        return wrong.map_or_else(|| checkpoint::run(args), Err);
    }
    let why = "--html is written of a checkpoint only; --as checkpoint takes any file for one";
    Error::refuse(args.html.is_some(), why)?;
    let file = TensorFile::open(&args.file)?;
    let source = args.source.as_ref().map(TensorFile::open).transpose()?;
    let subjects = subjects(args, &file, source.as_ref())?;
    let hint = "no quantized tensor; give --format to quantize the file's floating-point tensors in memory";
    let none = format_args!("{}: {hint}", args.file.display());
    refuse(subjects.is_empty(), none).map_err(Error::NothingSelected)?;
    let stacks: Vec<Stack> = subjects.iter().map(|subject| subject.stack).collect();
    let mut progress = Progress::new(stacks.iter().map(Stack::elements).sum(), args.no_progress);
    let mut all: Vec<Option<Stats>> = subjects.iter().map(|_| None).collect();
    let measure = |subject: usize, expert| subjects[subject].stats(expert, args.blocks);
    in_matrices(&stacks, measure, |subject, _, stats| -> Result<()> {
        all[subject] = Some(match all[subject].take() {
            None => stats,
            Some(before) => before.and(stats, args.blocks),
        });
        progress.advance(stacks[subject].matrix(), &subjects[subject].name);
        Ok(())
    })?;
    drop(progress);
    // A tensor without matrices has no codes: shows it with zero counts.
    let inspected = subjects.iter().zip(all.into_iter().map(Option::unwrap_or_default));
    let inspected: Vec<Inspection> = inspected.map(|(of, stats)| Inspection { of, stats }).collect();
    let text = match (args.json, inspected.as_slice()) {
        (true, all) => all.iter().map(output::record).collect(),
        (false, [one]) => output::page(one),
        (false, all) => summary::text(all, if args.all { all.len() } else { args.top }),
    };
    write(&mut crate::output::stdout(), &text)?;
    if args.file.is_dir() && args.taken_as.is_none() && named.is_none() {
        let folder = shown(&args.file.display().to_string());
        errln!(
            "{folder}: no config.json, so its tensors were shown and not judged; `--as checkpoint` judges them, `--as tensors` ends in 0"
        );
        return Ok(Exit::NotJudged);
    }
    Ok(Exit::Pass)
}

/// Returns the quantized tensors of the file; if it has none, all tensors that can be quantized.
fn subjects<'a>(args: &InspectArgs, file: &'a TensorFile, source: Option<&'a TensorFile>) -> Result<Vec<Subject<'a>>> {
    let wrong = |why| Error::data(&args.file, why);
    let found = args.naming.find(file, &[], &args.only, &args.skip)?;
    let any_name = found.len() == 1;
    let mut subjects = Vec::new();
    for packed in found {
        let opened = packed.open().map_err(wrong)?;
        let source = source.map(|source| source_of(source, &packed.name, &packed.shape, any_name));
        subjects.push(Subject {
            stack: opened.stack,
            bytes: Bytes::Stored(Box::new(opened), source.transpose()?),
            name: packed.name,
            format: packed.format,
            shape: packed.shape,
        });
    }
    let Some(format) = args.naming.format()? else {
        return Ok(subjects);
    };
    if args.naming.data.is_some() || !parts(file)?.is_empty() {
        return Ok(subjects);
    }
    let selected = |tensor: &Tensor| tensor.is_floating() && selects(&args.only, &args.skip, tensor.name);
    for tensor in file.tensors().filter(selected) {
        let (name, shape) = (tensor.name, tensor.shape);
        let Some(stack) = Stack::new(shape).filter(|_| !tensor.bytes.is_empty() && !shape.is_empty()) else {
            errln!("{name}: left out, it has shape {shape:?}");
            continue;
        };
        let fits = format.check(stack.cols);
        fits.map_err(|why| wrong(format!("tensor '{name}': {why}")))?;
        subjects.push(Subject {
            name: name.into(),
            format,
            shape: shape.into(),
            stack,
            bytes: Bytes::Source(tensor),
        });
    }
    Ok(subjects)
}

impl Subject<'_> {
    /// Computes the statistics of one matrix of the tensor.
    fn stats(&self, expert: usize, blocks: usize) -> Stats {
        let values = |tensor: &Tensor| self.stack.values(tensor, expert);
        let (encoded, source) = match &self.bytes {
            Bytes::Stored(opened, source) => (opened.matrix(expert), source.as_ref().map(values)),
            Bytes::Source(tensor) => {
                let values = values(tensor);
                let encoded = self.format.encode(&values, self.stack.cols, GlobalScale::Own);
                (encoded, Some(values))
            }
        };
        Stats::new(&self.format, &encoded, source.as_deref(), blocks, expert)
    }
}

/// Returns the tensor `name` of the source, which must have this shape and hold numbers. If `any_name` is true and the source has
/// only one tensor, that tensor may have any name.
pub fn source_of<'a>(source: &'a TensorFile, name: &str, shape: &[usize], any_name: bool) -> Result<Tensor<'a>> {
    let wrong = |why: String| Error::data(source.path(), why);
    let only = any_name && source.tensors().len() == 1;
    let tensor = match source.get(name).or_else(|| source.tensors().next().filter(|_| only)) {
        Some(tensor) => tensor,
        None => tensor_named(source, name)?,
    };
    let (name, found, dtype) = (tensor.name, tensor.shape, tensor.dtype);
    let other = format_args!("tensor '{name}': shape {found:?}, expected {shape:?}");
    refuse(Stack::new(found) != Stack::new(shape), other).map_err(wrong)?;
    let other = format_args!("tensor '{name}': type {dtype}, expected F64, F32, F16 or BF16");
    refuse(!tensor.is_floating(), other).map_err(wrong)?;
    Ok(tensor)
}
