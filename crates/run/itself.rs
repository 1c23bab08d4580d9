//! This program itself: the words that it was given, what starts it again, and where it is.
//!
//! The program is an executable, or lies in the Python module. All that depends on that is here.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use ulplab_core::error::{Error, Result};

/// The output of a git command in a folder; `None` if there is no git, or the command fails there.
pub fn git(folder: &Path, args: &[&str]) -> Option<String> {
    let mut command = Command::new("git");
    command.args(["--no-optional-locks", "-C"]).arg(folder).args(args);
    let output = command.output().ok()?;
    let text = || String::from_utf8_lossy(&output.stdout).trim().to_string();
    output.status.success().then(text)
}

/// The commit of the working tree that a folder is in, with `+` behind it if it has uncommitted changes.
pub fn commit_of(folder: &Path) -> Option<String> {
    let head = git(folder, &["rev-parse", "HEAD"])?;
    let changed = git(folder, &["status", "--porcelain", "--untracked-files=no"])?;
    Some(if changed.is_empty() { head } else { head + "+" })
}

/// The widest vectors that this machine computes with.
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

/// The start of this process.
#[derive(Debug)]
pub struct Start {
    /// The command that starts the program again, before its words: an executable, or a Python and what makes it this program. Empty if
    /// it is not known.
    pub program: Vec<OsString>,
    /// The words of the command line after the program.
    pub words: Vec<OsString>,
    /// The file that has the program; shipped files are near it.
    pub file: Option<PathBuf>,
    /// The Python that runs the program.
    pub python: Option<PathBuf>,
}

impl Start {
    /// The start of an executable.
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

/// Sets how this process was started, once, before anything reads it. The default is an executable.
pub fn started(start: Start) {
    START.set(start).expect("a process is started once");
}

/// The start of this process.
pub fn start() -> &'static Start {
    START.get_or_init(Start::executable)
}

/// The words that start this program again, before its own.
///
/// # Errors
/// If they are not known.
pub fn program() -> Result<&'static [OsString]> {
    let program = &start().program;
    match program.is_empty() {
        true => Err(Error::Setup(
            "this program is not found: it cannot start itself again".into(),
        )),
        false => Ok(program),
    }
}

/// Starts this program again, with words that are to be added.
///
/// # Errors
/// If [`program`] fails.
pub fn command() -> Result<Command> {
    let program = program()?;
    let mut command = Command::new(&program[0]);
    command.args(&program[1..]);
    Ok(command)
}
