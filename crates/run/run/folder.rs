//! A run's folder: `run.json`, one file per finished cell (one recipe in one phase on one window), and files derived from them.
//!
//! The first process writes `run.json` once, and nobody changes it. A cell's file appears under its name only when it is
//! complete. Both files end with their own digest, and a cell names its run. So a killed run can be resumed, processes may share
//! a run, and damaged cells do not count.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::invocation::quoted;
use super::plan::Cell;
use super::store::SCHEMA;
use super::{Manifest, lines, runs, seal, session};
use ulplab_core::atomic::{create_atomic, is_temporary, write_atomic};
use ulplab_core::error::{Error, Result, did_you_mean, refuse};
use ulplab_core::input;
use ulplab_core::record::Record;

/// Name of the file with the manifest and plan of the run.
pub const RUN: &str = "run.json";
const CELLS: &str = "cells";
const SESSIONS: &str = "sessions";
/// Name of the folder for a job scheduler's script and logs, which exist before the run.
pub const JOBS: &str = "jobs";

/// Characters after the digest at the end of a cell's file.
const CLOSE_CELL: &str = "\"}\n";

/// Age after which a temporary file is removed. Its process must have been killed: writing a file takes less than a minute.
const STALE: Duration = Duration::from_secs(3600);

pub struct Folder {
    pub path: PathBuf,
    /// Fingerprint of the run in the folder.
    pub run: String,
}

/// The last line of a cell's file.
#[derive(Serialize, Deserialize)]
#[serde(tag = "type", rename = "end")]
struct End {
    cell: String,
    /// Fingerprint of the run that the cell belongs to.
    run: String,
    records: usize,
    /// Digest of all bytes before the digest.
    blake3: String,
}

impl Folder {
    /// Begins a run in a folder. If `join` is true and the folder has the same run, continues that run. Any number of processes
    /// may do so at once: one of them writes `run.json`. Returns the manifest that is stored.
    ///
    /// Ignores files of a process that was killed before it wrote `run.json`. Replaces another run that ended before anything was
    /// measured. Any other file in a folder without a run is an error.
    pub fn enter(path: &Path, manifest: &Manifest, join: bool) -> Result<(Self, Manifest)> {
        let file = path.join(RUN);
        if unbegun(path, manifest, join)? {
            remove_unbegun(path)?;
        }
        let obstacle = obstacle(path)?;
        if !file.is_file() {
            if let Some(name) = obstacle {
                let name = name.display();
                let message = format!("not empty, but without a run: it contains '{name}'; give another --out");
                return refused(path, message);
            }
            make_folders(path)?;
            let text = seal::json(manifest);
            if create_atomic(&file, |out| out.write_all(&text))? {
                return Self::open(path);
            }
        }
        if !join {
            let message = "not empty; give another --out, or --resume to continue the run in it";
            return refused(path, format!("{message}{}", removable(path)?));
        }
        let (folder, stored) = Self::open(path)?;
        if stored.fingerprint != manifest.fingerprint {
            let differences = stored.differences(manifest).join(", ");
            let message = format!("holds a run of {differences}; it cannot be continued");
            return refused(path, message + &removable(path)?);
        }
        // Make missing folders: a program that copied the run may have left out empty folders.
        make_folders(path)?;
        folder.tidy();
        Ok((folder, stored))
    }

