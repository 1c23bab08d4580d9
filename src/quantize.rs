//! `ulplab quantize` and `ulplab dequantize`: tensors of a file to the bytes of a format, and back.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use safetensors::Dtype;

use crate::error::{Error, Exit, Result};
use crate::formats::{Format, GlobalScale, Group, Scaling};
use crate::layouts::{Layout, Placement};
use crate::packed::{Entry, Manifest, Naming, Packed, block_format, check_layout, rows_cols, spread};
use crate::pattern::selects;
use crate::tensorfile::{Slot, Tensor, TensorFile, write_safetensors};

/// Quantize the floating-point tensors of a file.
///
/// Reads .safetensors and .npy, writes .safetensors: of a tensor `w` the codes as `w.data`, the scales as `w.scale` and
/// the global scale as `w.global`; the metadata say the format, so that `ulplab dequantize` needs no flags. The last
/// dimension is K; the dimensions before it are rows. f64 is rounded to f32 first. What is not f64, f32, f16 or bf16, has
/// no elements, or is a single number, is copied, as is what --only and --skip leave out.
#[derive(Clone, Debug, clap::Args)]
pub struct QuantizeArgs {
    /// File of tensors.
    pub input: PathBuf,
    /// Format: a name of `ulplab list formats` or a format string, see docs/formats.md.
    #[arg(long, value_name = "FORMAT")]
    pub format: String,
    /// Rule that picks the scales, of the format's table in docs/formats.md, e.g. te or transformer_engine.
    #[arg(long, value_name = "RULE")]
    pub rule: Option<String>,
    /// Only tensors that match; `*` stands for any characters but a dot, `**` for any characters; repeatable.
    #[arg(long, value_name = "PATTERN")]
    pub only: Vec<String>,
    /// Not the tensors that match; repeatable.
    #[arg(long, value_name = "PATTERN")]
    pub skip: Vec<String>,
    /// Largest magnitude for the global scale, as calibration gives it [default: each tensor's own].
    #[arg(long, value_name = "VALUE")]
    pub amax: Option<f32>,
    /// Layout of the scales, e.g. blocked_128x4 [default: row-major].
    #[arg(long, value_name = "LAYOUT")]
    pub layout: Option<String>,
    /// File to write.
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
}

/// Decode the quantized tensors of a file.
///
/// Files of `ulplab quantize` say what is in them. In files of others, codes are recognised by the names of the scales
/// beside them (`w` and `w_scale`, `w_packed` and `w_scale`, `w.data` and `w.scale`, …), and --format says what they are.
/// All other tensors are copied, and so is what --only and --skip leave out. Writes f32, which rounds nothing, unless
/// --dtype asks for less.
#[derive(Clone, Debug, clap::Args)]
pub struct DequantizeArgs {
    /// File of quantized tensors.
    pub input: PathBuf,
    #[command(flatten)]
    pub naming: Naming,
    /// Only tensors that match; repeatable.
    #[arg(long, value_name = "PATTERN")]
    pub only: Vec<String>,
    /// Not the tensors that match; repeatable.
    #[arg(long, value_name = "PATTERN")]
    pub skip: Vec<String>,
    /// Type to write; bf16 and f16 round once more.
    #[arg(long, value_enum, default_value = "f32")]
    pub dtype: Out,
    /// File to write.
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
}

/// What decoded tensors are written as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Out {
    F32,
    Bf16,
    F16,
    /// The type the tensor had before it was quantized.
    Original,
}

/// What becomes of a tensor.
enum Step<'a> {
    Copy(Tensor<'a>),
    Quantize(Tensor<'a>, &'a Plan),
}

/// How tensors are quantized.
struct Plan {
    format: Format,
    global: GlobalScale<'static>,
    layout: Option<&'static Layout>,
}

