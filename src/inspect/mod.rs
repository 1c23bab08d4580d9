//! `ulplab inspect FILE`: what is in the codes and scales of quantized tensors, or would be.

mod output;
mod stats;

use std::io::Write;
use std::path::PathBuf;

use crate::error::{Error, Exit, Result};
use crate::packed::{Naming, parts, rows_cols};
use crate::pattern::selects;
use crate::tensorfile::{Tensor, TensorFile};
pub use stats::{Against, Histogram, Stats, Worst};

/// Show the codes and scales of quantized tensors: histograms, saturation, zeros, and beside their source also underflow,
/// SQNR, cosine and the worst blocks.
///
/// Quantized tensors are recognised as by `ulplab dequantize`. All other floating-point tensors are quantized in memory by
/// --format and shown as they would be.
#[derive(Clone, Debug, clap::Args)]
pub struct InspectArgs {
    /// File of tensors.
    pub file: PathBuf,
    /// File that holds what was quantized, under the same names.
    #[arg(long, value_name = "FILE")]
    pub source: Option<PathBuf>,
    #[command(flatten)]
    pub naming: Naming,
    /// Only tensors that match; repeatable.
    #[arg(long, value_name = "PATTERN")]
    pub only: Vec<String>,
    /// Not the tensors that match; repeatable.
    #[arg(long, value_name = "PATTERN")]
    pub skip: Vec<String>,
    /// How many of the worst blocks to show.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub blocks: usize,
    /// Print JSON Lines: one record for each tensor. NaN is null, infinities are strings.
    #[arg(long)]
    pub json: bool,
}

pub fn run(args: &InspectArgs) -> Result<Exit> {
    run_to(args, &mut crate::output::stdout())
}

/// Prints to `out`.
pub fn run_to(args: &InspectArgs, out: &mut dyn Write) -> Result<Exit> {
    let file = TensorFile::open(&args.file)?;
    let source = args.source.as_ref().map(TensorFile::open).transpose()?;
    let found = args.naming.find(&file, &args.only, &args.skip)?;
    let parts = parts(&file)?;
    let mut shown = 0;
    for packed in &found {
        let wrong = |why| Error::data(&args.file, why);
        let encoded = packed.encoded().map_err(wrong)?;
        let values = match &source {
            Some(source) => Some(values_of(source, &packed.name, &packed.shape, found.len() == 1)?),
            None => None,
        };
        let stats = Stats::new(&packed.format, &encoded, values.as_deref(), args.blocks);
        output::print(out, args.json, &packed.name, &packed.format, &packed.shape, &stats)?;
        shown += 1;
    }
    let format = args.naming.format()?;
    let selected = |name: &str| selects(&args.only, &args.skip, name);
    let others = |tensor: &Tensor| selected(tensor.name) && !parts.contains(tensor.name);
    for tensor in file.tensors().filter(others) {
        let Some(format) = format.filter(|_| tensor.is_floating() && args.naming.data.is_none()) else {
            continue;
        };
        if tensor.bytes.is_empty() || tensor.shape.is_empty() {
            errln!("{}: left out, it has shape {:?}", tensor.name, tensor.shape);
            continue;
        }
        let cols = rows_cols(tensor.shape).1;
        format
            .check(cols)
            .map_err(|why| Error::data(&args.file, format!("tensor '{}': {why}", tensor.name)))?;
        let values = tensor.to_f32().expect("floating-point tensors are numbers");
        let encoded = format.encode(&values, cols, crate::formats::GlobalScale::Own);
        let stats = Stats::new(&format, &encoded, Some(&values), args.blocks);
        output::print(out, args.json, tensor.name, &format, tensor.shape, &stats)?;
        shown += 1;
    }
    if shown == 0 {
        let hint = "no quantized tensor; --format quantizes floating-point tensors in memory";
        return Err(Error::NothingSelected(format!("{}: {hint}", args.file.display())));
    }
    Ok(Exit::Pass)
}

/// The values of a tensor of the source, which must have that shape. With `any_name`, where the source has one tensor, it is
/// that, whatever its name.
pub fn values_of(source: &TensorFile, name: &str, shape: &[usize], any_name: bool) -> Result<Vec<f32>> {
    let wrong = |why: String| Error::data(source.path(), why);
    let only = any_name && source.tensors().len() == 1;
    let tensor = source.get(name).or_else(|| source.tensors().next().filter(|_| only));
    let tensor = tensor.ok_or_else(|| {
        let near = crate::error::did_you_mean(name, source.tensors().map(|tensor| tensor.name));
        wrong(format!("no tensor '{name}'{near}"))
    })?;
    let found = tensor.name;
    if rows_cols(tensor.shape) != rows_cols(shape) {
        return Err(wrong(format!(
            "tensor '{found}': shape {:?}, expected {shape:?}",
            tensor.shape
        )));
    }
    tensor.to_f32().filter(|_| tensor.is_floating()).ok_or_else(|| {
        wrong(format!(
            "tensor '{found}': type {}, expected F64, F32, F16 or BF16",
            tensor.dtype
        ))
    })
}