    /// Opens the folder of an existing run. A damaged manifest is an error.
    pub fn open(path: &Path) -> Result<(Self, Manifest)> {
        let file = path.join(RUN);
        if path.is_file() {
            return refused(path, "is a file, expected the folder of a run".into());
        }
        if !path.exists() {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            // For a path of one name, such as `run`, the parent is the empty path: read `.` instead.
            let beside = |parent: &Path| names(&Path::new(".").join(parent)).ok();
            let others = path.parent().and_then(beside);
            let near = did_you_mean(&name, others.iter().flatten().filter_map(|name| name.to_str()));
            let message =
                "there is no such folder; expected the folder of a run, which `ulplab sweep` names in its last line";
            return refused(path, format!("{message}{near}"));
        }
        if path.is_dir() && !file.exists() {
            let newest = runs::newest(path);
            let newest = newest.map_or(String::new(), |run| format!("; its last run is {}", run.display()));
            return refused(path, format!("not a run: it has no {RUN}{newest}"));
        }
        let manifest = read_manifest(&input::bytes(&file)?);
        let mut manifest = manifest.map_err(|message| Error::data(&file, message))?;
        manifest.seconds = session::seconds(&path.join(SESSIONS));
        let (path, run) = (path.to_path_buf(), manifest.fingerprint.clone());
        Ok((Self { path, run }, manifest))
    }

    /// Returns the folder where each process that works on the run writes its session file.
    pub fn sessions(&self) -> PathBuf {
        self.path.join(SESSIONS)
    }

    pub fn write_cell(&self, cell: &Cell, records: &[Record]) -> Result<()> {
        let file = self.cell_file(&cell.id);
        let mut text = Vec::new();
        let end = End {
            cell: cell.id.clone(),
            run: self.run.clone(),
            records: records.len(),
            blake3: String::new(),
        };
        let written = lines::write(records, &mut text).and_then(|()| Ok(serde_json::to_writer(&mut text, &end)?));
        written.map_err(Error::io(&file, "write"))?;
        text.truncate(text.len() - CLOSE_CELL.trim_end().len());
        seal::seal(&mut text, CLOSE_CELL);
        write_atomic(&file, |out| out.write_all(&text))
    }

    /// True if a cell is finished: its file exists and is undamaged. Reports a damaged file and returns false, so that the cell
    /// runs again.
    pub fn finished(&self, id: &str) -> Result<bool> {
        if !self.has(id) {
            return Ok(false);
        }
        let read = self.read_cell(id);
        if let Err(damaged @ Error::Data { .. }) = read {
            errln!("{damaged}; the cell is run again");
            return Ok(false);
        }
        read.map(|_| true)
    }

    /// Returns the records of all cells in the order of the plan. A missing cell is an error: the run is incomplete. A damaged
    /// cell, or a cell of another run, is an error that names its file.
    pub fn records(&self, manifest: &Manifest) -> Result<Vec<Record>> {
        let missing = self.missing(manifest)?;
        if let Some(first) = missing.first() {
            let (missing, all, path) = (missing.len(), manifest.cells.len(), self.path.display());
            let message = format!("{path}: {missing} of {all} cells are missing, the first is '{first}'");
            return Err(Error::Incomplete(message));
        }
        let read: Vec<Result<Vec<Record>>> = manifest.cells.par_iter().map(|id| self.read_cell(id)).collect();
        // If several cells are wrong, report the first in the order of the plan.
        Ok(read.into_iter().collect::<Result<Vec<_>>>()?.concat())
    }

