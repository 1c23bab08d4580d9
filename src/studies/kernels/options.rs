//! Options of `ulplab kernels` in addition to the options of any run.

use std::path::PathBuf;

/// Options of the subcommand.
#[derive(Clone, Debug, Default)]
pub struct Options {
    pub device: OnDevice,
    /// Architectures to compile for if no kernel is run; if empty, all of [`ARCHITECTURES`](super::ARCHITECTURES).
    pub architectures: Vec<String>,
    /// True if only the timed cases are run. The run then passes even if some gates have no cases and so are not judged.
    pub timed: bool,
    /// True if the variant `simple` is skipped on cases that another variant supports.
    pub fast_only: bool,
    /// The fault to plant, as `op.mutant`, if any.
    pub mutant: Option<String>,
    /// True if every fault is planted after the run.
    pub mutants: bool,
    /// Folder to write attestations to.
    pub attest: Option<PathBuf>,
    /// Folder for the inputs and outputs of failed cells.
    pub keep_failed: Option<PathBuf>,
    /// File with the times of peers (other implementations).
    pub peers: Option<PathBuf>,
    /// Processes that share the run; `None` if this process runs all cells.
    pub workers: Option<Workers>,
}

/// The processes that share a run of kernels, and their GPUs. Each process also gets the other options of this command.
#[derive(Clone, Debug, clap::Args)]
pub struct Workers {
    /// Number of processes on each GPU. They divide the work by operation, because references on the CPU take most of the time.
    /// One process at a time measures times [default: half of the cores, at most 8; without a GPU 1].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub jobs: Option<u16>,
    /// The GPUs to use: all, or their numbers, such as 0,2 [default: the first].
    #[arg(long, value_name = "GPUS", default_value = "0", hide_default_value = true)]
    pub devices: Devices,
}

/// The GPUs that a run uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Devices {
    /// All visible GPUs.
    All,
    /// The GPUs with these indices among the visible ones.
    These(Vec<usize>),
}

impl std::str::FromStr for Devices {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "all" {
            return Ok(Self::All);
        }
        let numbers: Result<Vec<usize>, _> = text.split(',').map(|number| number.trim().parse()).collect();
        let mut numbers = numbers.map_err(|_| format!("'{text}': expected all, or numbers of GPUs such as 0,2"))?;
        numbers.sort_unstable();
        match numbers.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(format!("'{text}': GPU {} is named twice", pair[0])),
            None => Ok(Self::These(numbers)),
        }
    }
}

/// The place where kernels run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum OnDevice {
    /// Run on the GPU.
    #[default]
    Cuda,
    /// Compile only; run nothing.
    Compile,
}
