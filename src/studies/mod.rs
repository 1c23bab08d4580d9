//! Kinds of experiments. To add a kind, add a folder here with a [`Study`], and a line in [`STUDIES`].

pub mod inputs;
pub mod kernels;
pub mod limits;
pub mod measure;
pub mod model;
pub mod null;
mod parse;
pub mod processes;
pub mod recall;
pub mod recurrence;
pub mod round_trip;
mod schema;
mod show;
mod sources;
mod study;
pub mod swap_ffn;

pub use parse::{ParsedExperiment, parse, read, read_as};
pub use schema::schema;
pub use study::{Bench, Keys, Kind, Lab, Measured, Planned, ReadyRecipes, Share, Study, Text, check_among};

/// All kinds of experiments.
pub const STUDIES: &[Kind] = &[
    Kind::new::<model::ModelStudy>("model"),
    Kind::new::<round_trip::RoundTripStudy>("round_trip"),
    Kind::new::<recall::RecallStudy>("recall"),
    Kind::new::<recurrence::RecurrenceStudy>("recurrence"),
    Kind::new::<swap_ffn::SwapFfnStudy>("swap_ffn"),
    Kind::new::<kernels::KernelStudy>("kernels"),
];
