//! `ulplab quantize` and `ulplab dequantize`: convert tensors of a file to the bytes of a number format, and back.

mod dequantize;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

pub use dequantize::{DequantizeArgs, Out, dequantize};

use crate::progress::Progress;
use ulplab_checkpoint::packed::{
    Entry, Manifest, Nonfinite, Stack, block_format, check_layout, in_matrices, leading, matrix_name, spread,
};
use ulplab_core::error::{Error, Exit, Result, counted, refuse};
use ulplab_core::formats::{Encoded, Format, GlobalScale, Group, Scaling};
use ulplab_core::layouts::{Layout, Placement};
use ulplab_core::pattern;
use ulplab_core::pattern::selects;
use ulplab_core::tensorfile::{Slot, Tensor, TensorFile, write_safetensors};

/// Quantize the floating-point tensors of a file.
///
/// Reads .safetensors, .npy and folders of shards, writes .safetensors: the codes of a tensor `w` as `w.data`, the scales as
/// `w.scale` and the global scale as `w.global`; the metadata name the format, so that `ulplab dequantize` needs no flags.
/// The last dimension is K, the dimension before it is the rows. Each matrix of a tensor with three or more dimensions (such
/// as the experts of a layer) is quantized separately, and a vector is one row. f64 is rounded to f32 first.
///
/// A tensor is copied unchanged if it is not f64, f32, f16 or bf16, if it is empty or a single number, or if --only or
/// --skip leaves it out. NaN and infinities are counted; the metadata hold the counts.
#[derive(Clone, Debug, clap::Args)]
pub struct QuantizeArgs {
    /// File of tensors, or folder of shards.
    pub input: PathBuf,
    /// Format: a name from `ulplab list formats`, or a format string (docs/formats.md).
    #[arg(long, value_name = "FORMAT")]
    pub format: String,
    /// Rule that picks the scales, from the format's table in docs/formats.md, e.g. te or transformer_engine.
    #[arg(long, value_name = "RULE")]
    pub rule: Option<String>,
    /// Quantize only tensors that match; `*` matches any characters but a dot, `**` any characters; repeatable.
    #[arg(long, value_name = "PATTERN")]
    pub only: Vec<String>,
    /// Leave out tensors that match; repeatable.
    #[arg(long, value_name = "PATTERN")]
    pub skip: Vec<String>,
    /// Calibrated largest magnitude for the global scale [default: each tensor's own].
    #[arg(long, value_name = "VALUE")]
    pub amax: Option<f32>,
    /// Layout of the scales, e.g. blocked_128x4 [default: row-major].
    #[arg(long, value_name = "LAYOUT")]
    pub layout: Option<String>,
    /// Also quantize a matrix that becomes entirely NaN because one NaN or infinity spoils its shared scale.
    #[arg(long)]
    pub allow_nonfinite: bool,
    /// Show no progress bar.
    #[arg(long)]
    pub no_progress: bool,
    /// File to write.
    #[arg(short, long, value_name = "FILE", value_parser = crate::output::file_name())]
    pub output: PathBuf,
}

/// The format, global scale and layout of quantized tensors.
struct Plan {
    format: Format,
    global: GlobalScale<'static>,
    layout: Option<&'static Layout>,
}

/// A tensor to quantize.
struct Job<'a> {
    tensor: Tensor<'a>,
    stack: Stack,
    nonfinite: Option<Nonfinite>,
    /// Number of elements that decode to NaN or infinity.
    lost: u64,
}

