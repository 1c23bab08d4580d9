//! `ulplab compare WANT GOT --parity`: finds the rule that made the stored bytes of quantized tensors.

use std::io::Write;

use super::CompareArgs;
use crate::commands::inspect::source_of;
use crate::progress::Progress;
use ulplab_checkpoint::packed::{Naming, Opened, Packed, check_layout, matrix_name, parts};
use ulplab_checkpoint::parity::copies::Copies;
use ulplab_checkpoint::parity::cost::{self, Cost};
use ulplab_checkpoint::parity::{DiagnosisOptions, Rules, Source, StoredBytes, bytes, diagnose_from, output};
use ulplab_core::error::{Error, Exit, Result, refuse};
use ulplab_core::tensorfile::TensorFile;

/// Diagnosis of quantized tensors.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Parity")]
pub struct ParityArgs {
    /// Find the quantization rule that made the tensors of GOT from those of WANT, or count mismatches by cause.
    ///
    /// WANT has the source tensors, GOT the codes and scales, which are recognised as by `ulplab dequantize`. With --rule, the
    /// codes and scales are compared with that rule. For kernels that are known to be approximate, the known deviations are
    /// allowed. Without --rule, every rule in the format's table is tried. If tensor names or the file define the meaning of the
    /// scales, only rules with that meaning are tried. Formats with zero points are compared with their own rule only, without a
    /// search for causes. If --rule is not given, a rule whose relative L2 error is more than 1.5 times that of the format's best
    /// rule causes a warning. Tensors that are not quantized must equal those of WANT, bit for bit or rounded to another type.
    /// Exit code: 0 if every byte is explained, 100 if not, 2 if a tensor is in one file only.
    #[arg(long)]
    pub parity: bool,
    #[command(flatten)]
    pub naming: Naming,
    /// Name of the source tensor in WANT [default: the name of the quantized tensor, or the only tensor].
    #[arg(long, value_name = "NAME")]
    pub tensor: Option<String>,
}

impl ParityArgs {
    /// Returns the name of a flag on the command line that is valid only with `--parity`; `None` if there is none.
    pub fn flag(&self) -> Option<&'static str> {
        let tensor = self.tensor.as_ref().map(|_| "tensor");
        self.naming.given().or(tensor)
    }
}

/// Runs `ulplab compare --parity`: finds the rule of each quantized tensor, and prints the results to `out`.
pub fn run_to(args: &ParityArgs, compare: &CompareArgs, out: &mut dyn Write) -> Result<Exit> {
    let (want, got, json) = (&compare.want, &compare.got, compare.json);
    let (only, skip) = (&compare.only, &compare.skip);
    let (source, file) = (TensorFile::open(want)?, TensorFile::open(got)?);
    let beside: Vec<&str> = source.tensors().map(|tensor| tensor.name).collect();
    let found = args.naming.find(&file, &beside, only, skip)?;
    let hint = "name the tensors with --data, --scale and --global, and give --format";
    let message = format_args!("no quantized tensor in {}; {hint}", got.display());
    refuse(found.is_empty(), message).map_err(Error::NothingSelected)?;
    let any_name = args.tensor.is_none() && found.len() == 1;
    let mut pairs = Vec::new();
    for packed in &found {
        let name = args.tensor.as_deref().unwrap_or(&packed.name);
        let tensor = source_of(&source, name, &packed.shape, any_name)?;
        let empty = format_args!("tensor '{name}' is empty");
        refuse(tensor.bytes.is_empty(), empty).map_err(|why| Error::data(want, why))?;
        pairs.push((packed, tensor));
    }
    // If the user names a tensor, the other tensors are not compared.
    let copies = match args.naming.data.is_some() || args.tensor.is_some() {
        true => Copies::default(),
        false => {
            let parts = parts(&file)?;
            let is_source = |name: &str| pairs.iter().any(|(_, source)| source.name == name);
            Copies::find(&source, &file, (only, skip), is_source, |name| parts.contains(name))
        }
    };
    copies.check(compare.allow_unmatched, &source, &file)?;
    let elements = found.iter().map(|packed| packed.shape.iter().product::<usize>()).sum();
    let mut progress = Progress::new(elements, false);
    let (mut explained, mut all) = (0, 0);
    for (packed, tensor) in pairs {
        let opened = open(packed).map_err(|why| Error::data(got, why))?;
        let stack = opened.stack;
        for expert in stack.matrices() {
            let matrix = stack.of_tensor(&tensor, expert);
            let encoded = opened.matrix(expert);
            let name = matrix_name(&packed.name, &packed.shape, expert);
            let rules = options(args, packed);
            let of_bytes = StoredBytes {
                layout: packed.layout,
                ..StoredBytes::from(&encoded)
            };
            let mut diagnosis = progress.watch(&name, stack.matrix(), |done| match packed.format.zero_point() {
                Some(_) => {
                    let x = matrix.to_f32().expect("floating-point tensors are numbers");
                    bytes::compare(&x, stack.cols, &encoded, &packed.format)
                }
                None => {
                    let source = Source::tensor(matrix);
                    diagnose_from(source, stack.cols, &of_bytes, &packed.format, rules, done)
                }
            });
            diagnosis.say_why(packed.said.as_deref());
            // Compares the error of the found rule with the error of the format's best rule. A rule that the user named is not
            // compared.
            let unasked = rules.rules != Rules::Own && packed.format.zero_point().is_none();
            let cost = unasked.then(|| cost::measure(Source::tensor(matrix), stack.cols, &of_bytes, &diagnosis));
            let cost = cost.flatten().filter(Cost::is_far);
            explained += usize::from(diagnosis.explained());
            all += 1;
            let shape = &packed.shape[packed.shape.len().saturating_sub(2)..];
            progress.apart(|| {
                output::print(out, json, &name, &packed.format, shape, (&diagnosis, cost.as_ref()))?;
                // Flushes the output before the progress bar is drawn again.
                out.flush().map_err(Error::io("standard output", "write"))
            })?;
        }
    }
    drop(progress);
    let copied = copies.compare(json, |text| output::write(out, text))?;
    let pass = output::summary(out, json, (explained, all), copied)?;
    Ok(if pass { Exit::Pass } else { Exit::GateFailed })
}

/// Checks and opens a quantized tensor. Scales may be stored in any order, except in formats with zero points, for which
/// `--parity` does not search causes.
fn open<'a>(packed: &Packed<'a>) -> Result<Opened<'a>, String> {
    if packed.format.zero_point().is_some() {
        return packed.open();
    }
    let size = packed.format.scaling.map_or(0, |scaling| scaling.scale.bytes());
    packed.layout.map_or(Ok(()), |layout| check_layout(layout, size))?;
    packed.buffers.open_in_any_order(&packed.format, &packed.shape)
}

/// Returns the options of a diagnosis: the quantization rules that are accepted as explanation of the stored bytes, and the type
/// of the scales.
fn options(args: &ParityArgs, packed: &Packed) -> DiagnosisOptions {
    let rules = match (args.naming.names_rule(), &packed.said) {
        (true, _) => Rules::Own,
        (false, Some(_)) => Rules::ReadAlike,
        // In a format with a global scale, programs decode the stored scales in several ways, so all rules are tried. In other
        // formats there is only one way.
        (false, None) if packed.format.global.is_some() => Rules::Any,
        (false, None) => Rules::ReadAlike,
    };
    let narrow = packed.buffers.narrow();
    DiagnosisOptions { rules, narrow }
}
