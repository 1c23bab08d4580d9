//! `ulplab kernels dump`: writes the inputs of a case, the expected outputs and their bounds as files for a debugger.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::backend::program::{metadata, write_inputs};
use crate::dataset::{Checkpoint, Manifest as Datasets};
use crate::signal;
use crate::studies::Text;
use crate::studies::kernels::operations::{self, Definitions, Operation};
use crate::studies::kernels::sites;
use ulplab_core::error::{Error, Exit, Result};
use ulplab_operations::ops::judge::{self, Tensor};
use ulplab_operations::ops::{Case, Data, Problem};

/// Write the inputs of a case in the form that programs read, the expected outputs, and the bound of each element.
///
/// DIR/inputs.safetensors has the inputs. DIR/want.safetensors has an array for each output: in the output's own type if bits are
/// compared, else in f64; an output that is judged in two ways has two arrays, NAME and NAME.2. DIR/bound.safetensors has the
/// largest allowed error of each element of the outputs whose bits are not compared.
#[derive(Debug, clap::Args)]
pub struct DumpArgs {
    /// The operation: a name from `ulplab kernels list`, or an operation of the experiment.
    pub op: String,
    /// The case: a name from `ulplab kernels describe OP`. A case with the weights of a model reads the experiment's model, or
    /// else the shipped model.
    pub case: String,
    /// Folder for the files; created if missing.
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
    /// An experiment file with further operations (`[[op]]`) and cases (`[[case]]`). The reference program of your own
    /// operation is run: use only files that you trust.
    #[arg(long, value_name = "FILE")]
    pub experiment: Option<PathBuf>,
    /// Seed of the random draws [default: the experiment's, or 0].
    #[arg(long)]
    pub seed: Option<u64>,
    /// Folder of the data sets [default: $ULPLAB_DATASETS, or datasets/ here or in a folder above].
    #[arg(long, value_name = "DIR")]
    pub datasets: Option<PathBuf>,
}

/// The model and the text (name, offset, tokens) of cases that read a model, as in `experiments/kernels.toml`.
pub(super) const MODEL: &str = "dsv4-mini";
const TEXT: (&str, usize, usize) = ("alice", 4096, 512);

pub fn run(args: &DumpArgs) -> Result<Exit> {
    let file = args.experiment.as_deref();
    let defined = operations::read(file)?;
    let op = operations::given(&defined.study, &args.op, file)?;
    let lists = format!("`ulplab kernels describe {}` lists its cases", op.name());
    let case = op.case(&args.case).map_err(|why| match file {
        Some(_) => Error::Usage(why),
        None => Error::Usage(format!("{why}; {lists}; give --experiment FILE for your own")),
    })?;
    // A signal that ends this program also ends the reference program.
    let problem = signal::while_running(|| problem(&defined, &op, &case, args))?;
    std::fs::create_dir_all(&args.folder).map_err(Error::io(&args.folder, "create"))?;
    let file = |name: &str| args.folder.join(format!("{name}.safetensors"));
    write_inputs(&file("inputs"), op.name(), &case, &problem)?;
    let judges = &problem.judges;
    let mut metadata = metadata(op.name(), &case, &problem);
    for judge in judges {
        let judged = format!("{}: {}", judge.how(), judge.why);
        metadata.insert(format!("{}.judged", judge.output), judged);
    }
    let write = |name: &str, tensors: Vec<Tensor>| judge::write(&file(name), &numbered(tensors), &metadata);
    write("want", judges.iter().filter_map(|judge| judge.wanted()).collect())?;
    write("bound", judges.iter().filter_map(|judge| judge.bound()).collect())?;
    for name in ["inputs", "want", "bound"] {
        outln!("{}", file(name).display());
    }
    for judge in judges {
        outln!("{}: {}: {}", judge.output, judge.how(), judge.why);
    }
    Ok(Exit::Pass)
}

fn problem(defined: &Definitions, op: &Operation, case: &Case, args: &DumpArgs) -> Result<Problem> {
    let seed = args.seed.unwrap_or(defined.seed);
    let made = |data: &Data| op.problem(case, data, &signal::STOP)?.map_err(Error::Usage);
    if !op.reads_site(case) {
        let none = |pattern: &str| Err(format!("no model is read at {pattern}"));
        return made(&Data::new(seed, &none));
    }
    let datasets = Datasets::open(args.datasets.as_deref())?;
    let study = &defined.study;
    let name = study.model.as_deref().unwrap_or(MODEL);
    let folder = datasets.checkpoint(name)?;
    let mut checkpoint = Checkpoint::open(&folder)?;
    let model = checkpoint.load()?;
    let window = study.windows.first();
    let tokenizer = checkpoint.tokenizer()?;
    let ids = match window {
        Some(window) => window.read(&datasets, &tokenizer, seed, study.tokens)?.ids,
        None => tokenizer.window(&datasets, TEXT.0, TEXT.1, TEXT.2)?.ids,
    };
    let text = Text {
        model: &*model,
        ids: &ids,
    };
    let found = |pattern: &str| sites(text, pattern);
    made(&Data::new(seed, &found).with_checkpoint(Some(&folder)))
}

/// Makes the names of tensors unique: the second tensor NAME becomes NAME.2. An output that is judged in two ways has two
/// tensors.
fn numbered(mut tensors: Vec<Tensor>) -> Vec<Tensor> {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    for tensor in &mut tensors {
        let count = seen.entry(tensor.name.clone()).or_default();
        *count += 1;
        if *count > 1 {
            tensor.name = format!("{}.{count}", tensor.name);
        }
    }
    tensors
}
