//! ulplab: is this kernel, or this cheaper number format, still right?
//!
//! Data flows one way: an [`experiment::Experiment`] is planned into cells, each cell runs a path with some numerics and
//! yields [`record::Record`]s, gates turn records into verdicts, reports show both. See `docs/design.md`.

#![deny(clippy::print_stdout, clippy::print_stderr)]

#[macro_use]
pub mod output;

pub mod backend;
pub mod cli;
pub mod commands;
pub mod dataset;
pub mod experiment;
pub mod gate;
pub mod git;
pub mod itself;
pub mod json;
pub mod judgement;
pub mod progress;
pub mod report;
pub mod run;
pub mod shipped;
pub mod signal;
pub mod sources;
pub mod statistics;
pub mod studies;

pub use ulplab_core::{
    atomic, error, formats, input, layouts, metrics, ops, packed, parity, pattern, random, record, tensorfile, text,
};

pub use error::{Error, Exit, Result};
