//! `ulplab compare WANT GOT --parity`.

use std::io::Write;
use std::path::Path;

use super::{Diagnosis, Source, Stored, diagnose_from, output};
use crate::error::{Error, Exit, Result};
use crate::formats::Encoded;
use crate::inspect::source_of;
use crate::packed::{Naming, Packed, check_layout, matrix_name};
use crate::progress::Progress;
use crate::tensorfile::{Tensor, TensorFile};

/// Diagnosis of quantized tensors.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Parity")]
pub struct ParityArgs {
    /// Name the rule that made the quantized tensors of GOT from those of WANT, or count mismatches by cause.
    ///
    /// WANT holds the source, GOT codes and scales; these are recognised as by `ulplab dequantize`. With --rule they are
    /// held against that rule, and kernels known to be approximate may differ by what they do; without, any rule of the
    /// format's table may explain them. Exit code 0 if every byte is explained, 100 if not.
    #[arg(long)]
    pub parity: bool,
    #[command(flatten)]
    pub naming: Naming,
    /// Name of the source tensor in WANT [default: as the quantized one, or the only tensor].
    #[arg(long, value_name = "NAME")]
    pub tensor: Option<String>,
}

impl ParityArgs {
    /// A flag that was given and means nothing without --parity.
    pub fn flag(&self) -> Option<&'static str> {
        let naming = &self.naming;
        let given = [
            ("format", &naming.format),
            ("rule", &naming.rule),
            ("data", &naming.data),
            ("scale", &naming.scale),
            ("global", &naming.global),
            ("layout", &naming.layout),
            ("tensor", &self.tensor),
        ];
        given
            .into_iter()
            .find(|(_, value)| value.is_some())
            .map(|(flag, _)| flag)
    }
}

/// Diagnoses, and prints to `out`.
pub fn run_to(
    args: &ParityArgs,
    want: &Path,
    got: &Path,
    only: &[String],
    skip: &[String],
    json: bool,
    out: &mut dyn Write,
) -> Result<Exit> {
    let (source, file) = (TensorFile::open(want)?, TensorFile::open(got)?);
    let found = args.naming.find(&file, only, skip)?;
    if found.is_empty() {
        let hint = "name the tensors with --data, --scale and --global, and give --format";
        return Err(Error::NothingSelected(format!(
            "no quantized tensor in {}; {hint}",
            got.display()
        )));
    }
    let named = args.naming.names_rule();
    let any_name = args.tensor.is_none() && found.len() == 1;
    let elements = found.iter().map(|packed| packed.shape.iter().product::<usize>()).sum();
    let mut progress = Progress::new(elements, false);
    let (mut explained, mut all) = (0, 0);
    for packed in &found {
        let name = args.tensor.as_deref().unwrap_or(&packed.name);
        let tensor = source_of(&source, name, &packed.shape, any_name)?;
        if tensor.bytes.is_empty() {
            return Err(Error::data(want, format!("tensor '{name}' is empty")));
        }
        let wrong = |why| Error::data(got, why);
        if packed.format.zero_point().is_some() {
            let (name, format) = (packed.buffers.data.name, packed.format);
            let why = format!("tensor '{name}': --parity has no causes for formats with zero points, like '{format}'");
            return Err(wrong(why));
        }
        let size = packed.format.scaling.map_or(0, |scaling| scaling.scale.bytes());
        packed
            .layout
            .map_or(Ok(()), |layout| check_layout(layout, size))
            .map_err(wrong)?;
        let opened = packed
            .buffers
            .open_in_any_order(&packed.format, &packed.shape)
            .map_err(wrong)?;
        let stack = opened.stack;
        for expert in stack.matrices() {
            let bytes = stack.share(tensor.bytes, expert);
            let values = Source::tensor(Tensor { bytes, ..tensor });
            let encoded = opened.matrix(expert);
            let name = matrix_name(&packed.name, &packed.shape, expert);
            let diagnosis = progress.watch(&name, stack.matrix(), |done| {
                diagnose_from(
                    values,
                    stack.cols,
                    &stored(&encoded, packed),
                    &packed.format,
                    named,
                    done,
                )
            });
            explained += usize::from(diagnosis.explained());
            all += 1;
            let shape = &packed.shape[packed.shape.len().saturating_sub(2)..];
            output::print(out, json, &name, &packed.format, shape, &diagnosis)?;
        }
    }
    drop(progress);
    output::summary(out, json, explained, all)?;
    Ok(if explained == all { Exit::Pass } else { Exit::GateFailed })
}

/// The bytes of a matrix, the scales in whatever order.
fn stored<'a>(encoded: &'a Encoded, packed: &Packed) -> Stored<'a> {
    let globals = encoded.part("global").as_chunks().0.iter();
    Stored {
        data: encoded.part("data"),
        scale: encoded.part("scale"),
        global: globals.map(|bytes| f32::from_le_bytes(*bytes)).collect(),
        layout: packed.layout,
    }
}

impl Diagnosis {
    /// One sentence.
    pub fn conclusion(&self) -> String {
        output::conclusion(self)
    }
}
