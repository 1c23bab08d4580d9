//! Runs the program `ulplab` in the Python process, like an executable.

use std::ffi::OsString;
use std::path::PathBuf;

use pyo3::prelude::*;
use ulplab::itself::{self, Start};

/// Runs the program with these arguments and returns its exit code. From here on the program owns the process: it handles signals
/// and standard output, and may end the process. `program` is the command that starts the program again, `file` the path of this
/// module.
#[pyfunction]
pub fn main(py: Python<'_>, program: Vec<OsString>, words: Vec<OsString>, file: PathBuf) -> u8 {
    let start = Start {
        python: program.first().map(PathBuf::from),
        program,
        words,
        file: Some(file),
    };
    py.detach(|| {
        itself::started(start);
        ulplab::cli::main() as u8
    })
}
