//! Writing files so that a reader sees the old file or the new one, never a piece.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};

use tempfile::TempPath;

use crate::{Error, Result};

/// Ending of the temporary files; a dot is their first letter.
const ENDING: &str = ".tmp";

/// Has `write` fill a temporary file in the folder of `path`, brings it to disk, and renames it to `path`.
///
/// The temporary file belongs to this call alone: writers in other threads, processes and containers have their own, so
/// that of two who write one path the later wins, whole. On any failure (full disk, unwritable folder, an error from
/// `write`) it is removed, what was at `path` stays as it was, and the error names `path`.
pub fn write_atomic(path: &Path, write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) -> Result<()> {
    rename(filled(path, write)?, path)
}

/// `write_atomic` of a whole text.
pub fn write_text(path: &Path, text: &str) -> Result<()> {
    write_atomic(path, |writer| writer.write_all(text.as_bytes()))
}

/// As [`write_atomic`], but only if nothing is at `path` yet: of all who do this at once, one is told `true`.
///
/// A file system that has neither a rename that replaces nothing nor hard links (some that keep files in an object store)
/// may tell `true` to several who come within the same instant; the last of their files stays, whole.
pub fn create_atomic(path: &Path, write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) -> Result<bool> {
    match filled(path, write)?.persist_noclobber(path) {
        Ok(_) => sync_folder(path)?,
        Err(refused) if refused.error.kind() == ErrorKind::AlreadyExists || path.exists() => return Ok(false),
        Err(refused) => rename(refused.path, path)?,
    }
    Ok(true)
}

/// Whether a file of this name is a temporary one, of a writer that is at work or was killed.
pub fn is_temporary(name: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    name.starts_with(b".") && name.ends_with(ENDING.as_bytes())
}

/// A temporary file beside `path` (a rename does not cross file systems) with all its bytes on disk.
fn filled(path: &Path, write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) -> Result<TempPath> {
    let name = path
        .file_name()
        .ok_or_else(|| Error::Usage(format!("{}: not a file name", path.display())))?;
    let mut prefix = OsString::from(".");
    prefix.push(name);
    prefix.push(".");
    let mut builder = tempfile::Builder::new();
    builder.prefix(&prefix).suffix(ENDING).rand_bytes(12);
    let temporary = builder
        .make_in(folder_of(path), |path| File::create_new(path))
        .map_err(Error::io(path, "create"))?;
    let (file, temporary) = temporary.into_parts();
    let mut writer = BufWriter::new(file);
    write(&mut writer)
        .and_then(|()| writer.flush())
        .and_then(|()| writer.get_ref().sync_all())
        .map_err(Error::io(path, "write"))?;
    Ok(temporary)
}

fn rename(temporary: TempPath, path: &Path) -> Result<()> {
    let renamed = temporary.persist(path).map_err(|refused| refused.error);
    renamed.map_err(Error::io(path, "rename into place"))?;
    sync_folder(path)
}

fn folder_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_path_buf(),
        _ => PathBuf::from("."),
    }
}

/// The rename itself is on disk only once the folder is.
#[cfg(unix)]
fn sync_folder(path: &Path) -> Result<()> {
    File::open(folder_of(path))
        .and_then(|folder| folder.sync_all())
        .map_err(Error::io(path, "sync its folder"))
}

#[cfg(not(unix))]
fn sync_folder(_: &Path) -> Result<()> {
    Ok(())
}
