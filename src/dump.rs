//! `ulplab dump`: inputs of a case, the expected outputs and their tolerances, as files for a debugger.

use std::path::{Path, PathBuf};

use reference::paths::deepseek_v4::Model;

use crate::backend::program::{metadata, write_inputs};
use crate::dataset::{Checkpoint, Manifest as Datasets};
use crate::error::{Error, Exit, Result};
use crate::kernels::judge::Tensor;
use crate::kernels::{self, Case, Data, Inputs, Op, Problem};
use crate::sweep::execute::Text;
use crate::sweep::kernels::sites;
use crate::tensorfile::{Slot, write_safetensors};

/// Write the inputs of a case as programs read them, the expected outputs and the tolerance of each element.
///
/// DIR/inputs.safetensors has the inputs. DIR/want.safetensors has an array for each output: as stored if bits are compared, else
/// in f64. DIR/bound.safetensors has the largest allowed error of each element of the outputs whose bits are not compared.
#[derive(Debug, clap::Args)]
pub struct DumpArgs {
    /// The operation, as `ulplab list kernels` names them: what stands before the dot.
    #[arg(value_name = "OP")]
    pub op: String,
    /// The case, as `ulplab describe OP` names them. A case that reads a model reads the one that comes with ulplab.
    #[arg(value_name = "CASE")]
    pub case: String,
    /// Folder for the files; made if it is not there.
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
    /// Seed of the random draws, as in the experiment.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Folder of the data sets [default: $ULPLAB_DATASETS, or datasets/ here or in a folder above].
    #[arg(long, value_name = "DIR")]
    pub datasets: Option<PathBuf>,
}

/// What cases that read a model read, as `experiments/kernels.toml` says it.
const MODEL: &str = "dsv4-mini";
const TEXT: (&str, usize, usize) = ("alice", 4096, 512);

pub fn run(args: &DumpArgs) -> Result<Exit> {
    let op = kernels::find(&args.op).map_err(Error::Usage)?;
    let case = kernels::case(op, &args.case).map_err(Error::Usage)?;
    let problem = problem(op, &case, args)?;
    std::fs::create_dir_all(&args.folder).map_err(Error::io(&args.folder, "create"))?;
    let file = |name: &str| args.folder.join(format!("{name}.safetensors"));
    write_inputs(&file("inputs"), op.name(), &case, &problem)?;
    let judges = &problem.judges;
    let write = |name: &str, tensors: Vec<Tensor>| write(&file(name), op, &case, &problem, &tensors);
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

fn problem(op: &dyn Op, case: &Case, args: &DumpArgs) -> Result<Problem> {
    let Inputs::Site(_) = case.inputs else {
        let none = |pattern: &str| Err(format!("no model is read at {pattern}"));
        return op.problem(case, &Data::new(args.seed, &none)).map_err(Error::Usage);
    };
    let datasets = Datasets::open(args.datasets.as_deref())?;
    let mut checkpoint = Checkpoint::open(&datasets.checkpoint(MODEL)?)?;
    let model = Model::load(checkpoint.config.clone(), &mut checkpoint)?;
    let (text, offset, tokens) = TEXT;
    let ids = datasets.text(text, offset, tokens)?;
    let ids: Vec<u32> = ids.into_iter().map(u32::from).collect();
    let text = Text {
        model: &model,
        ids: &ids,
    };
    let found = |pattern: &str| sites(text, pattern);
    op.problem(case, &Data::new(args.seed, &found)).map_err(Error::Usage)
}

fn write(file: &Path, op: &dyn Op, case: &Case, problem: &Problem, tensors: &[Tensor]) -> Result<()> {
    let slots = tensors.iter().map(|tensor| Slot {
        name: tensor.name.clone(),
        dtype: tensor.dtype,
        shape: tensor.shape.clone(),
    });
    let mut metadata = metadata(op.name(), case, problem);
    for judge in &problem.judges {
        metadata.insert(
            format!("{}.judged", judge.output),
            format!("{}: {}", judge.how(), judge.why),
        );
    }
    write_safetensors(file, slots.collect(), &metadata, |writer| {
        tensors
            .iter()
            .try_for_each(|tensor| writer.put(&tensor.name, &tensor.bytes))
    })
}
