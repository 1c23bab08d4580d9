//! The tables of stored runs, as Parquet files.

use std::path::{Path, PathBuf};

use tempfile::TempDir;
use ulplab_core::error::{Error, Result, counted};
use ulplab_run::run::Run;
use ulplab_run::run::folder::Folder;
use ulplab_run::run::store::{RECORDS, SUMMARY, write_records, write_summaries};
use ulplab_run::run::summary::summarize;

/// The tables of a run.
pub struct Tables {
    /// The folder of the run, as the user gives it.
    pub run: String,
    /// The kind of the run's study.
    pub study: String,
    pub records: PathBuf,
    pub summaries: PathBuf,
    /// The missing cells in words, if the run is incomplete.
    pub missing: Option<String>,
    /// The folder of the tables of an incomplete run. Dropping it removes them.
    _made: Option<TempDir>,
}

impl Tables {
    /// The tables that the run's last process wrote. For a run that is not finished, tables are made of its finished cells.
    ///
    /// # Errors
    /// If the folder holds no run of this version, or a finished cell is damaged.
    pub fn read(path: &Path) -> Result<Self> {
        let (folder, manifest) = Folder::open(path)?;
        let mut tables = Self {
            run: path.display().to_string(),
            study: manifest.experiment.head.kind.clone(),
            records: path.join(RECORDS),
            summaries: path.join(SUMMARY),
            missing: None,
            _made: None,
        };
        if tables.records.is_file() && tables.summaries.is_file() {
            return Ok(tables);
        }
        let missing = folder.missing(&manifest)?;
        if let Some(first) = missing.first() {
            let (count, all) = (missing.len(), counted(manifest.cells.len(), "cell"));
            tables.missing = Some(format!("{count} of {all} are missing, the first is '{first}'"));
        }
        let finished = manifest.cells.iter().filter(|id| !missing.contains(&id.as_str()));
        let records: Vec<_> = finished.map(|id| folder.read_cell(id)).collect::<Result<_>>()?;
        let records = records.concat();
        let run = Run {
            summaries: summarize(&records),
            verdicts: Vec::new(),
            manifest,
            records,
        };
        let made = tempfile::tempdir().map_err(Error::io(std::env::temp_dir(), "create a folder in"))?;
        tables.records = made.path().join(RECORDS);
        tables.summaries = made.path().join(SUMMARY);
        write_records(&run, &tables.records)?;
        write_summaries(&run, &tables.summaries)?;
        tables._made = Some(made);
        Ok(tables)
    }
}
