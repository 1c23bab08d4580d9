//! The options of `ulplab sweep`.

use std::path::PathBuf;

use crate::run::invocation::Invocation;
use crate::run::partition::PartitionArg;
use crate::studies::limits::Bytes;

/// Run an experiment: plan, measure, gate, report.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct SweepArgs {
    /// The experiment file.
    pub experiment: PathBuf,
    /// Override a key of the experiment, e.g. --set tokens=128, --set 'kernels=["rope.*"]' or --set 'gate=[]'. The changed
    /// experiment can still PASS; a run limited by --only or --skip cannot.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub overrides: Vec<String>,
    /// Use the gates of this file instead of the experiment's own. The file is an experiment, or contains only `[[gate]]` tables.
    #[arg(long, value_name = "FILE")]
    pub rules: Option<PathBuf>,
    /// Run only cells whose id (recipe/phase/window) matches. A run with cells left out is at best PARTLY JUDGED, exit code 4.
    #[arg(long, value_name = "GLOB")]
    pub only: Vec<String>,
    /// Leave out cells whose id matches. As with --only, such a run is at best PARTLY JUDGED.
    #[arg(long, value_name = "GLOB")]
    pub skip: Vec<String>,
    /// Seed of all random numbers [default: the experiment's own].
    #[arg(long)]
    pub seed: Option<u64>,
    /// Folder of the run [default: runs/<name>/<time>].
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Continue an unfinished run: the one in --out, or the newest of this experiment.
    #[arg(long)]
    pub resume: bool,
    /// Run only a share of the cells: slice:M/N, hash:M/N, op:NAME or op:NAME:M/N.
    ///
    /// slice:M/N is the M-th of N shares of about equal estimated cost. hash:M/N assigns cells by a hash of their ids: a cell
    /// keeps its share when other cells are added. op:NAME is the cells of one operation with kernels, op:NAME:M/N a share of its
    /// cases. `slice` and `hash` without numbers take M and N from a Slurm array task, an indexed Kubernetes job, or a GitLab job
    /// with `parallel`. The partitions use the same --out, or one each. The partition that finishes when all cells are present
    /// judges the run; the others exit with 0. So run `ulplab merge` at the end.
    #[arg(long, value_name = "PART")]
    pub partition: Option<PartitionArg>,
    /// End at the first window after which every gate is decided; all gates have statistic = "sequential".
    #[arg(long, conflicts_with_all = ["only", "skip", "partition"])]
    pub until_decided: bool,
    /// Judge nothing and exit with code 4 if the text or the checkpoint cannot tell formats apart.
    ///
    /// They cannot if the reference's loss is at least 90 % of the loss of uniform guesses. They also cannot if the losses of all
    /// recipes lie within each other's noise. Without --strict, the report only warns.
    #[arg(long)]
    pub strict: bool,
    /// Print the planned cells, one per line, without running them.
    #[arg(long)]
    pub dry_run: bool,
    /// Print verdicts as JSON Lines on stdout instead of the table.
    #[arg(long)]
    pub json: bool,
    /// Refuse a run that needs more memory than this, e.g. 16G [default: the free memory of the machine].
    #[arg(long, value_name = "SIZE")]
    pub max_memory: Option<Bytes>,
    /// Show no progress bar.
    #[arg(long)]
    pub no_progress: bool,
    /// Folder of the data sets [default: $ULPLAB_DATASETS, or datasets/ here or in a folder above].
    #[arg(long, value_name = "DIR")]
    pub datasets: Option<PathBuf>,
}

impl SweepArgs {
    /// Returns the arguments that the folder of the run stores.
    pub fn invocation(&self) -> Invocation {
        Invocation {
            experiment: self.experiment.clone(),
            set: self.overrides.clone(),
            rules: self.rules.clone(),
            only: self.only.clone(),
            skip: self.skip.clone(),
            until_decided: self.until_decided,
            strict: self.strict,
            datasets: self.datasets.clone(),
            ..Invocation::default()
        }
    }
}
