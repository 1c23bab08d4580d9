//! `ulplab kernels describe`: inputs and outputs of an operation, and how the outputs are judged. Derives the description from
//! the definition of the operation.

mod shapes;

use std::path::PathBuf;

use safetensors::Dtype;
use serde::Serialize;

use crate::experiment::Mistake;
use crate::studies::kernels::operations::{self, Output, OwnOp, Sample, Size, expressions, samples, type_of};
use crate::{json, ops};
use ulplab_core::error::{Error, Exit, Result, counted};
use ulplab_core::list::{distinct, grouped};
use ulplab_operations::ops::judge::{Judge, Rule};
use ulplab_operations::ops::{Buffer, Case, Op, Role, Scalar};

/// Describe an operation: its buffers, scalars, sizes, keys and cases, and how each output is judged and why.
#[derive(Debug, clap::Args)]
pub struct DescribeArgs {
    /// The operation: a name from `ulplab kernels list`, or an operation of the experiment.
    pub op: String,
    /// An experiment file with further operations (`[[op]]`) and cases (`[[case]]`).
    #[arg(long, value_name = "FILE")]
    pub experiment: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// The description of an operation.
#[derive(Debug, Serialize)]
pub struct Description {
    pub op: String,
    pub doc: String,
    pub buffers: Vec<BufferLine>,
    pub scalars: Vec<ScalarLine>,
    /// Names of the sizes of a case, such as `K`. The shapes of buffers are expressions over these sizes.
    pub sizes: Vec<String>,
    /// Properties by which cases differ (keys, such as `direction`), each with all its values.
    pub keys: Vec<(String, Vec<String>)>,
    pub judgements: Vec<JudgementLine>,
    pub cases: Vec<Case>,
}

#[derive(Debug, PartialEq, Serialize)]
pub struct BufferLine {
    pub name: String,
    /// `in`, `out` or `in place`.
    pub role: &'static str,
    /// Types of the buffer in the cases.
    pub dtypes: Vec<Dtype>,
    /// Dimensions, as expressions over the sizes.
    pub shape: Vec<String>,
    /// Name of an example case with this shape; `None` if all cases have this shape.
    pub such_as: Option<String>,
}

#[derive(Debug, PartialEq, Serialize)]
pub struct ScalarLine {
    pub name: String,
    pub r#type: &'static str,
    /// Values of the scalar in the cases.
    pub values: Vec<String>,
}

#[derive(Debug, PartialEq, Serialize)]
pub struct JudgementLine {
    pub output: String,
    /// `equal`, `within`, `rms`, `admissible`, `finite`, or `custom`.
    pub rule: &'static str,
    /// The rule in a few words.
    #[serde(skip)]
    pub short: String,
    pub how: String,
    pub why: String,
    /// Name of an example case that is judged by this rule; `None` if this rule judges all cases.
    pub such_as: Option<String>,
}

pub fn run(args: &DescribeArgs) -> Result<Exit> {
    let file = args.experiment.as_deref();
    let defined = operations::read(file)?;
    let op = operations::given(&defined.study, &args.op, file)?;
    let cases = op.cases().map_err(Mistake::usage)?;
    let description = match op.own {
        Some(own) => describe_own(own, &cases),
        None => Description {
            cases,
            ..describe(ops::find(&args.op).map_err(Error::Usage)?).map_err(Error::Usage)?
        },
    };
    json::print_or(args.json, &description, || text(&description))?;
    Ok(Exit::Pass)
}

/// Describes an operation from the problems (inputs and judges) of a few small cases.
pub fn describe(op: &dyn Op) -> std::result::Result<Description, String> {
    let cases = op.cases();
    let samples = samples(op, &cases)?;
    let keys = cases.iter().flat_map(|case| case.keys.iter().cloned());
    let keys = grouped(keys).into_iter();
    let keys = keys.map(|(key, values)| (key.to_string(), distinct(values)));
    Ok(Description {
        op: op.name().into(),
        doc: op.doc().into(),
        buffers: buffers(&samples),
        scalars: scalars(&samples),
        sizes: samples[0].case.dims.iter().map(|(name, _)| name.to_string()).collect(),
        keys: keys.collect(),
        judgements: judgements(&samples),
        cases,
    })
}

/// Describes an operation that a user defines in an experiment file, with these cases. Does not run the operation's reference
/// program.
fn describe_own(op: &OwnOp, cases: &[Case]) -> Description {
    let line = |name: &str, role, dtype: &Option<String>, shape: &[Size]| BufferLine {
        name: name.into(),
        role,
        dtypes: distinct(cases.iter().map(|case| type_of(dtype, case))),
        shape: expressions(shape),
        such_as: None,
    };
    let inputs = op.inputs.iter();
    let inputs = inputs.map(|input| line(&input.name, "in", &input.dtype, &input.shape));
    let outputs = op.outputs.iter();
    let outputs = outputs.map(|output| line(&output.name, "out", &output.dtype, &output.shape));
    let of_key = |name: &str| -> Vec<String> {
        let named = cases.iter().flat_map(|case| &case.keys).filter(|(key, _)| *key == name);
        distinct(named.map(|(_, value)| value.clone()))
    };
    let scalar = |name: &String| ScalarLine {
        name: name.clone(),
        r#type: "number",
        values: of_key(name),
    };
    let dtypes = of_key("dtype");
    Description {
        op: op.name.clone(),
        doc: op.doc.clone(),
        buffers: inputs.chain(outputs).collect(),
        scalars: op.scalars.keys().map(scalar).collect(),
        sizes: op.sizes.clone(),
        keys: Vec::from_iter((!dtypes.is_empty()).then(|| ("dtype".to_string(), dtypes))),
        judgements: op.outputs.iter().map(judgement_of).collect(),
        cases: cases.to_vec(),
    }
}

fn judgement_of(output: &Output) -> JudgementLine {
    let how = match output.bound {
        None => "bits must be equal".into(),
        Some(bound) if bound.by_reference => "each element must be within the bound that the reference says".into(),
        Some(bound) => format!(
            "each element y must be within {:e} |y| + {:e} of the reference's",
            bound.relative, bound.absolute
        ),
    };
    JudgementLine {
        output: output.name.clone(),
        rule: if output.bound.is_none() { "equal" } else { "within" },
        short: how.clone(),
        how,
        why: output.why.clone(),
        such_as: None,
    }
}

/// A case, and the shape of a buffer in the case.
type Shaped<'a> = (&'a Case, &'a [usize]);

fn buffers(samples: &[Sample]) -> Vec<BufferLine> {
    let kind = |buffer: &Buffer| {
        let role = match buffer.role {
            Role::In => "in",
            Role::Out => "out",
            Role::InOut => "in place",
        };
        (buffer.name, role, buffer.shape.len())
    };
    // A buffer may have another role, type or rank in other cases: each combination gets a line of its own.
    let buffers = samples.iter().flat_map(|sample| &sample.problem.buffers);
    let kinds = distinct(buffers.map(|buffer| (kind(buffer), buffer.dtype)));
    let lines = kinds.into_iter().map(|(own, dtype)| {
        let found = samples.iter().flat_map(|sample| {
            let like = sample.problem.buffers.iter().filter(|buffer| kind(buffer) == own);
            like.map(move |found| (found.dtype, (&sample.case, &found.shape[..])))
        });
        let found: Vec<(Dtype, Shaped)> = found.collect();
        let all: Vec<Shaped> = found.iter().map(|(_, one)| *one).collect();
        let having = found.iter().filter(|(other, _)| *other == dtype);
        let having: Vec<Shaped> = having.map(|(_, one)| *one).collect();
        // First tries one shape for all types: an expression that fits the few cases of one type may fit by chance.
        let (name, role, rank) = own;
        let of_all: Vec<String> = (0..rank).map(|at| shapes::named(&all, at)).collect();
        let shape = match shapes::varies(&of_all) {
            true => (0..rank).map(|at| shapes::named(&having, at)).collect(),
            false => of_all,
        };
        ((name, role, shape), (dtype, having))
    });
    // Element types for which the buffer has the same shape share a line.
    let line = |((name, role, shape), types): ((&str, &'static str, Vec<String>), Vec<(Dtype, Vec<Shaped>)>)| {
        let cases: usize = types.iter().map(|(_, having)| having.len()).sum();
        BufferLine {
            name: name.into(),
            role,
            dtypes: types.iter().map(|(dtype, _)| *dtype).collect(),
            shape,
            such_as: (cases != samples.len()).then(|| types[0].1[0].0.name.clone()),
        }
    };
    grouped(lines).into_iter().map(line).collect()
}

fn scalars(samples: &[Sample]) -> Vec<ScalarLine> {
    let written = |scalar: &Scalar| match scalar {
        Scalar::I64(value) => ("i64", value.to_string()),
        Scalar::F32(value) => ("f32", value.to_string()),
    };
    let scalars = samples.iter().flat_map(|sample| &sample.problem.scalars);
    let line = |(name, scalars): (&str, Vec<(&'static str, String)>)| ScalarLine {
        name: name.into(),
        r#type: scalars[0].0,
        values: distinct(scalars.into_iter().map(|(_, value)| value)),
    };
    let scalars = grouped(scalars.map(|(name, scalar)| (*name, written(scalar))));
    scalars.into_iter().map(line).collect()
}

pub fn judgements(samples: &[Sample]) -> Vec<JudgementLine> {
    let judges = samples.iter().flat_map(|sample| {
        let judges = sample.problem.judges.iter();
        judges.map(move |judge| ((judge.output, judge.how(), &*judge.why), (judge, sample)))
    });
    let line = |((output, how, why), those): ((&str, String, &str), Vec<(&Judge, &Sample)>)| JudgementLine {
        output: output.into(),
        rule: name_of(&those[0].0.rule),
        short: short(those[0].0),
        how,
        why: why.into(),
        such_as: (those.len() < samples.len()).then(|| those[0].1.case.name.clone()),
    };
    grouped(judges).into_iter().map(line).collect()
}

fn name_of(rule: &Rule) -> &'static str {
    match rule {
        Rule::Equal { .. } => "equal",
        Rule::Within { .. } => "within",
        Rule::Rms(_) => "rms",
        Rule::Admissible { .. } => "admissible",
        Rule::Finite => "finite",
        Rule::Parts(_) => "custom",
    }
}

/// Describes the rule of a judgement in a few words.
fn short(judge: &Judge) -> String {
    match &judge.rule {
        Rule::Equal { any_nan, also, .. } => {
            let also = also.as_ref();
            let also = also.map_or("", |_| ", or those of another admissible rounding");
            let any = match any_nan.is_empty() {
                true => "",
                false => "; every NaN counts as equal",
            };
            format!("equal bytes{also}{any}")
        }
        Rule::Within { together, .. } => {
            let more = together.as_ref();
            let more = more.map_or("", |_| "; all errors are judged together, too");
            format!("each element within its own bound{more}")
        }
        Rule::Rms(rms) => format!(
            "root-mean-square error of each group of rows at most {} times that of the expected values",
            rms.bar
        ),
        Rule::Admissible { .. } => "codes and scales that are possible for numbers within their bounds".into(),
        Rule::Finite => "each element finite".into(),
        Rule::Parts(_) => format!("custom: {}", judge.why),
    }
}

/// Describes a case: sizes, inputs, and "timed" if it is timed.
pub fn about(case: &Case) -> String {
    let sizes: Vec<String> = case.dims.iter().map(|(name, size)| format!("{name} {size}")).collect();
    let timed = if case.timed { ", timed" } else { "" };
    format!("{}; {}{timed}", sizes.join(" "), case.inputs)
}

/// Formats the description for a terminal.
fn text(description: &Description) -> String {
    let (op, doc, sizes) = (&description.op, &description.doc, &description.sizes);
    let (keys, cases) = (&description.keys, &description.cases);
    let mut lines = vec![format!("{op}: {doc}"), String::new(), "buffers".into()];
    let such_as = |case: &Option<String>| match case {
        Some(case) => format!(" (e.g. {case})"),
        None => String::new(),
    };
    let width = |names: &mut dyn Iterator<Item = &String>| names.map(String::len).max().unwrap_or(0);
    let wide = width(&mut description.buffers.iter().map(|buffer| &buffer.name));
    for buffer in &description.buffers {
        let dtypes: Vec<String> = buffer.dtypes.iter().map(|dtype| dtype.to_string()).collect();
        let (name, role, shape) = (&buffer.name, buffer.role, &buffer.shape);
        let (dtypes, shape, such_as) = (dtypes.join(" or "), shape.join(", "), such_as(&buffer.such_as));
        lines.push(format!("  {name:wide$}  {role:8}  {dtypes} [{shape}]{such_as}"));
    }
    if description.buffers.iter().any(|buffer| shapes::varies(&buffer.shape)) {
        let hint = format!("`ulplab kernels dump {op}` writes the buffers of a case");
        lines.push(format!("  A to B: depends on the case; {hint}"));
    }
    if !description.scalars.is_empty() {
        lines.extend([String::new(), "scalars".into()]);
    }
    for scalar in &description.scalars {
        let (name, kind, values) = (&scalar.name, scalar.r#type, scalar.values.join(" or "));
        lines.push(format!("  {name}  {kind}, {values}"));
    }
    let between = |c: char| !(c.is_alphanumeric() || c == '_');
    let lengths = description.buffers.iter().flat_map(|buffer| &buffer.shape);
    let words: Vec<&str> = lengths.flat_map(|length| length.split(between)).collect();
    let (named, internal): (Vec<&String>, Vec<&String>) = sizes.iter().partition(|size| words.contains(&size.as_str()));
    let joined = |sizes: Vec<&String>| sizes.into_iter().map(String::as_str).collect::<Vec<_>>().join(" ");
    lines.extend([String::new(), format!("sizes  {}", joined(named))]);
    if !internal.is_empty() {
        let internal = joined(internal);
        lines.push(format!(
            "       {internal}: numbers that kernels are launched with, in no shape"
        ));
    }
    let meaning = |name: &str| KEYS.iter().find(|(key, _)| *key == name).map(|(_, word)| *word);
    // A key with the same value in all cases does not distinguish cases, so it is not printed.
    for (key, values) in keys.iter().filter(|(_, values)| values.len() > 1) {
        let word = meaning(&format!("{op}.{key}")).or_else(|| meaning(key));
        let word = word.map_or(String::new(), |word| format!("{word}: "));
        lines.push(format!("key    {key}: {word}{}", values.join(", ")));
    }
    lines.extend([String::new(), "how outputs are judged".into()]);
    for judgement in &description.judgements {
        let (output, such_as) = (&judgement.output, such_as(&judgement.such_as));
        lines.push(format!("  {output}{such_as}: {}", judgement.how));
        lines.push(format!("    because: {}", judgement.why));
    }
    lines.extend([String::new(), counted(cases.len(), "case")]);
    let wide = width(&mut cases.iter().map(|case| &case.name));
    for case in cases {
        lines.push(format!("  {:wide$}  {}", case.name, about(case)));
    }
    lines.join("\n") + "\n"
}

/// Keys of cases (properties by which cases differ) and their meanings. The prefix `operation.` marks a key with another meaning
/// in that operation.
const KEYS: [(&str, &str); 26] = [
    ("L", "how an exchange with a bank is made"),
    ("W", "type of the weights"),
    ("direction", "which way it turns"),
    ("dtype", "type of the activations"),
    ("edges", "which edge values the cases with edges have"),
    ("ends", "how long the groups are"),
    ("form", "how the decay is made of its raw gate"),
    ("format", "number format of the codes"),
    ("gate", "one decay for each head (gdn), or for each channel (kda)"),
    ("groups", "what the matrix is cut into groups along"),
    ("index", "record of the indexer's cache"),
    ("kind", "one decay for each head (gdn), or for each channel (kda)"),
    ("layout", "order of the state's dimensions"),
    ("operand", "type of the operands"),
    ("out", "type of the output"),
    ("reads", "which entries are read"),
    ("record", "record of the KV cache"),
    ("record_write.form", "whether the input is normed before it is stored"),
    ("routed", "format of the routed experts' weights"),
    ("routing", "how tokens are spread over the experts"),
    ("select", "what selects the experts"),
    ("sequences", "how long the sequences are"),
    ("state", "type of the state"),
    ("state_transpose.dtype", "type of the state"),
    ("stored", "format of the weights"),
    ("width", "columns of the instruction"),
];
