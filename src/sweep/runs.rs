//! Where runs are kept that are given no folder: `runs/<name>/<time>`.

use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

use super::folder::RUN;

/// Folder of the runs of an experiment.
pub fn of(experiment: &str) -> PathBuf {
    Path::new("runs").join(experiment)
}

/// The path itself, or the first of `path-2`, `path-3` … that is not taken: two runs may start in the same second.
pub fn unused(path: &Path) -> PathBuf {
    let numbered = (2..).map(|number| PathBuf::from(format!("{}-{number}", path.display())));
    std::iter::once(path.to_path_buf())
        .chain(numbered)
        .find(|path| !path.exists())
        .unwrap_or_default()
}

/// Runs are named by their time, so the newest is the last.
pub fn newest(home: &Path) -> Result<PathBuf> {
    let nothing = || Error::Usage(format!("{}: no run to resume", home.display()));
    let entries = std::fs::read_dir(home).map_err(|_| nothing())?;
    entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.join(RUN).is_file())
        .max()
        .ok_or_else(nothing)
}
