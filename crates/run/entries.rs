//! Lists the entries of a folder.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use ulplab_core::error::{Error, Result};

/// Returns the paths in a folder, sorted by name; `action` completes the error message "cannot …".
pub fn entries(folder: &Path, action: &'static str) -> Result<Vec<PathBuf>> {
    let entries = folder.read_dir();
    let entries = entries.and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect());
    let mut paths: Vec<PathBuf> = entries.map_err(Error::io(folder, action))?;
    paths.sort();
    Ok(paths)
}

/// Returns the paths in a folder whose extension is one of `extensions`, sorted by name.
pub fn with_extension(folder: &Path, action: &'static str, extensions: &[&str]) -> Result<Vec<PathBuf>> {
    let mut paths = entries(folder, action)?;
    let has = |extension: &OsStr| extensions.iter().any(|own| extension == *own);
    paths.retain(|path| path.extension().is_some_and(has));
    Ok(paths)
}