    /// Returns the ids of the planned cells without a file, in the order of the plan.
    pub fn missing<'a>(&self, manifest: &'a Manifest) -> Result<Vec<&'a str>> {
        let cells = self.path.join(CELLS);
        // Lists the folder once: over a network, this is much faster than a check of each file.
        let present = match names(&cells) {
            Ok(names) => names.into_iter().collect::<HashSet<OsString>>(),
            Err(error) if error.kind() == ErrorKind::NotFound => HashSet::new(),
            Err(error) => return Err(Error::io(&cells, "read")(error)),
        };
        let ids = manifest.cells.iter().map(String::as_str);
        Ok(ids.filter(|id| !present.contains(OsStr::new(&file_name(id)))).collect())
    }

    /// Returns an error if the folder of the cells contains a file that is not a cell of the run.
    pub fn check_cells(&self, manifest: &Manifest) -> Result<()> {
        let cells = self.path.join(CELLS);
        let known: HashSet<String> = manifest.cells.iter().map(|id| file_name(id)).collect();
        let strange = |name: &OsString| !is_temporary(name) && !name.to_str().is_some_and(|name| known.contains(name));
        let found = names(&cells).map_err(Error::io(&cells, "read"))?;
        let refused = |name| {
            Err(Error::data(
                cells.join(name),
                "no cell that the run in this folder plans",
            ))
        };
        found.into_iter().filter(strange).min().map_or(Ok(()), refused)
    }

    /// Copies a cell from another folder of the same run, byte for byte.
    pub fn take(&self, id: &str, other: &Self) -> Result<()> {
        copy(&other.cell_file(id), &self.cell_file(id))
    }

    /// Copies the session files from another folder of the same run.
    pub fn take_sessions(&self, other: &Self) -> Result<()> {
        let (from, to) = (other.sessions(), self.sessions());
        let names = names(&from).unwrap_or_default().into_iter();
        let mut whole = names.filter(|name| !is_temporary(name));
        whole.try_for_each(|name| copy(&from.join(&name), &to.join(&name)))
    }

    /// True if a cell has a file.
    pub fn has(&self, id: &str) -> bool {
        self.cell_file(id).is_file()
    }

    /// Returns the records of a cell. A missing or damaged file is an error.
    pub fn read_cell(&self, id: &str) -> Result<Vec<Record>> {
        let file = self.cell_file(id);
        let bytes = input::bytes(&file)?;
        let records = read_cell(&bytes, id, &self.run);
        records.map_err(|message| Error::data(&file, format!("not a finished cell of this run: {message}")))
    }

    fn cell_file(&self, id: &str) -> PathBuf {
        self.path.join(CELLS).join(file_name(id))
    }

    /// Removes old temporary files of processes that were killed. Nothing reads these files, so errors are ignored.
    fn tidy(&self) {
        let folders = [self.path.clone(), self.path.join(CELLS), self.sessions()];
        let entries = folders.iter().flat_map(fs::read_dir).flatten().flatten();
        for entry in entries.filter(|entry| is_temporary(&entry.file_name())) {
            let modified = entry.metadata().and_then(|metadata| metadata.modified());
            let age = modified.ok().and_then(|modified| modified.elapsed().ok());
            if age.is_some_and(|age| age > STALE) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    let bytes = input::bytes(from)?;
    write_atomic(to, |out| out.write_all(&bytes))
}

/// Returns the error for a folder that cannot be used.
fn refused<T>(path: &Path, message: String) -> Result<T> {
    Err(Error::Usage(format!("{}: {message}", path.display())))
}

/// Returns the name of a cell's file.
fn file_name(id: &str) -> String {
    id.replace('/', "__") + ".jsonl"
}

fn make_folders(path: &Path) -> Result<()> {
    let folders = [CELLS, SESSIONS].map(|name| path.join(name));
    let make = |folder: &PathBuf| fs::create_dir_all(folder).map_err(Error::io(folder, "create"));
    folders.iter().try_for_each(make)
}

/// Returns the name of the first entry of a folder that prevents a new run in this folder; `None` without such an entry. Allowed
/// are `run.json`, a scheduler's files, temporary files, and empty folders that a killed process left.
fn obstacle(path: &Path) -> Result<Option<OsString>> {
    let ours = |name: &OsStr| {
        let folder = name == CELLS || name == SESSIONS;
        [RUN, JOBS].iter().any(|own| name == *own)
            || is_temporary(name)
            || folder && names(&path.join(name)).is_ok_and(|names| names.is_empty())
    };
    match names(path) {
        Ok(names) => Ok(names.into_iter().find(|name| !ours(name))),
        // If `path` is a file, the later creation of the folder returns the error.
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
        Err(error) => Err(Error::io(path, "read")(error)),
    }
}

/// True if the folder holds a run that may be replaced: nothing was measured, all its processes have ended, and it is not the run
/// to `join`.
fn unbegun(path: &Path, manifest: &Manifest, join: bool) -> Result<bool> {
    let file = path.join(RUN);
    if !file.is_file() || !unmeasured(path)? || !session::all_ended(&path.join(SESSIONS)) {
        return Ok(false);
    }
    let stored = input::bytes(&file)?;
    Ok(read_manifest(&stored).is_ok_and(|stored| !join || stored.fingerprint != manifest.fingerprint))
}

/// True if a run's folder has no finished cell, and only has files that belong to a run.
fn unmeasured(path: &Path) -> Result<bool> {
    let own = |name: &OsString| [RUN, JOBS, CELLS, SESSIONS].iter().any(|own| name == own) || is_temporary(name);
    let read = |folder: &Path| names(folder).map_err(Error::io(folder, "read"));
    let cells = path.join(CELLS);
    let empty = !cells.is_dir() || read(&cells)?.iter().all(|name| is_temporary(name));
    Ok(empty && read(path)?.iter().all(own))
}

/// Returns the end of an error message: the command by which the user can remove a run in which nothing was measured. Returns an
/// empty text for any other run. The user must check that no process works on the run, because this program cannot tell a working
/// process from one that was killed a moment ago.
fn removable(path: &Path) -> Result<String> {
    let path_of = quoted(&path.display().to_string());
    let removes = || format!("; nothing was measured in it: if no process works on it, `rm -r {path_of}` removes it");
    Ok(unmeasured(path)?.then(removes).unwrap_or_default())
}

/// Removes a run in which nothing was measured.
fn remove_unbegun(path: &Path) -> Result<()> {
    let file = path.join(RUN);
    fs::remove_file(&file).map_err(Error::io(&file, "remove"))?;
    for folder in [SESSIONS, CELLS].map(|name| path.join(name)) {
        if folder.is_dir() {
            fs::remove_dir_all(&folder).map_err(Error::io(&folder, "remove"))?;
        }
    }
    let path = path.display();
    errln!("{path}: nothing was measured in the run that it held; it is replaced");
    Ok(())
}

fn names(folder: &Path) -> std::io::Result<Vec<OsString>> {
    fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name())).collect()
}

