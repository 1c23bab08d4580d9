//! Answers of git about a folder.

use std::path::Path;
use std::process::Command;

/// The output of a git command in a folder; `None` if there is no git, or the command fails there.
pub fn git(folder: &Path, args: &[&str]) -> Option<String> {
    let mut command = Command::new("git");
    command.args(["--no-optional-locks", "-C"]).arg(folder).args(args);
    let output = command.output().ok()?;
    let text = || String::from_utf8_lossy(&output.stdout).trim().to_string();
    output.status.success().then(text)
}
