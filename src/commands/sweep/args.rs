//! The options of `ulplab sweep`.

use std::path::PathBuf;

use crate::run::invocation::Invocation;
use crate::run::plan::Partition;
use crate::studies::limits::Bytes;

/// Run an experiment: plan, measure, gate, report.
#[derive(Debug, Default, clap::Args)]
pub struct SweepArgs {
    /// The experiment file.
    pub experiment: PathBuf,
    /// Override a key of the experiment, e.g. --set tokens=128, --set 'kernels=["rope.*"]' or --set 'gate=[]'. The changed
    /// experiment can still PASS; a run limited by --only or --skip cannot.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub overrides: Vec<String>,
    /// Take the gates from this file in place of the experiment's own: an experiment, or [[gate]] alone.
    #[arg(long, value_name = "FILE")]
    pub rules: Option<PathBuf>,
    /// Run only cells whose id (recipe/phase/window) matches. A run with cells left out is at best PARTLY JUDGED, exit code 4.
    #[arg(long, value_name = "GLOB")]
    pub only: Vec<String>,
    /// Leave out cells whose id matches. As with --only, such a run is at best PARTLY JUDGED.
    #[arg(long, value_name = "GLOB")]
    pub skip: Vec<String>,
    /// Seed of every random draw [default: the experiment's own].
    #[arg(long)]
    pub seed: Option<u64>,
    /// Folder of the run [default: runs/<name>/<time>].
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Go on with an unfinished run: the one in --out, or the newest of this experiment.
    #[arg(long)]
    pub resume: bool,
    /// Run only every N-th cell from the M-th on; the partitions share one --out. The partition that finishes last
    /// judges the run; the others exit with 0 when their share is done, so run `ulplab gate` in the end.
    #[arg(long, value_name = "slice:M/N")]
    pub partition: Option<Partition>,
    /// Print the cells of the plan, one per line, and run none.
    #[arg(long)]
    pub dry_run: bool,
    /// Print verdicts as JSON Lines on stdout in place of the table.
    #[arg(long)]
    pub json: bool,
    /// Refuse a run that needs more memory, e.g. 16G [default: what is free on the machine].
    #[arg(long, value_name = "SIZE")]
    pub max_memory: Option<Bytes>,
    /// Show no progress bar.
    #[arg(long)]
    pub no_progress: bool,
    /// For kernels: run them on a GPU, or only compile them and check them against their attestations. Without a GPU,
    /// `cuda` only compiles and exits with 4.
    #[arg(long, value_enum, default_value = "cuda")]
    pub device: OnDevice,
    /// For kernels: run only the cases that are timed, and show a table of the times.
    #[arg(long)]
    pub timed: bool,
    /// For kernels: plant the fault of that name, e.g. rope.cos_sin_swapped.
    #[arg(long, value_name = "OP.MUTANT")]
    pub mutant: Option<String>,
    /// For kernels: after the run, plant every fault in turn and report which check notices it; exit code 100 if one goes
    /// unnoticed. Without a GPU, the faults are only compiled.
    #[arg(long, conflicts_with = "mutant")]
    pub mutants: bool,
    /// For kernels: write attestations of the kernels that pass to <DIR>/<device>/kernels.json.
    #[arg(long, value_name = "DIR", conflicts_with = "mutant")]
    pub attest: Option<PathBuf>,
    /// For kernels and programs: keep the inputs, the outputs, the expected outputs and their tolerances of each cell that
    /// fails, as DIR/<recipe>.<case>.safetensors of at most 64 MiB.
    #[arg(long, value_name = "DIR")]
    pub keep_failed: Option<PathBuf>,
    /// For kernels: show times of other libraries on the same cases too, from a file of experiments/peers/kernels.py.
    #[arg(long, value_name = "FILE")]
    pub peers: Option<PathBuf>,
    /// Folder of the data sets [default: $ULPLAB_DATASETS, or datasets/ here or in a folder above].
    #[arg(long, value_name = "DIR")]
    pub datasets: Option<PathBuf>,
    /// Whether this is a bench: only a gate that fails is a failure.
    #[arg(skip)]
    pub bench: bool,
}

impl SweepArgs {
    /// Options that only experiments with kernels take, and whether they are given.
    pub(super) fn of_kernels(&self) -> impl Iterator<Item = (&'static str, bool)> {
        let options = [
            ("--device compile", self.device == OnDevice::Compile),
            ("--timed", self.timed),
            ("--mutant", self.mutant.is_some()),
            ("--mutants", self.mutants),
            ("--attest", self.attest.is_some()),
            ("--peers", self.peers.is_some()),
            ("--keep-failed", self.keep_failed.is_some()),
        ];
        options.into_iter()
    }

    /// What the run's folder keeps of them.
    pub fn invocation(&self) -> Invocation {
        Invocation {
            experiment: self.experiment.clone(),
            set: self.overrides.clone(),
            rules: self.rules.clone(),
            only: self.only.clone(),
            skip: self.skip.clone(),
            timed: self.timed,
            mutant: self.mutant.clone(),
            peers: self.peers.clone(),
            datasets: self.datasets.clone(),
        }
    }
}

/// Where kernels are run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum OnDevice {
    #[default]
    Cuda,
    /// Compile only; run nothing.
    Compile,
}
