//! Options of `ulplab kernels` in addition to those of any run.

use std::path::PathBuf;

/// The subcommand and its own options.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Whether experiments of other kinds are refused.
    pub alone: bool,
    pub device: OnDevice,
    /// Whether only the timed cases are run, and only a failed gate is a failure.
    pub timed: bool,
    /// The fault to plant, as `op.mutant`.
    pub mutant: Option<String>,
    /// Whether every fault is planted after the run.
    pub mutants: bool,
    /// Folder to write attestations to.
    pub attest: Option<PathBuf>,
    /// Folder for the inputs and outputs of failed cells.
    pub keep_failed: Option<PathBuf>,
    /// File with the times of peers.
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
