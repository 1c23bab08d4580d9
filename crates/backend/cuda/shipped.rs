//! Finds the kernel files that ulplab ships.

use std::path::{Path, PathBuf};

use super::{Compositions, Source as KernelFile};
use ulplab_core::error::{Error, Result};
use ulplab_operations::ops::Op;
use ulplab_run::shipped;

/// A file that identifies a kernel folder of ulplab: a user's project may have a different folder `kernels/`.
const MARK: &str = "kernels/lib/common.cuh";

/// Returns the kernel folder: `$ULPLAB_KERNELS`, or the first `kernels/` of ulplab in [`shipped::places`].
pub fn folder() -> Result<PathBuf> {
    if let Some(folder) = std::env::var_os("ULPLAB_KERNELS") {
        return Ok(folder.into());
    }
    let mark = shipped::find(MARK).ok_or_else(|| Error::Setup(format!("no {MARK} is found; set ULPLAB_KERNELS")))?;
    Ok(mark.ancestors().nth(2).map(Path::to_path_buf).unwrap_or_default())
}

/// Reads the kernel file of an operation. `compositions` has the compositions of the operation, if any.
pub fn file(op: &dyn Op, compositions: &[&Compositions]) -> Result<KernelFile> {
    KernelFile::read(&folder()?.join(format!("{}.cu", op.name())), compositions)
}
