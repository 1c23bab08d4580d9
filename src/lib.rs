//! ulplab: is this kernel, or this cheaper number format, still right?
//!
//! Data flows one way: an [`experiment::Experiment`] is planned into cells, each cell runs one recipe on one window of data and
//! yields [`record::Record`]s, gates turn records into verdicts, and reports show records and verdicts. See `docs/design.md`.

#[macro_use]
extern crate ulplab_run;

pub mod cli;
pub mod commands;
pub mod judgement;
pub mod ops;
pub mod provenance;
pub mod sources;
pub mod studies;

pub use ulplab_backend as backend;
pub use ulplab_checkpoint::{checkpoint, packed, parity};
pub use ulplab_core::{atomic, error, formats, input, layouts, metrics, pattern, random, record, tensorfile, text};
pub use ulplab_report as report;
pub use ulplab_run::{
    dataset, entries, experiment, gate, itself, json, output, progress, run, shipped, signal, statistics,
};

pub use error::{Error, Exit, Result};
