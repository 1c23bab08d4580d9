//! Places of the shipped kernels.

use std::path::{Path, PathBuf};

use super::{Compositions, Source as KernelFile};
use ulplab_core::error::{Error, Result};
use ulplab_operations::ops::Op;
use ulplab_run::shipped;

/// A file that every folder of ulplab's kernels has. A project of a user's may well have a folder `kernels/` of its own.
const MARK: &str = "kernels/lib/common.cuh";

/// Folder of the kernels: $ULPLAB_KERNELS, or the first `kernels/` of ulplab's in [`shipped::places`].
pub fn folder() -> Result<PathBuf> {
    if let Some(folder) = std::env::var_os("ULPLAB_KERNELS") {
        return Ok(folder.into());
    }
    let mark = shipped::find(MARK).ok_or_else(|| Error::Setup(format!("no {MARK} is found; set ULPLAB_KERNELS")))?;
    Ok(mark.ancestors().nth(2).map(Path::to_path_buf).unwrap_or_default())
}

/// The file of an operation's kernels; `compositions` has those of the operation, if there are such.
pub fn file(op: &dyn Op, compositions: &[&Compositions]) -> Result<KernelFile> {
    KernelFile::read(&folder()?.join(format!("{}.cu", op.name())), compositions)
}
