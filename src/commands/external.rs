//! Subcommands that are programs of their own: `ulplab NAME` starts `ulplab-NAME`.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use crate::itself;
use ulplab_core::error::{Error, Exit, Result};

/// Query stored runs in SQL, and print a table, CSV, JSON or Parquet. Starts `ulplab-query`, a package of its own.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub struct QueryArgs {
    /// Arguments of `ulplab-query`; `ulplab query --help` lists them.
    #[arg(value_name = "ARG", trailing_var_arg = true, allow_hyphen_values = true)]
    pub words: Vec<OsString>,
}

/// Starts `ulplab-query`.
///
/// # Errors
/// Returns an error if `ulplab-query` is not installed or cannot be started.
pub fn query(args: &QueryArgs) -> Result<Exit> {
    start("query", &args.words)?;
    Err(Error::Setup(
        "ulplab-query is neither next to ulplab nor in PATH; `cargo install --locked --path query` installs it from the sources of ulplab"
            .into(),
    ))
}

/// Replaces this process by the program of a subcommand: the program next to `ulplab`, or else the one in PATH. Returns `Ok` only
/// if no such program exists.
///
/// # Errors
/// Returns an error if the program cannot be started.
pub fn start(name: &str, words: &[OsString]) -> Result<()> {
    let program = format!("ulplab-{name}");
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
    if !name.chars().all(plain) {
        return Ok(());
    }
    let start = itself::start();
    let near = [start.file.as_ref(), start.python.as_ref()].into_iter().flatten();
    let near = near.filter_map(|file| Some(file.parent()?.join(&program)));
    let own = { near }.find(|file| file.is_file());
    let in_path = own.is_none();
    let found = own.unwrap_or_else(|| PathBuf::from(&program));
    let refused = Command::new(&found).args(words).exec();
    match refused.kind() {
        ErrorKind::NotFound => Ok(()),
        // These errors mean that an entry of PATH is a file, or a folder without search permission: the program counts as
        // missing.
        ErrorKind::NotADirectory | ErrorKind::PermissionDenied if in_path => Ok(()),
        _ => Err(Error::io(found, "start")(refused)),
    }
}
