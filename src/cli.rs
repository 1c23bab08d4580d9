//! The command line.

use std::process::ExitCode;

/// Runs the program and tells its exit code.
pub fn main() -> ExitCode {
    ExitCode::SUCCESS
}
