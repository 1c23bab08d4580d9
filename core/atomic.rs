//! Writing files so that a reader sees either the old file or the new one, never a part.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};

use tempfile::TempPath;

use crate::{Error, Result};

/// Suffix of temporary files, whose names start with a dot.
const ENDING: &str = ".tmp";

/// Lets `write` fill a temporary file in the folder of `path`, syncs it to disk, and renames it to `path`.
///
/// The temporary file is unique: writers in other threads, processes and containers have their own. If two write to the
/// same path, the later one wins, whole. On any failure (full disk, read-only folder, an error from `write`) the temporary
/// file is removed, the file at `path` is unchanged, and the error names `path`.
pub fn write_atomic(path: &Path, write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) -> Result<()> {
    rename(filled(path, write)?, path)
}

/// [`write_atomic`] for a text.
pub fn write_text(path: &Path, text: &str) -> Result<()> {
    write_atomic(path, |writer| writer.write_all(text.as_bytes()))
}

/// Finds out whether a file can be written, before the work whose answer it is to hold. Nothing is at `path` that was not before.
///
/// # Errors
/// Those of [`write_atomic`], and a folder at `path`.
pub fn check_writable(path: &Path) -> Result<()> {
    if path.is_dir() {
        return Err(Error::data(path, "is a folder, expected a file to write"));
    }
    filled(path, |_| Ok(())).map(drop)
}

/// Like [`write_atomic`], but only if nothing is at `path` yet: of all concurrent callers, one gets `true`.
///
/// Some file systems (on object stores) have neither an exclusive rename nor hard links. There, several callers within the
/// same instant may get `true`; the last of their files remains, whole.
pub fn create_atomic(path: &Path, write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) -> Result<bool> {
    match filled(path, write)?.persist_noclobber(path) {
        Ok(_) => sync_folder(path)?,
        Err(refused) if refused.error.kind() == ErrorKind::AlreadyExists || path.exists() => return Ok(false),
        Err(refused) => rename(refused.path, path)?,
    }
    Ok(true)
}

/// Whether a file of this name is a temporary file, of a writer that is running or was killed.
pub fn is_temporary(name: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    name.starts_with(b".") && name.ends_with(ENDING.as_bytes())
}

/// A temporary file beside `path` (a rename cannot cross file systems) with all its bytes on disk.
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

/// The rename is durable only after the folder is synced.
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
