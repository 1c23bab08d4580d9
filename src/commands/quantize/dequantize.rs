//! `ulplab dequantize`: decodes quantized tensors of a file.

use std::collections::{BTreeSet, HashSet};
use std::io;
use std::path::PathBuf;

use half::{bf16, f16};
use safetensors::Dtype;

use super::{check_output, slot};
use crate::progress::Progress;
use ulplab_checkpoint::packed;
use ulplab_checkpoint::packed::{Manifest, Naming, Nonfinite, Opened, Packed, Stack, in_matrices, rounded};
use ulplab_core::error::{Error, Exit, Result, counted};
use ulplab_core::tensorfile::{Slot, Tensor, TensorFile, write_safetensors};

/// Decode the quantized tensors of a file.
///
/// Files from `ulplab quantize` name their formats. In files from other tools, codes are recognised by the names of their
/// scales (`w` and `w_scale`, `w_packed` and `w_scale`, `w_blocks` and `w_scales`, …), and formats by types and shapes, as
/// docs/quantized-files.md defines; for other formats give --format. All other tensors are copied, and so are tensors that
/// --only or --skip leaves out. The output is f32, without rounding, unless --dtype names a smaller type. Decoded NaN and
/// infinities are counted.
#[derive(Clone, Debug, clap::Args)]
pub struct DequantizeArgs {
    /// File of quantized tensors, or folder of shards.
    pub input: PathBuf,
    #[command(flatten)]
    pub naming: Naming,
    /// Decode only tensors that match; repeatable.
    #[arg(long, value_name = "PATTERN")]
    pub only: Vec<String>,
    /// Leave out tensors that match; repeatable.
    #[arg(long, value_name = "PATTERN")]
    pub skip: Vec<String>,
    /// Type to write; bf16 and f16 add a rounding.
    #[arg(long, value_enum, default_value = "f32")]
    pub dtype: Out,
    /// Show no progress bar.
    #[arg(long)]
    pub no_progress: bool,
    /// File to write.
    #[arg(short, long, value_name = "FILE", value_parser = crate::output::file_name())]
    pub output: PathBuf,
}

/// The type of written tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Out {
    F32,
    Bf16,
    F16,
    /// The type the tensor had before it was quantized.
    Original,
}

/// A tensor to decode.
struct Job<'a> {
    packed: Packed<'a>,
    opened: Opened<'a>,
    dtype: Dtype,
}

pub fn dequantize(args: &DequantizeArgs) -> Result<Exit> {
    let file = TensorFile::open(&args.input)?;
    check_output(&args.output, &file)?;
    let found = args.naming.find(&file, &[], &args.only, &args.skip)?;
    if found.is_empty() {
        return Err(packed::nothing(&file, &args.only, &args.skip));
    }
    let wrong = |why| Error::data(&args.input, why);
    let mut jobs = Vec::new();
    // Checks all tensors before it writes the first byte.
    for packed in found {
        let dtype = out_dtype(&packed, args.dtype).map_err(wrong)?;
        let opened = packed.open().map_err(wrong)?;
        jobs.push(Job { packed, opened, dtype });
    }
    let used: HashSet<&str> = jobs.iter().flat_map(|job| job.packed.buffers.names()).collect();
    let copied: Vec<Tensor> = file.tensors().filter(|tensor| !used.contains(tensor.name)).collect();
    let decoded = jobs
        .iter()
        .map(|job| Slot::new(&job.packed.name, job.dtype, &job.packed.shape[..]));
    let slots = decoded.chain(copied.iter().map(slot)).collect();
    // Removes the decoded tensors from the manifest: it then describes only the copied tensors.
    let mut manifest = Manifest::read(&file)?;
    for job in &jobs {
        manifest.tensors.remove(&job.packed.name);
    }
    let stacks: Vec<Stack> = jobs.iter().map(|job| job.opened.stack).collect();
    let mut progress = Progress::new(stacks.iter().map(Stack::elements).sum(), args.no_progress);
    let mut nonfinite: Vec<Option<Nonfinite>> = vec![None; jobs.len()];
    write_safetensors(&args.output, slots, &manifest.write(file.metadata()), |writer| {
        for tensor in &copied {
            writer.put(tensor.name, tensor.bytes)?;
        }
        let decode = |job: usize, expert| jobs[job].decode(expert);
        in_matrices(&stacks, decode, |job, expert, (bytes, found)| -> io::Result<()> {
            let name = &jobs[job].packed.name;
            writer.put_part(name, expert * bytes.len(), &bytes)?;
            Nonfinite::add(&mut nonfinite[job], found);
            progress.advance(stacks[job].matrix(), name);
            Ok(())
        })
    })?;
    drop(progress);
    for (job, nonfinite) in jobs.iter().zip(&nonfinite) {
        if let Some(nonfinite) = nonfinite {
            errln!("{}: {nonfinite}", job.packed.name);
        }
    }
    let formats: BTreeSet<String> = jobs.iter().map(|job| job.packed.format.to_string()).collect();
    let formats = formats.into_iter().collect::<Vec<_>>().join(", ");
    let (tensors, copied) = (counted(jobs.len(), "tensor"), copied.len());
    outln!("decoded {tensors} from {formats}; copied {copied}");
    Ok(Exit::Pass)
}

impl Job<'_> {
    /// Decodes one matrix. Returns the bytes in the output type, and the counts of NaN and infinities in the decoded matrix.
    fn decode(&self, expert: usize) -> (Vec<u8>, Option<Nonfinite>) {
        let size = self.opened.stack.matrix();
        let mut values = vec![0.0; size];
        self.opened.format.decode(&self.opened.matrix(expert), &mut values);
        // Rounding to the output type may turn a large number into infinity, so count NaN and infinities after the rounding.
        values.iter_mut().for_each(|x| *x = rounded(*x, self.dtype));
        let nonfinite = Nonfinite::count(&values, expert * size, &self.packed.shape);
        (bytes_of(&values, self.dtype), nonfinite)
    }
}

fn out_dtype(packed: &Packed, out: Out) -> Result<Dtype, String> {
    match (out, packed.dtype.as_deref()) {
        (Out::F32, _) | (Out::Original, Some("F32")) => Ok(Dtype::F32),
        (Out::Bf16, _) | (Out::Original, Some("BF16")) => Ok(Dtype::BF16),
        (Out::F16, _) | (Out::Original, Some("F16")) => Ok(Dtype::F16),
        (Out::Original, Some("F64")) => Ok(Dtype::F64),
        (Out::Original, found) => {
            let found = found.map_or("no type".into(), |dtype| format!("'{dtype}'"));
            Err(format!(
                "tensor '{}': --dtype original, but the file says {found}",
                packed.name
            ))
        }
    }
}

/// Converts values to a type, and returns the little-endian bytes.
fn bytes_of(values: &[f32], dtype: Dtype) -> Vec<u8> {
    match dtype {
        Dtype::F64 => values.iter().flat_map(|x| f64::from(*x).to_le_bytes()).collect(),
        Dtype::BF16 => values.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()).collect(),
        Dtype::F16 => values.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect(),
        _ => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
    }
}
