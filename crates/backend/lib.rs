//! Sources of a candidate's numbers: roundings on the CPU, CUDA kernels, other programs.

#[macro_use]
extern crate ulplab_run;

pub mod compositions;
pub mod cuda;
pub mod program;
pub mod recipe;
pub mod rounding;
pub mod stand_in;