pub fn quantize(args: &QuantizeArgs) -> Result<Exit> {
    let plan = Plan::new(args)?;
    let file = TensorFile::open(&args.input)?;
    check_output(&args.output, &file)?;
    let names: Vec<&str> = file.tensors().map(|tensor| tensor.name).collect();
    pattern::check("tensor", &[&args.only, &args.skip], &names)?;
    let (mut jobs, mut copied, mut slots) = (Vec::new(), Vec::new(), Vec::new());
    let (mut before, mut after) = (0, 0);
    let mut unfits: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    let mut refused = Vec::new();
    for tensor in file.tensors() {
        let selected = selects(&args.only, &args.skip, tensor.name);
        let why_not = if selected { unfit(&tensor) } else { None };
        if !selected || why_not.is_some() {
            if let Some(why) = why_not {
                unfits.entry(why).or_default().push(tensor.name);
            }
            slots.push(slot(&tensor));
            copied.push(tensor);
            continue;
        }
        let job = Job {
            tensor,
            stack: Stack::new(tensor.shape).expect("a tensor with elements is in memory"),
            nonfinite: None,
            lost: 0,
        };
        let bytes = |slot: &Slot| slot.shape.iter().product::<usize>() * slot.dtype.bitsize() / 8;
        match plan.slots(&job) {
            Ok(parts) => {
                before += tensor.bytes.len();
                after += parts.iter().map(bytes).sum::<usize>();
                slots.extend(parts);
                jobs.push(job);
            }
            Err(why) => refused.push(format!("tensor '{}': {why}", tensor.name)),
        }
    }
    refuse_tensors(&args.input, &refused, "use --skip to leave tensors out")?;
    for (why, names) in &unfits {
        errln!("{}: copied, {why}", first_of(names));
    }
    let vectors = jobs.iter().filter(|job| job.tensor.shape.len() == 1);
    let vectors: Vec<&str> = vectors.map(|job| job.tensor.name).collect();
    if !vectors.is_empty() && vectors.len() < jobs.len() {
        let (which, hint) = (first_of(&vectors), "use --skip to leave tensors out");
        errln!("{which}: quantized although it has one dimension, like biases and norms; {hint}");
    }
    let none = format_args!("no tensor of {} can be quantized", args.input.display());
    refuse(jobs.is_empty(), none).map_err(Error::NothingSelected)?;

    let stacks: Vec<Stack> = jobs.iter().map(|job| job.stack).collect();
    let elements: usize = stacks.iter().map(Stack::elements).sum();
    let mut progress = Progress::new(2 * elements, args.no_progress);
    // Counts NaN and infinities before the data is written: the header of the file comes first, and contains the counts.
    plan.count_nonfinite(&mut jobs, &stacks, &mut progress, args)?;
    let mut manifest = Manifest::default();
    for job in &jobs {
        manifest.tensors.insert(job.tensor.name.into(), plan.entry(job));
    }
    write_safetensors(&args.output, slots, &manifest.write(file.metadata()), |writer| {
        for tensor in &copied {
            writer.put(tensor.name, tensor.bytes)?;
        }
        let encode = |job: usize, expert| plan.encode(&jobs[job], expert);
        in_matrices(&stacks, encode, |job, expert, parts| -> io::Result<()> {
            let name = jobs[job].tensor.name;
            for (part, bytes) in parts {
                writer.put_part(&format!("{name}.{part}"), expert * bytes.len(), &bytes)?;
            }
            progress.advance(stacks[job].matrix(), name);
            Ok(())
        })
    })?;
    drop(progress);
    for job in &jobs {
        if let Some(nonfinite) = &job.nonfinite {
            let (name, all, lost) = (job.tensor.name, job.stack.elements(), job.lost);
            errln!("{name}: {nonfinite}; {lost} of {all} elements come back as NaN or infinite");
        }
    }
    let (tensors, format, copied) = (counted(jobs.len(), "tensor"), plan.format, copied.len());
    outln!("quantized {tensors} to {format}, {before} bytes to {after}; copied {copied}");
    Ok(Exit::Pass)
}

impl Plan {
    fn new(args: &QuantizeArgs) -> Result<Self> {
        let mut format = block_format(&args.format)?;
        if let Some(rule) = &args.rule {
            format = format.with_rule(rule).map_err(Error::Usage)?;
        }
        let global = match args.amax {
            None => GlobalScale::Own,
            Some(_) if format.global != Some(Group::Tensor) => {
                let message = format!("--amax: format '{format}' has no scale that a tensor shares");
                return Err(Error::Usage(message));
            }
            Some(amax) if amax > 0.0 && amax.is_finite() => GlobalScale::Amax(amax),
            Some(amax) => return Err(Error::Usage(format!("--amax {amax}: expected a positive number"))),
        };
        let layout = args.layout.as_deref().map(Layout::find).transpose();
        let layout = layout.map_err(Error::Usage)?;
        if let Some(layout) = layout {
            let bytes = format.scaling.map_or(0, |scaling| scaling.scale.bytes());
            check_layout(layout, bytes).map_err(Error::Usage)?;
        }
        Ok(Self { format, global, layout })
    }

    /// Returns the name, type and shape of each tensor (such as codes or scales) that the file stores for one quantized tensor.
    fn slots(&self, Job { tensor, stack, .. }: &Job) -> Result<Vec<Slot>, String> {
        let Stack { rows, cols, .. } = *stack;
        self.format.check(cols)?;
        let mut slots = Vec::new();
        for part in self.format.parts(rows, cols) {
            let shape = match self.placement(part.name, rows, cols)? {
                Some(placement) => [leading(tensor.shape), &[placement.len() * 8 / part.dtype.bitsize()]].concat(),
                None => spread(&part.shape, tensor.shape),
            };
            slots.push(Slot::new(format!("{}.{}", tensor.name, part.name), part.dtype, shape));
        }
        Ok(slots)
    }

    /// Returns the memory layout of one stored part (such as `scale`) of a quantized matrix; `None` for row-major order.
    fn placement(&self, part: &str, rows: usize, cols: usize) -> Result<Option<Placement>, String> {
        match (self.layout, self.format.scaling, part) {
            (Some(layout), Some(Scaling { group, .. }), "scale") => {
                let (down, across) = group.count(rows, cols);
                layout.place(&[down, across], &[]).map(Some)
            }
            _ => Ok(None),
        }
    }

    fn entry(&self, Job { tensor, nonfinite, .. }: &Job) -> Entry {
        Entry {
            format: self.format.to_string(),
            shape: tensor.shape.into(),
            dtype: tensor.dtype.to_string(),
            layout: self.layout.map(|layout| layout.name.into()),
            nonfinite: nonfinite.clone(),
        }
    }

