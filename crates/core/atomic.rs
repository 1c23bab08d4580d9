//! Atomic writes: a reader sees either the old file or the complete new one, never a part.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use tempfile::TempPath;

use crate::{Error, Result};

/// Suffix of temporary files, whose names start with a dot.
const ENDING: &str = ".tmp";
/// Error message for an output path that is a folder.
pub const IS_FOLDER: &str = "is a folder; expected the name of a file to write";

/// Temporary files that this process is writing; [`abandon`] removes them.
static OPEN: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// A temporary file with all its bytes on disk. Its file lock tells other processes that the writer is still running.
struct Temporary {
    path: TempPath,
    _locked: File,
}

/// Removes the temporary files that this process is writing, before the process ends early.
pub fn abandon() {
    let open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    open.iter().for_each(|path| drop(std::fs::remove_file(path)));
}

/// Removes the temporary files that killed processes left for `path`. A running writer holds a lock on its file, so that file is
/// not removed. On a file system without locks, no file is removed.
pub fn tidy(path: &Path) {
    let Some(prefix) = prefix(path) else { return };
    let entries = std::fs::read_dir(folder_of(path)).into_iter().flatten().flatten();
    let begins = |name: &OsStr| name.as_encoded_bytes().starts_with(prefix.as_encoded_bytes());
    for entry in entries.filter(|entry| is_temporary(&entry.file_name()) && begins(&entry.file_name())) {
        let file = File::options().write(true).open(entry.path());
        if file.is_ok_and(|file| file.metadata().is_ok_and(|known| known.is_file()) && file.try_lock().is_ok()) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Returns `.NAME.`, the prefix of the temporary files for the file NAME.
fn prefix(path: &Path) -> Option<OsString> {
    let mut prefix = OsString::from(".");
    prefix.push(path.file_name()?);
    prefix.push(".");
    Some(prefix)
}

/// Writes the file `path` atomically: `write` fills a temporary file in the same folder, which is synced to disk and renamed to
/// `path`.
///
/// The temporary file is unique: writers in other threads, processes and containers use other names. If two writers write to the
/// same path, the complete file of the later one remains. On any failure (full disk, read-only folder, an error from `write`) the
/// temporary file is removed, the file at `path` is unchanged, and the error names `path`.
pub fn write_atomic(path: &Path, write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) -> Result<()> {
    let temporary = filled(path, write)?;
    forget(&temporary.path);
    persist(temporary.path, path)
}

/// Writes a text with [`write_atomic`].
pub fn write_text(path: &Path, text: &str) -> Result<()> {
    write_atomic(path, |writer| writer.write_all(text.as_bytes()))
}

/// Checks that a file can be written, before the computation of its contents starts. The file at `path`, if any, stays as it is.
///
/// # Errors
/// Returns the errors of [`write_atomic`].
pub fn check_writable(path: &Path) -> Result<()> {
    tidy(path);
    filled(path, |_| Ok(())).map(|empty| forget(&empty.path))
}

/// Like [`write_atomic`], but only if no file is at `path` yet: of all concurrent callers, exactly one gets `true`.
///
/// Some file systems (on object stores) have neither an exclusive rename nor hard links. There, several callers may get `true` in
/// the same instant; the complete file of the last caller remains.
pub fn create_atomic(path: &Path, write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) -> Result<bool> {
    let temporary = filled(path, write)?;
    forget(&temporary.path);
    match temporary.path.persist_noclobber(path) {
        Ok(_) => sync_folder(path)?,
        Err(refused) if refused.error.kind() == ErrorKind::AlreadyExists || path.exists() => return Ok(false),
        Err(refused) => persist(refused.path, path)?,
    }
    Ok(true)
}

/// True if a file of this name is a temporary file. The process that writes the file may still be running.
pub fn is_temporary(name: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    name.starts_with(b".") && name.ends_with(ENDING.as_bytes())
}

/// Creates a temporary file, lets `write` fill it, and syncs it to disk. The file is in the folder of `path`, since a rename
/// cannot cross file systems.
fn filled(path: &Path, write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) -> Result<Temporary> {
    if path.is_dir() {
        return Err(Error::data(path, IS_FOLDER));
    }
    let prefix = prefix(path).ok_or_else(|| Error::Usage(format!("{}: not a file name", path.display())))?;
    let mut builder = tempfile::Builder::new();
    builder.prefix(&prefix).suffix(ENDING).rand_bytes(12);
    let temporary = builder
        .make_in(folder_of(path), |path| File::create_new(path))
        .map_err(Error::io(path, "create"))?;
    let (file, temporary) = temporary.into_parts();
    OPEN.lock()
        .unwrap_or_else(PoisonError::into_inner)
        .insert(temporary.to_path_buf());
    // A failed lock is ignored. Its only effect is that `tidy` does not remove the file after this process is killed.
    let _ = file.try_lock();
    let mut writer = BufWriter::new(file);
    let written = write(&mut writer)
        .and_then(|()| writer.flush())
        .and_then(|()| writer.get_ref().sync_all());
    match written {
        Ok(()) => Ok(Temporary {
            path: temporary,
            _locked: writer.into_parts().0,
        }),
        Err(why) => {
            forget(&temporary);
            Err(Error::io(path, "write")(why))
        }
    }
}

/// Unregisters a temporary file, so that [`abandon`] no longer removes it.
fn forget(temporary: &Path) {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner).remove(temporary);
}

fn persist(temporary: TempPath, path: &Path) -> Result<()> {
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

/// Syncs the folder of `path` to disk, which makes the rename durable.
fn sync_folder(path: &Path) -> Result<()> {
    File::open(folder_of(path))
        .and_then(|folder| folder.sync_all())
        .map_err(Error::io(path, "sync its folder"))
}
