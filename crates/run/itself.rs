//! This process: its command line, the command that starts the program again, and the location of its file.
//!
//! The program is an executable or a Python module. Only this file distinguishes the two.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use ulplab_core::error::{Error, Result};

/// Returns the output of a git command in a folder; `None` if git is missing, or the command fails.
pub fn git(folder: &Path, args: &[&str]) -> Option<String> {
    let mut command = Command::new("git");
    command.args(["--no-optional-locks", "-C"]).arg(folder).args(args);
    let output = command.output().ok()?;
    let text = || String::from_utf8_lossy(&output.stdout).trim().to_string();
    output.status.success().then(text)
}

/// Returns the commit of the working tree that contains a folder, followed by `+` if there are uncommitted changes.
pub fn commit_of(folder: &Path) -> Option<String> {
    let head = git(folder, &["rev-parse", "HEAD"])?;
    let changed = git(folder, &["status", "--porcelain", "--untracked-files=no"])?;
    Some(if changed.is_empty() { head } else { head + "+" })
}

/// Returns the name of the widest SIMD instruction set of this machine.
pub fn vectors() -> &'static str {
    #[cfg(target_arch = "x86_64")]
    let found = match () {
        () if is_x86_feature_detected!("avx512f") => "AVX-512",
        () if is_x86_feature_detected!("avx2") => "AVX2",
        () => "SSE2",
    };
    #[cfg(target_arch = "aarch64")]
    let found = "NEON";
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let found = "unknown";
    found
}

/// Command line and program of this process.
#[derive(Debug)]
pub struct Start {
    /// Command that starts the program again, without its arguments: an executable, or a Python interpreter with its options.
    /// Empty if unknown.
    pub program: Vec<OsString>,
    /// Arguments of the command line, without the program.
    pub words: Vec<OsString>,
    /// File that contains the program; shipped files are near it.
    pub file: Option<PathBuf>,
    /// Python interpreter that runs the program; `None` for an executable.
    pub python: Option<PathBuf>,
}

impl Start {
    /// Returns the command line of this process, if it is the native executable and not started by Python.
    pub fn executable() -> Self {
        let file = std::env::current_exe().ok();
        Self {
            program: file.iter().map(|file| file.as_os_str().to_owned()).collect(),
            words: std::env::args_os().skip(1).collect(),
            file,
            python: None,
        }
    }
}

static START: OnceLock<Start> = OnceLock::new();

/// Stores the command line and program of this process, for [`start`]. Call this function at most once, before the first call of
/// [`start`]. Without this call, [`start`] takes the process for an executable.
pub fn started(start: Start) {
    START.set(start).expect("a process is started once");
}

/// Returns the command line and program of this process.
pub fn start() -> &'static Start {
    START.get_or_init(Start::executable)
}

/// Returns the command that starts this program again, without arguments.
///
/// # Errors
/// Returns an error if the command is not known.
pub fn program() -> Result<&'static [OsString]> {
    let program = &start().program;
    match program.is_empty() {
        true => Err(Error::Setup(
            "this program is not found: it cannot start itself again".into(),
        )),
        false => Ok(program),
    }
}

/// Returns a [`Command`] that starts this program again. The caller adds arguments.
///
/// # Errors
/// Returns an error if [`program`] fails.
pub fn command() -> Result<Command> {
    let program = program()?;
    let mut command = Command::new(&program[0]);
    command.args(&program[1..]);
    Ok(command)
}
