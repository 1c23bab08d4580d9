//! `ulplab compare WANT GOT`: compares two files of tensors from any kernel, tensor by tensor.
//!
//! The shapes are judged first, then the pattern of NaN and infinities, then the metrics. Integers, booleans and power-of-two
//! scales must be equal.

mod gates;
mod judge;
mod output;
pub mod parity;

use std::collections::HashSet;
use std::io::Write;
use std::path::PathBuf;
use std::time::Instant;

use ulplab_checkpoint::packed::parts;
use ulplab_core::error::{Error, Exit, Result, refuse};
use ulplab_core::metrics::{Eval, Logits, METRICS, Metric, ULP_MAX};

pub use gates::Gate;
use judge::Comparison;
use parity::ParityArgs;
use ulplab_checkpoint::parity::copies::{Pairing, unmatched};
use ulplab_core::pattern;
use ulplab_core::pattern::selects;
use ulplab_core::tensorfile::{Kind, TensorFile};

/// Compare the tensors of two files; the first is the reference.
///
/// Reads .safetensors and .npy. Tensors are paired by name; a .npy holds one tensor, and is paired with the only tensor of the
/// other file. Checks run in this order: shape, then NaN and infinities (which must be at the same positions), then metrics (in
/// f64). Integers, booleans and E8M0 scales must be equal. A tensor is not judged if it differs and no gate applies to it, or if
/// it has no finite number. It then fails only if its shape, or the positions of NaN and infinities, differ.
///
/// Exit code: 0 every tensor passed; 100 a gate failed, or shapes, NaN/Inf or exact values differ; 4 nothing failed, but not every
/// tensor was judged; 2 a tensor is in one file only, or the input is bad.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct CompareArgs {
    /// The reference.
    pub want: PathBuf,
    /// The candidate.
    pub got: PathBuf,
    /// Metrics to show in addition to those of the gates.
    #[arg(long, value_name = "A,B,…", value_delimiter = ',', default_values_t = DEFAULT_METRICS.map(String::from))]
    pub metrics: Vec<String>,
    /// Require a bound of a metric, e.g. 'cosine>=0.999' or 'logits*:diff<=1e-3'; repeatable.
    ///
    /// A pattern before the colon selects tensors: `*` matches any characters but a dot, `**` any characters; a gate without a
    /// pattern applies to all tensors. For each tensor and metric, the first gate with a matching pattern applies, so write
    /// exceptions first: --gate 'router.*:diff<=1e-2' --gate 'diff<=1e-3'. A NaN fails every gate. A gate that applies to no
    /// tensor is an error.
    #[arg(long = "gate", value_name = "[PATTERN:]METRIC>=BOUND")]
    pub gates: Vec<String>,
    /// Compare only tensors that match; repeatable.
    #[arg(long, value_name = "PATTERN")]
    pub only: Vec<String>,
    /// Leave out tensors that match; repeatable.
    #[arg(long, value_name = "PATTERN")]
    pub skip: Vec<String>,
    /// Accept tensors that are in one file only.
    #[arg(long)]
    pub allow_unmatched: bool,
    /// Print JSON Lines: one record for the configuration, each tensor, and the summary. NaN is null, infinities are
    /// strings.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub parity: ParityArgs,
}

const DEFAULT_METRICS: [&str; 4] = ["cosine", "diff", "sqnr", "max_abs"];

/// Compares the two files, and prints the result to standard output.
pub fn run(args: &CompareArgs) -> Result<Exit> {
    run_to(args, &mut crate::output::stdout())
}

/// Compares the two files, and prints the result to `out`.
pub fn run_to(args: &CompareArgs, out: &mut dyn Write) -> Result<Exit> {
    if args.parity.parity {
        if let Some(gate) = args.gates.first() {
            return Err(Error::Usage(format!(
                "gate '{gate}': --parity judges bytes, not metrics"
            )));
        }
        return parity::run_to(&args.parity, args, out);
    }
    if let Some(flag) = args.parity.flag() {
        return Err(Error::Usage(format!("--{flag} needs --parity")));
    }
    let start = Instant::now();
    let gates = args.gates.iter().map(|gate| gate.parse());
    let gates = gates.collect::<Result<Vec<Gate>>>()?;
    let metrics = metrics(&args.metrics, &gates)?;
    let want = TensorFile::open(&args.want)?;
    let got = TensorFile::open(&args.got)?;
    super::check_two(["WANT", "GOT"], [&args.want, &args.got])?;
    let Pairing { pairs, unmatched } = pair(args, &want, &got)?;
    let bound = gates::bind(&gates, &pairs)?;
    if args.json {
        output::line(out, output::config(args, &metrics))?;
    }
    let mut all = Vec::new();
    for ((want, got), gates) in pairs.iter().zip(bound) {
        let comparison = Comparison::new(*want, *got, &metrics, &gates);
        if args.json {
            output::line(out, output::record(&comparison))?;
        }
        all.push(comparison);
    }
    output::finish(args.json, &metrics, &unmatched, &all, start, out)
}

