//! Writing files so that a reader sees the old file or the new one, never a piece.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::{Error, Result};

/// Has `write` fill a temporary file in the folder of `path`, brings it to disk, and renames it to `path`.
///
/// On any failure (full disk, unwritable folder, an error from `write`) the temporary file is removed, what was at
/// `path` stays as it was, and the error names `path`.
pub fn write_atomic(path: &Path, write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) -> Result<()> {
    let temporary = Temporary(beside(path)?);
    let file = File::create(&temporary.0).map_err(Error::io(path, "create"))?;
    let mut writer = BufWriter::new(file);
    write(&mut writer)
        .and_then(|()| writer.flush())
        .and_then(|()| writer.get_ref().sync_all())
        .map_err(Error::io(path, "write"))?;
    drop(writer);
    fs::rename(&temporary.0, path).map_err(Error::io(path, "rename into place"))?;
    sync_folder(path)
}

/// `write_atomic` of a whole text.
pub fn write_text(path: &Path, text: &str) -> Result<()> {
    write_atomic(path, |writer| writer.write_all(text.as_bytes()))
}

/// Removed when dropped, unless renamed by then.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        // After the rename there is nothing left to remove; before it, the write's own error is the one to tell.
        let _ = fs::remove_file(&self.0);
    }
}

/// A hidden name in the same folder (a rename does not cross file systems), of this process alone.
fn beside(path: &Path) -> Result<PathBuf> {
    let name = path
        .file_name()
        .ok_or_else(|| Error::Usage(format!("{}: not a file name", path.display())))?;
    let mut hidden = std::ffi::OsString::from(".");
    hidden.push(name);
    hidden.push(format!(".{}.tmp", std::process::id()));
    Ok(path.with_file_name(hidden))
}

/// The rename itself is on disk only once the folder is.
#[cfg(unix)]
fn sync_folder(path: &Path) -> Result<()> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    File::open(folder)
        .and_then(|folder| folder.sync_all())
        .map_err(Error::io(path, "sync its folder"))
}

#[cfg(not(unix))]
fn sync_folder(_: &Path) -> Result<()> {
    Ok(())
}
