//! The options of `ulplab sweep`.

use std::path::PathBuf;

use super::invocation::Invocation;
use super::limits::Bytes;
use super::plan::Partition;

/// Run an experiment: plan, measure, gate, report.
#[derive(Debug, Default, clap::Args)]
pub struct SweepArgs {
    /// The experiment file.
    pub experiment: PathBuf,
    /// Override a key of the experiment, e.g. --set tokens=128, --set 'kernels=["rope.*"]' or --set 'gate=[]'. This asks
    /// another question, which can pass; a selection of cells cannot.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub overrides: Vec<String>,
    /// Take the gates from this file in place of the experiment's own: an experiment, or [[gate]] alone.
    #[arg(long, value_name = "FILE")]
    pub rules: Option<PathBuf>,
    /// Only cells whose id (recipe/phase/window) matches. A run with cells left out is at best PARTLY JUDGED, exit code 4.
    #[arg(long, value_name = "GLOB")]
    pub only: Vec<String>,
    /// No cells whose id matches. As with --only, such a run is at best PARTLY JUDGED.
    #[arg(long, value_name = "GLOB")]
    pub skip: Vec<String>,
    /// Seed of every random draw; the experiment's own if not given.
    #[arg(long)]
    pub seed: Option<u64>,
    /// Folder of the run [default: runs/<name>/<time>].
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Go on with an unfinished run: the one in --out, or the newest of this experiment.
    #[arg(long)]
    pub resume: bool,
    /// Run only every N-th cell from the M-th on; the partitions share one --out. Whichever finds all cells there judges
    /// the run; the others end with exit code 0 when their share is done, so judge by `ulplab gate` in the end.
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
    /// No progress bar.
    #[arg(long)]
    pub no_progress: bool,
    /// Of kernels: run them on a GPU, or only compile them and hold them against their attestations. Without a GPU `cuda`
    /// compiles them too, and ends with exit code 4: nothing was run.
    #[arg(long, value_enum, default_value = "cuda")]
    pub device: OnDevice,
    /// Of kernels: only cases whose time is taken, and a table of the times.
    #[arg(long)]
    pub timed: bool,
    /// Of kernels: plant the fault of that name, e.g. rope.cos_sin_swapped.
    #[arg(long, value_name = "OP.MUTANT")]
    pub mutant: Option<String>,
    /// Of kernels: then plant every fault and tell which check notices it; exit code 100 if one goes unnoticed. Without a
    /// GPU, only compile them.
    #[arg(long, conflicts_with = "mutant")]
    pub mutants: bool,
    /// Of kernels: write what the run showed of those that pass to <DIR>/<device>/kernels.json.
    #[arg(long, value_name = "DIR", conflicts_with = "mutant")]
    pub attest: Option<PathBuf>,
    /// Of kernels and programs: keep inputs, outputs, what was wanted and how far off it may be of each cell that fails, as
    /// DIR/<recipe>.<case>.safetensors of at most 64 MiB.
    #[arg(long, value_name = "DIR")]
    pub keep_failed: Option<PathBuf>,
    /// Of kernels: set times of other people's code on the same cases beside, as experiments/peers/kernels.py writes them.
    #[arg(long, value_name = "FILE")]
    pub peers: Option<PathBuf>,
    /// Folder of the data sets [default: $ULPLAB_DATASETS, or datasets/ here or in a folder above].
    #[arg(long, value_name = "DIR")]
    pub datasets: Option<PathBuf>,
    /// Whether this is a bench: it judges no whole, and only a gate that fails is a failure.
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
    /// Nowhere.
    Compile,
}
