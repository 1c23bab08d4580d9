//! What `ulplab kernels` asks of a run, besides what any run may be asked.

use std::path::PathBuf;

/// The subcommand and its own options.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Whether an experiment of another kind is refused.
    pub alone: bool,
    pub device: OnDevice,
    /// Whether only the cases that are timed are run, and only a gate that fails is a failure.
    pub timed: bool,
    /// The fault to plant, as `op.mutant`.
    pub mutant: Option<String>,
    /// Whether every fault is planted after the run.
    pub mutants: bool,
    /// Folder that attestations are written to.
    pub attest: Option<PathBuf>,
    /// Folder that what fails is kept in.
    pub keep_failed: Option<PathBuf>,
    /// File of the times of others.
    pub peers: Option<PathBuf>,
}

/// Where kernels are run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum OnDevice {
    /// Run on the GPU.
    #[default]
    Cuda,
    /// Compile only; run nothing.
    Compile,
}
