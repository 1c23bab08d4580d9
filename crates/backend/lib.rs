//! Computes the outputs of a candidate (a number format or a kernel): by rounding on the CPU, by CUDA kernels, or by other
//! programs.

#[macro_use]
extern crate ulplab_run;

pub mod compositions;
pub mod cuda;
pub mod program;
pub mod recipe;
pub mod rounding;
pub mod stand_in;
