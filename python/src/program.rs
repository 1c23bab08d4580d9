//! The program `ulplab`, which Python starts as an executable would be.

use std::ffi::OsString;
use std::path::PathBuf;

use pyo3::prelude::*;
use ulplab::itself::{self, Start};

/// Runs the program with these words and returns its exit code. The process is the program's from here on: it takes signals and
/// standard output, and may end at any time. `program` starts it again, `file` is where this module is.
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
