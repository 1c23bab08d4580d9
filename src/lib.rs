//! ulplab: is this kernel, or this cheaper number format, still right?
//!
//! Data flows one way: an [`sweep::experiment::Experiment`] is planned into cells, each cell runs a path with some
//! numerics and yields [`record::Record`]s, gates turn records into verdicts, reports show both. See `docs/design.md`.

#![deny(clippy::print_stdout, clippy::print_stderr)]
// A judgement is attested token by token: what judges is not rewritten for its looks until it is verified on a GPU again.
#![allow(clippy::manual_is_multiple_of)]

#[macro_use]
pub mod output;

pub mod atomic;
pub mod backend;
pub mod bench;
pub mod cli;
pub mod compare;
pub mod dataset;
pub mod describe;
pub mod diff;
pub mod dump;
pub mod error;
pub mod formats;
pub mod gate;
pub mod generate;
pub mod input;
pub mod inspect;
pub mod integrate;
pub mod inventory;
pub mod json;
pub mod kernels;
pub mod layouts;
pub mod metrics;
pub mod packed;
pub mod parity;
pub mod pattern;
pub mod progress;
pub mod quantize;
pub mod record;
pub mod report;
pub mod shipped;
pub mod sweep;
pub mod tensorfile;
pub mod trace;
pub mod verify;

pub use error::{Error, Exit, Result};