/// Reads a manifest from the bytes of `run.json`. Returns the reason if the bytes are not the output of [`seal::json`] for a
/// manifest.
pub fn read_manifest(bytes: &[u8]) -> Result<Manifest, String> {
    let read = seal::read_json(bytes, Some(SCHEMA));
    let manifest: Manifest = read.map_err(|why: String| match why.starts_with("it is of schema") {
        true => why + "; run the experiment again, or use that version",
        false => why,
    })?;
    manifest.check()?;
    Ok(manifest)
}

/// Reads the records from the bytes of a cell's file. Returns the reason if [`Folder::write_cell`] did not write these bytes for
/// the cell `id` of the run with the fingerprint `run`.
pub fn read_cell(bytes: &[u8], id: &str, run: &str) -> Result<Vec<Record>, String> {
    seal::check(bytes, CLOSE_CELL)?;
    let text = std::str::from_utf8(bytes).map_err(|error| error.to_string())?;
    let (lines, end) = text.trim_end().rsplit_once('\n').unwrap_or(("", text.trim_end()));
    let end: End = serde_json::from_str(end).map_err(|error| format!("last line: {error}"))?;
    let why = format_args!("it is of the cell '{}', expected '{id}'", end.cell);
    refuse(end.cell != id, why)?;
    let why = format_args!("it is of the run {}, expected {run}", end.run);
    refuse(end.run != run, why)?;
    let records = lines::read(lines)?;
    let (found, said) = (records.len(), end.records);
    let why = format_args!("it holds {found} records, and its last line says {said}");
    refuse(found != said, why)?;
    for record in &records {
        let (recipe, phase, window, cell) = (&record.recipe, record.phase, &record.window, &record.cell);
        let why = format_args!("a record in it is of {recipe}, {phase}, {window} in the cell '{cell}'");
        refuse(cell != id || *cell != format!("{recipe}/{phase}/{window}"), why)?;
    }
    Ok(records)
}
