//! Writing files so that a reader sees either the old file or the new one, never a part.

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
/// The mistake of a folder in the place of a file to write.
pub const IS_FOLDER: &str = "is a folder; expected the name of a file to write";

/// Temporary files that are being written.
static OPEN: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// A temporary file with all its bytes on disk. Its lock tells other processes that it is still wanted.
struct Temporary {
    path: TempPath,
    _locked: File,
}

/// Removes the temporary files that are being written, before the process ends without finishing them.
pub fn abandon() {
    let open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    open.iter().for_each(|path| drop(std::fs::remove_file(path)));
}

/// Removes the temporary files for `path` that killed processes left: those that nobody has locked. On file systems without
/// locks they stay.
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

/// `.NAME.`, with which the temporary files of a file begin.
fn prefix(path: &Path) -> Option<OsString> {
    let mut prefix = OsString::from(".");
    prefix.push(path.file_name()?);
    prefix.push(".");
    Some(prefix)
}

/// Lets `write` fill a temporary file in the folder of `path`, syncs it to disk, and renames it to `path`.
///
/// The temporary file is unique: writers in other threads, processes and containers have their own. If two write to the
/// same path, the later one wins, whole. On any failure (full disk, read-only folder, an error from `write`) the temporary
/// file is removed, the file at `path` is unchanged, and the error names `path`.
pub fn write_atomic(path: &Path, write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) -> Result<()> {
    let temporary = filled(path, write)?;
    forget(&temporary.path);
    persist(temporary.path, path)
}

/// [`write_atomic`] for a text.
pub fn write_text(path: &Path, text: &str) -> Result<()> {
    write_atomic(path, |writer| writer.write_all(text.as_bytes()))
}

/// Finds out whether a file can be written, before the work whose answer it is to hold. Nothing is at `path` that was not before.
///
/// # Errors
/// If [`write_atomic`] fails.
pub fn check_writable(path: &Path) -> Result<()> {
    tidy(path);
    filled(path, |_| Ok(())).map(|empty| forget(&empty.path))
}

/// Like [`write_atomic`], but only if nothing is at `path` yet: of all concurrent callers, one gets `true`.
///
/// Some file systems (on object stores) have neither an exclusive rename nor hard links. There, several callers within the
/// same instant may get `true`; the last of their files remains, whole.
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

/// True if a file of this name is a temporary file, of a writer that is running or was killed.
pub fn is_temporary(name: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    name.starts_with(b".") && name.ends_with(ENDING.as_bytes())
}

/// A temporary file next to `path` (a rename cannot cross file systems) with all its bytes on disk.
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
    // Without locks, `tidy` leaves the file if this process is killed.
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

/// No signal removes the file any more.
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

/// The rename is durable only after the folder is synced.
fn sync_folder(path: &Path) -> Result<()> {
    File::open(folder_of(path))
        .and_then(|folder| folder.sync_all())
        .map_err(Error::io(path, "sync its folder"))
}