    /// Counts NaN and infinities before and after quantization. Returns an error if a whole matrix would become NaN, unless
    /// `--allow-nonfinite` is given.
    fn count_nonfinite(
        &self,
        jobs: &mut [Job],
        stacks: &[Stack],
        progress: &mut Progress,
        args: &QuantizeArgs,
    ) -> Result<()> {
        let mut found = Vec::new();
        let count = |job: usize, expert| self.nonfinite(&jobs[job], expert);
        in_matrices(stacks, count, |job, expert, counted| -> Result<()> {
            found.extend(counted.map(|counted| (job, expert, counted)));
            progress.advance(stacks[job].matrix(), jobs[job].tensor.name);
            Ok(())
        })?;
        let mut refused = Vec::new();
        for (job, expert, (nonfinite, lost)) in found {
            let job = &mut jobs[job];
            let size = job.stack.matrix() as u64;
            if lost == size && nonfinite.total() < size && !args.allow_nonfinite {
                let name = matrix_name(job.tensor.name, job.tensor.shape, expert);
                let shared = format!("because they share a scale in format '{}'", self.format);
                refused.push(format!(
                    "tensor '{name}': {nonfinite}, would make all {size} elements NaN, {shared}"
                ));
            }
            job.lost += lost;
            Nonfinite::add(&mut job.nonfinite, Some(nonfinite));
        }
        let hint = "use --skip to leave tensors out, or --allow-nonfinite to quantize them anyway";
        refuse_tensors(&args.input, &refused, hint)
    }

    /// Returns the NaN and infinities of a matrix, and the number of elements that decode to NaN or infinity; `None` if all
    /// elements of the matrix are finite.
    fn nonfinite(&self, job: &Job, expert: usize) -> Option<(Nonfinite, u64)> {
        let mut values = job.stack.values(&job.tensor, expert);
        let nonfinite = Nonfinite::count(&values, expert * job.stack.matrix(), job.tensor.shape)?;
        let encoded = self.format.encode(&values, job.stack.cols, self.global);
        self.format.decode(&encoded, &mut values);
        let lost = values.iter().filter(|x| !x.is_finite()).count();
        Some((nonfinite, lost as u64))
    }

    /// Encodes one matrix: returns the name and bytes of each stored part.
    fn encode(&self, job: &Job, expert: usize) -> Vec<(&'static str, Vec<u8>)> {
        let values = job.stack.values(&job.tensor, expert);
        let Encoded { rows, cols, parts } = self.format.encode(&values, job.stack.cols, self.global);
        let parts = parts.into_iter().map(|part| {
            let placement = self.placement(part.name, rows, cols);
            let placement = placement.expect("all slots were placed in the same way");
            let bytes = match placement {
                Some(placement) => placement.forward(&part.bytes).expect("all scales are there"),
                None => part.bytes,
            };
            (part.name, bytes)
        });
        parts.collect()
    }
}

/// Formats a list of names as `a` or `a and 3 more`.
fn first_of(names: &[&str]) -> String {
    match names.len() - 1 {
        0 => names[0].into(),
        others => format!("{} and {others} more", names[0]),
    }
}

/// Returns an error that lists the refused tensors, one per line and at most 20, with a hint. Returns no error if `refused` is
/// empty.
fn refuse_tensors(file: &Path, refused: &[String], hint: &str) -> Result<()> {
    const SHOWN: usize = 20;
    let mut lines = refused[..refused.len().min(SHOWN)].to_vec();
    if refused.len() > SHOWN {
        lines.push(format!("and {} more", counted(refused.len() - SHOWN, "tensor")));
    }
    let message = format_args!("{}; {hint}", lines.join("\n  "));
    refuse(!refused.is_empty(), message).map_err(|why| Error::data(file, why))
}

/// The reason why a tensor cannot be quantized.
fn unfit(tensor: &Tensor) -> Option<String> {
    match () {
        () if !tensor.is_floating() => Some(format!("{} is not f64, f32, f16 or bf16", tensor.dtype)),
        () if tensor.shape.is_empty() => Some("it is a single number".into()),
        () if tensor.bytes.is_empty() => Some("it is empty".into()),
        () => None,
    }
}

fn slot(tensor: &Tensor) -> Slot {
    Slot::new(tensor.name, tensor.dtype, tensor.shape)
}

/// Checks the output path: both commands write only safetensors, and never over their input.
fn check_output(path: &Path, input: &TensorFile) -> Result<()> {
    let wrong = |what: &str| Err(Error::Usage(format!("{}: {what}", path.display())));
    let extension = path.extension().unwrap_or_default().to_string_lossy();
    if extension != "safetensors" {
        return wrong(&format!("extension '{extension}', expected 'safetensors'"));
    }
    let output = path.canonicalize().ok();
    let same = |file: &PathBuf| output.is_some() && file.canonicalize().ok() == output;
    match input.files().iter().any(same) {
        true => wrong("is the input; give another --output"),
        false => Ok(()),
    }
}
