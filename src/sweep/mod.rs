//! Experiment files, and running them.

pub mod command;
pub mod execute;
pub mod experiment;
pub mod folder;
pub mod judge;
pub mod lines;
pub mod load;
pub mod plan;
pub mod probe;
pub mod run;
pub mod store;
pub mod summary;