pub fn quantize(args: &QuantizeArgs) -> Result<Exit> {
    let plan = Plan::new(args)?;
    check_output(&args.output, &args.input)?;
    let file = TensorFile::open(&args.input)?;
    let selected = |name: &str| selects(&args.only, &args.skip, name);
    let (mut steps, mut slots, mut manifest) = (Vec::new(), Vec::new(), Manifest::default());
    let (mut before, mut after) = (0, 0);
    let mut unfits: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for tensor in file.tensors() {
        let why_not = if selected(tensor.name) { unfit(&tensor) } else { None };
        if !selected(tensor.name) || why_not.is_some() {
            if let Some(why) = why_not {
                unfits.entry(why).or_default().push(tensor.name);
            }
            slots.push(slot(&tensor));
            steps.push(Step::Copy(tensor));
            continue;
        }
        let parts = plan.slots(&tensor).map_err(|why| {
            let hint = "--skip leaves tensors out";
            Error::data(&args.input, format!("tensor '{}': {why}; {hint}", tensor.name))
        })?;
        let bytes = |slot: &Slot| slot.shape.iter().product::<usize>() * slot.dtype.bitsize() / 8;
        (before, after) = (
            before + tensor.bytes.len(),
            after + parts.iter().map(bytes).sum::<usize>(),
        );
        slots.extend(parts);
        manifest.tensors.insert(tensor.name.into(), plan.entry(&tensor));
        steps.push(Step::Quantize(tensor, &plan));
    }
    for (why, names) in &unfits {
        let others = match names.len() - 1 {
            0 => String::new(),
            others => format!(" and {others} more"),
        };
        errln!("{}{others}: copied, {why}", names[0]);
    }
    let quantized = manifest.tensors.len();
    if quantized == 0 {
        let what = format!("no tensor of {} can be quantized", args.input.display());
        return Err(Error::NothingSelected(what));
    }
    write_safetensors(&args.output, slots, &manifest.write(file.metadata()), |writer| {
        for step in &steps {
            match step {
                Step::Copy(tensor) => writer.put(tensor.name, tensor.bytes)?,
                Step::Quantize(tensor, plan) => {
                    for (name, bytes) in plan.encode(tensor) {
                        writer.put(&name, &bytes)?;
                    }
                }
            }
        }
        Ok(())
    })?;
    outln!(
        "{quantized} tensors to {}, {before} bytes to {after}; {} copied",
        plan.format,
        steps.len() - quantized
    );
    Ok(Exit::Pass)
}

pub fn dequantize(args: &DequantizeArgs) -> Result<Exit> {
    check_output(&args.output, &args.input)?;
    let file = TensorFile::open(&args.input)?;
    let found = args.naming.find(&file, &args.only, &args.skip)?;
    if found.is_empty() {
        let hint = "; name the tensors with --data, --scale and --global, and give --format";
        let what = format!("no quantized tensor in {}{hint}", args.input.display());
        return Err(Error::NothingSelected(what));
    }
    let wrong = |why| Error::data(&args.input, why);
    let dtypes = found
        .iter()
        .map(|packed| out_dtype(packed, args.dtype).map_err(wrong))
        .collect::<Result<Vec<_>>>()?;
    // Everything is checked before the first byte is written.
    for packed in &found {
        packed.encoded().map_err(wrong)?;
    }
    let used: HashSet<&str> = found.iter().flat_map(Packed::names).collect();
    let copied: Vec<Tensor> = file.tensors().filter(|tensor| !used.contains(tensor.name)).collect();
    let decoded = found.iter().zip(&dtypes).map(|(packed, dtype)| Slot {
        name: packed.name.clone(),
        dtype: *dtype,
        shape: packed.shape.clone(),
    });
    let slots = decoded.chain(copied.iter().map(slot)).collect();
    // What is copied is still what the file says it is.
    let mut manifest = Manifest::read(&file)?;
    for packed in &found {
        manifest.tensors.remove(&packed.name);
    }
    write_safetensors(&args.output, slots, &manifest.write(file.metadata()), |writer| {
        for tensor in &copied {
            writer.put(tensor.name, tensor.bytes)?;
        }
        for (packed, dtype) in found.iter().zip(&dtypes) {
            let encoded = packed.encoded().map_err(std::io::Error::other)?;
            let mut values = vec![0.0; packed.shape.iter().product()];
            packed.format.decode(&encoded, &mut values);
            writer.put(&packed.name, &bytes_of(&values, *dtype))?;
        }
        Ok(())
    })?;
    let formats: BTreeSet<String> = found.iter().map(|packed| packed.format.to_string()).collect();
    let formats = formats.into_iter().collect::<Vec<_>>().join(", ");
    outln!(
        "{} tensors decoded from {formats}, {} copied",
        found.len(),
        copied.len()
    );
    Ok(Exit::Pass)
}

impl Plan {
    fn new(args: &QuantizeArgs) -> Result<Self> {
        let (_, mut format) = block_format(&args.format)?;
        if let Some(rule) = &args.rule {
            format = format.with_rule(rule).map_err(Error::Usage)?;
        }
        let global = match args.amax {
            None => GlobalScale::Own,
            Some(_) if format.global != Some(Group::Tensor) => {
                return Err(Error::Usage(format!(
                    "--amax: format '{format}' has no scale that a tensor shares"
                )));
            }
            Some(amax) if amax > 0.0 && amax.is_finite() => GlobalScale::Amax(amax),
            Some(amax) => return Err(Error::Usage(format!("--amax {amax}: expected a positive number"))),
        };
        let layout = args
            .layout
            .as_deref()
            .map(Layout::find)
            .transpose()
            .map_err(Error::Usage)?;
        if let Some(layout) = layout {
            let bytes = format.scaling.map_or(0, |scaling| scaling.scale.bytes());
            check_layout(layout, bytes).map_err(Error::Usage)?;
        }
        Ok(Self { format, global, layout })
    }