/// Returns the named metrics and the metrics of the gates, in the order of [`METRICS`].
fn metrics(names: &[String], gates: &[Gate]) -> Result<Vec<&'static Metric>> {
    let named = names.iter().map(|name| Ok(pair_metric(name)?.name));
    let mut named = named.collect::<Result<HashSet<_>>>()?;
    named.extend(gates.iter().map(|gate| gate.metric.name));
    let chosen = METRICS.iter().copied().filter(|metric| named.contains(metric.name));
    Ok(chosen.collect())
}

/// Returns the metric called `name`; an error if it is not defined for two tensors.
fn pair_metric(name: &str) -> Result<&'static Metric> {
    let metric = match name.trim() {
        "ulp" => &ULP_MAX,
        name => Metric::find(name)?,
    };
    if two_tensors_do(metric) {
        return Ok(metric);
    }
    let known = METRICS.iter().filter(|metric| two_tensors_do(metric));
    let known: Vec<&str> = known.map(|metric| metric.name).collect();
    let (name, known) = (metric.name, known.join(", "));
    Err(Error::Usage(format!(
        "metric '{name}' needs more than two tensors; compare has {known}"
    )))
}

/// True if a metric can be computed from two tensors alone. This includes metrics of logits that do not need the true next
/// tokens.
fn two_tensors_do(metric: &Metric) -> bool {
    let two = Logits::new(&[0.0, 1.0], &[1.0, 0.0], 2, &[]);
    matches!(metric.eval, Eval::Pair(_)) || metric.measure(&two).is_some()
}

fn pair<'a>(args: &CompareArgs, want: &'a TensorFile, got: &'a TensorFile) -> Result<Pairing<'a>> {
    let names: Vec<&str> = want.tensors().chain(got.tensors()).map(|tensor| tensor.name).collect();
    pattern::check("tensor", &[&args.only, &args.skip], &names)?;
    let select = |name: &str| selects(&args.only, &args.skip, name);
    let is_npy = |file: &TensorFile| file.path().extension().is_some_and(|extension| extension == "npy");
    let pairing = if (is_npy(want) || is_npy(got)) && want.tensors().len() == 1 && got.tensors().len() == 1 {
        let both = want.tensors().zip(got.tensors());
        Pairing {
            pairs: both.filter(|(want, _)| select(want.name)).collect(),
            unmatched: Vec::new(),
        }
    } else {
        Pairing::new(want, got, |_, name| select(name))
    };
    if !pairing.unmatched.is_empty() && !args.allow_unmatched {
        let which = unmatched(&pairing.unmatched, want, got);
        return Err(Error::Usage(format!("{which}{}", unlike(want, got))));
    }
    refuse(pairing.pairs.is_empty(), "no tensor is in both files").map_err(Error::NothingSelected)?;
    for (tensor, file) in pairing.pairs.iter().flat_map(|(a, b)| [(a, want), (b, got)]) {
        let (name, dtype) = (tensor.name, tensor.dtype);
        let why = format_args!("tensor '{name}': type {dtype} cannot be compared");
        refuse(tensor.kind() == Kind::Unsupported, why).map_err(|why| Error::data(file.path(), why))?;
    }
    Ok(pairing)
}

/// Returns the hint for a user who compares unquantized tensors with a file of codes and scales; an empty text for other files.
fn unlike(want: &TensorFile, got: &TensorFile) -> String {
    let is_quantized = |file| parts(file).is_ok_and(|parts| !parts.is_empty());
    if !is_quantized(got) || is_quantized(want) {
        return String::new();
    }
    let got = got.path().display();
    format!("\n  {got} is quantized: --parity compares codes and scales, `ulplab dequantize` decodes them")
}
