//! Experiments as data, stored runs, statistics, gates (pass/fail checks), and the output functions of every command.

#[macro_use]
pub mod output;

pub mod dataset;
pub mod entries;
pub mod experiment;
pub mod gate;
pub mod itself;
pub mod json;
pub mod progress;
pub mod run;
pub mod shipped;
pub mod signal;
pub mod statistics;
