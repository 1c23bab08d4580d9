//! A run's folder: `run.json`, one file per finished cell, and what is derived from them.
//!
//! A cell's file appears under its name only when it is whole, so a killed run can be resumed and never reads as complete.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use super::lines;
use super::plan::Cell;
use super::run::Manifest;
use crate::atomic::write_atomic;
use crate::error::{Error, Result};
use crate::record::Record;

pub struct Folder {
    pub path: PathBuf,
}

impl Folder {
    /// Makes a new, empty folder for a run.
    pub fn create(path: &Path) -> Result<Self> {
        if fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_some()) {
            let message = "is not empty; give another --out, or --resume to go on with the run in it";
            return Err(Error::Usage(format!("{}: {message}", path.display())));
        }
        fs::create_dir_all(path.join("cells")).map_err(Error::io(path, "create"))?;
        Ok(Self {
            path: path.to_path_buf(),
        })
    }

    /// Opens the folder of a run that was started before.
    pub fn open(path: &Path) -> Result<(Self, Manifest)> {
        let file = path.join("run.json");
        let text = fs::read_to_string(&file).map_err(Error::io(&file, "read the manifest of a run"))?;
        let manifest = serde_json::from_str(&text).map_err(|error| Error::data(&file, error.to_string()))?;
        Ok((
            Self {
                path: path.to_path_buf(),
            },
            manifest,
        ))
    }

    pub fn write_manifest(&self, manifest: &Manifest) -> Result<()> {
        write_atomic(&self.path.join("run.json"), |out| {
            serde_json::to_writer_pretty(&mut *out, manifest)?;
            out.write_all(b"\n")
        })
    }

    pub fn has(&self, id: &str) -> bool {
        self.cell_file(id).is_file()
    }

    pub fn write_cell(&self, cell: &Cell, records: &[Record]) -> Result<()> {
        write_atomic(&self.cell_file(&cell.id), |out| lines::write(records, out))
    }

    pub fn read_cell(&self, id: &str) -> Result<Vec<Record>> {
        let file = self.cell_file(id);
        let text = fs::read_to_string(&file).map_err(Error::io(&file, "read"))?;
        lines::read(&text).map_err(|message| Error::data(&file, message))
    }

    fn cell_file(&self, id: &str) -> PathBuf {
        self.path
            .join("cells")
            .join(id.replace('/', "__"))
            .with_added_extension("jsonl")
    }
}
