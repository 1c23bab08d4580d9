//! Experiment files, and running them.

pub mod attest;
pub mod check;
pub mod command;
pub mod commands;
mod compile;
pub mod execute;
pub mod experiment;
pub mod folder;
pub mod judge;
pub mod kernels;
pub mod lines;
pub mod load;
pub mod mutants;
pub mod peers;
pub mod plan;
pub mod probe;
pub mod ready;
pub mod recall;
pub mod recurrence;
pub mod round_trip;
pub mod run;
pub mod source;
pub mod stand_in;
pub mod store;
pub mod summary;
pub mod swap_ffn;
