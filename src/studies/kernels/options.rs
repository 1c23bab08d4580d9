//! Options of `ulplab kernels` in addition to those of any run.

use std::path::PathBuf;

/// The subcommand and its own options.
#[derive(Clone, Debug, Default)]
pub struct Options {
    pub device: OnDevice,
    /// Architectures to compile for if no kernel is run; all of [`ARCHITECTURES`](super::ARCHITECTURES) if it is empty.
    pub architectures: Vec<String>,
    /// True if only the timed cases are run, and only a failed gate is a failure.
    pub timed: bool,
    /// True if the variants called `simple` are left out of the cases that another variant takes.
    pub fast_only: bool,
    /// The fault to plant, as `op.mutant`.
    pub mutant: Option<String>,
    /// True if every fault is planted after the run.
    pub mutants: bool,
    /// Folder to write attestations to.
    pub attest: Option<PathBuf>,
    /// Folder for the inputs and outputs of failed cells.
    pub keep_failed: Option<PathBuf>,
    /// File with the times of peers.
    pub peers: Option<PathBuf>,
    /// The processes that share the run; none if it is not to be shared.
    pub workers: Option<Workers>,
}

/// The processes that share a run of kernels, and their GPUs. Their other options are those of the command line.
#[derive(Clone, Debug, Default)]
pub struct Workers {
    /// Processes on each GPU; chosen by the number of cores, if absent.
    pub jobs: Option<usize>,
    pub devices: Devices,
}

/// The GPUs that a run uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Devices {
    /// The first one.
    #[default]
    First,
    /// All that are visible.
    All,
    /// Listed devices, by their number among the visible ones.
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