    /// The tensors that one becomes.
    fn slots(&self, tensor: &Tensor) -> Result<Vec<Slot>, String> {
        let (rows, cols) = rows_cols(tensor.shape);
        self.format.check(cols)?;
        let mut slots = Vec::new();
        for part in self.format.parts(rows, cols) {
            let shape = match self.placement(part.name, rows, cols)? {
                Some(placement) => vec![placement.len() * 8 / part.dtype.bitsize()],
                None => spread(&part.shape, tensor.shape),
            };
            slots.push(Slot {
                name: format!("{}.{}", tensor.name, part.name),
                dtype: part.dtype,
                shape,
            });
        }
        Ok(slots)
    }

    /// Where the bytes of a part go; none if they stay in row-major order.
    fn placement(&self, part: &str, rows: usize, cols: usize) -> Result<Option<Placement>, String> {
        match (self.layout, self.format.scaling, part) {
            (Some(layout), Some(Scaling { group, .. }), "scale") => {
                let (down, across) = group.count(rows, cols);
                layout.place(&[down, across], &[]).map(Some)
            }
            _ => Ok(None),
        }
    }

    fn entry(&self, tensor: &Tensor) -> Entry {
        Entry {
            format: self.format.to_string(),
            shape: tensor.shape.into(),
            dtype: tensor.dtype.to_string(),
            layout: self.layout.map(|layout| layout.name.into()),
        }
    }

    /// Names and bytes of what a tensor becomes.
    fn encode(&self, tensor: &Tensor) -> Vec<(String, Vec<u8>)> {
        let values = tensor.to_f32().expect("floating-point tensors are numbers");
        let (rows, cols) = rows_cols(tensor.shape);
        let encoded = self.format.encode(&values, cols, self.global);
        let parts = encoded.parts.into_iter().map(|part| {
            let placement = self
                .placement(part.name, rows, cols)
                .expect("the slots were placed alike");
            let bytes = match placement {
                Some(placement) => placement.forward(&part.bytes).expect("all scales are there"),
                None => part.bytes,
            };
            (format!("{}.{}", tensor.name, part.name), bytes)
        });
        parts.collect()
    }
}

/// Why a tensor is not one to quantize.
fn unfit(tensor: &Tensor) -> Option<String> {
    if !tensor.is_floating() {
        Some(format!("{} is not f64, f32, f16 or bf16", tensor.dtype))
    } else if tensor.shape.is_empty() {
        Some("it is a single number".into())
    } else if tensor.bytes.is_empty() {
        Some("it is empty".into())
    } else {
        None
    }
}

fn slot(tensor: &Tensor) -> Slot {
    Slot {
        name: tensor.name.into(),
        dtype: tensor.dtype,
        shape: tensor.shape.into(),
    }
}

/// Both commands write safetensors only, and never over what they read.
fn check_output(path: &Path, input: &Path) -> Result<()> {
    let wrong = |what: String| Err(Error::Usage(format!("{}: {what}", path.display())));
    let extension = path
        .extension()
        .and_then(|extension| extension.to_str())
        .unwrap_or_default();
    if extension != "safetensors" {
        return wrong(format!("extension '{extension}', expected 'safetensors'"));
    }
    match (path.canonicalize(), input.canonicalize()) {
        (Ok(output), Ok(input)) if output == input => wrong("is the input; give another --output".into()),
        _ => Ok(()),
    }
}

fn out_dtype(packed: &Packed, out: Out) -> Result<Dtype, String> {
    match (out, packed.dtype.as_deref()) {
        (Out::F32, _) | (Out::Original, Some("F32")) => Ok(Dtype::F32),
        (Out::Bf16, _) | (Out::Original, Some("BF16")) => Ok(Dtype::BF16),
        (Out::F16, _) | (Out::Original, Some("F16")) => Ok(Dtype::F16),
        (Out::Original, Some("F64")) => Ok(Dtype::F64),
        (Out::Original, found) => Err(format!(
            "tensor '{}': --dtype original, but the file says {}",
            packed.name,
            found.map_or("no type".into(), |dtype| format!("'{dtype}'"))
        )),
    }
}

fn bytes_of(values: &[f32], dtype: Dtype) -> Vec<u8> {
    match dtype {
        Dtype::F64 => values.iter().flat_map(|x| f64::from(*x).to_le_bytes()).collect(),
        Dtype::BF16 => values.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()).collect(),
        Dtype::F16 => values.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect(),
        _ => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
    }
}
