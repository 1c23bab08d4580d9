//! Experiment files, and running them.

pub mod experiment;
pub mod run;
pub mod store;
pub mod summary;
