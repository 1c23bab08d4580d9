//! The program's parts, without its command line. One binary, as every binary links all that the program is made of.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "what was measured is shown with --nocapture"
)]

#[path = "cuda.rs"]
mod cuda;
#[path = "dataset.rs"]
mod dataset;
#[path = "fuzz.rs"]
mod fuzz;
#[path = "language.rs"]
mod language;
#[path = "layout.rs"]
mod layout;
#[path = "mutants.rs"]
mod mutants;
#[path = "report.rs"]
mod report;
#[path = "resumed.rs"]
mod resumed;
#[path = "rounding.rs"]
mod rounding;
#[path = "run.rs"]
mod run;
#[path = "sources.rs"]
mod sources;
#[path = "statistics.rs"]
mod statistics;
#[path = "studies.rs"]
mod studies;
#[path = "swap_ffn.rs"]
mod swap_ffn;
#[path = "whole_steps.rs"]
mod whole_steps;
