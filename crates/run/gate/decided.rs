//! Stored runs with their verdicts, and sequential runs that end as soon as every gate is decided.

use std::path::Path;

use super::{bind, explain, judge};
use crate::experiment::{Mistake, Rule, Statistic};
use crate::run::folder::Folder;
use crate::run::plan::Cell;
use crate::run::summary::summarize;
use crate::run::{Manifest, Run};
use ulplab_core::error::{Error, Result};
use ulplab_core::record::Record;

impl Run {
    /// Reads the run in a folder, and judges its gates.
    ///
    /// # Errors
    /// Returns an error if cells are missing or damaged, or if nothing was measured at a gate's site.
    pub fn read(path: &Path) -> Result<Self> {
        let (folder, manifest) = Folder::open(path)?;
        Self::load(&folder, manifest)
    }

    /// Reads the cells of a run, and judges the gates of `manifest` on them.
    ///
    /// # Errors
    /// Returns the errors of [`read`](Self::read).
    pub fn load(folder: &Folder, manifest: Manifest) -> Result<Self> {
        let records = records(folder, &manifest)?;
        Self::judge(folder, manifest, records)
    }

    /// Derives summaries and verdicts from the records of all cells.
    ///
    /// # Errors
    /// Returns an error if nothing was measured at a gate's site.
    pub fn judge(folder: &Folder, mut manifest: Manifest, records: Vec<Record>) -> Result<Self> {
        manifest.complete = true;
        let summaries = summarize(&records);
        let verdicts = judge(&bind(&manifest), &summaries);
        let mut verdicts = verdicts.map_err(|message| Error::data(&folder.path, message))?;
        explain(&mut verdicts, &records);
        Ok(Self {
            manifest,
            records,
            summaries,
            verdicts,
        })
    }
}

/// Returns the records of all cells. For a run with `until_decided`, returns only the records up to the window after which every
/// gate is decided.
///
/// # Errors
/// Returns an error if cells are missing or damaged.
pub fn records(folder: &Folder, manifest: &Manifest) -> Result<Vec<Record>> {
    // The gates may have changed since the run ended. A gate without a sequential test needs all windows, not only those up to
    // the decision.
    if manifest.invocation.until_decided && check_sequential(&manifest.experiment.gates).is_ok() {
        let mut decision = UntilDecided::new(folder, manifest);
        for window in 0..manifest.plan.windows.len() {
            if !decision.has(window) {
                break;
            }
            if decision.after(window)? {
                return decision.all();
            }
        }
    }
    folder.records(manifest)
}

/// A run that ends as soon as every gate is decided.
pub struct UntilDecided<'a> {
    folder: &'a Folder,
    manifest: &'a Manifest,
    cells: Vec<Cell>,
    /// Records of the windows read so far, for the metrics that gates use.
    records: Vec<Record>,
    windows: usize,
}

impl<'a> UntilDecided<'a> {
    pub fn new(folder: &'a Folder, manifest: &'a Manifest) -> Self {
        Self {
            folder,
            manifest,
            cells: manifest.plan.cells(),
            records: Vec::new(),
            windows: 0,
        }
    }

    /// True if all cells of a window are stored.
    fn has(&self, window: usize) -> bool {
        let mut cells = self.cells.iter().filter(|cell| cell.window == window);
        cells.all(|cell| self.folder.has(&cell.id))
    }

    /// Adds the records of the given window. Returns true if the windows so far decide every gate.
    pub fn after(&mut self, window: usize) -> Result<bool> {
        self.windows = window + 1;
        let gates = &self.manifest.experiment.gates;
        for cell in self.cells.iter().filter(|cell| cell.window == window) {
            let looked_at = |record: &Record| gates.iter().any(|rule| rule.metric == record.metric);
            self.records
                .extend(self.folder.read_cell(&cell.id)?.into_iter().filter(looked_at));
        }
        let verdicts = judge(&bind(self.manifest), &summarize(&self.records));
        let verdicts = verdicts.map_err(|message| Error::data(&self.folder.path, message))?;
        Ok(verdicts.iter().all(|verdict| verdict.passes() || verdict.fails()))
    }

    /// Returns all records of the windows read so far.
    fn all(&self) -> Result<Vec<Record>> {
        let cells = self.cells.iter().filter(|cell| cell.window < self.windows);
        let records = cells.map(|cell| self.folder.read_cell(&cell.id));
        Ok(records.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
    }
}

/// Checks that a run may end as soon as its gates are decided.
///
/// # Errors
/// Returns an error if there is no gate, or if a gate's statistic is not a sequential test.
pub fn check_sequential(rules: &[Rule]) -> Result<(), Mistake> {
    let message = "--until-decided ends when gates are decided, and there is none";
    Mistake::refuse(rules.is_empty(), "gate", message)?;
    let Some(at) = rules.iter().position(|rule| rule.statistic != Statistic::Sequential) else {
        return Ok(());
    };
    let name = rules[at].statistic.name();
    let message =
        format!("the {name} may not be looked at after every window: --until-decided takes statistic = \"sequential\"");
    Err(Mistake::at("statistic", message).within("gate", at))
}
