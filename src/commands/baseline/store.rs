//! Baselines on disk: `DIR/<experiment>/<device>/<start of the run>-<fingerprint>/` with the run and [`ACCEPTED`], which is written
//! last: a copy that was interrupted is not a baseline.

use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::entries::entries;
use crate::run::Manifest;
use crate::run::definitions::Definitions;
use crate::run::folder::Folder;
use crate::run::runs::slug;
use ulplab_core::atomic::create_atomic;
use ulplab_core::error::{Error, Result};
use ulplab_core::input;

/// The file that makes a run a baseline.
const ACCEPTED: &str = "accepted.json";
pub const SCHEMA: u32 = 1;

/// The acceptance of a run: person, time and reason.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Accepted {
    pub schema: u32,
    /// Fingerprint of the run.
    pub run: String,
    /// RFC 3339.
    pub accepted_at: String,
    pub by: String,
    pub why: String,
    pub definitions: Definitions,
}

/// A run that was accepted.
#[derive(Debug)]
pub struct Baseline {
    pub path: PathBuf,
    pub manifest: Manifest,
    pub accepted: Accepted,
}

/// The folder of all baselines.
pub struct Store {
    pub path: PathBuf,
}

impl Store {
    /// The folder of the baselines of an experiment and a device.
    fn place(&self, experiment: &str, device: &str) -> PathBuf {
        self.path.join(slug(experiment)).join(slug(device))
    }

    /// Copies a run, and marks it as accepted. A run that is a baseline already is an error.
    pub fn add(&self, folder: &Folder, manifest: &Manifest, accepted: &Accepted) -> Result<PathBuf> {
        let home = self.place(&manifest.experiment.name, &manifest.device);
        let name = manifest.started_at.replace(':', "");
        let path = home.join(format!("{name}-{}", &manifest.fingerprint[..8]));
        let (copy, same) = Folder::enter(&path, manifest, true)?;
        for cell in same.plan.cells() {
            copy.write_cell(&cell, &folder.read_cell(&cell.id)?)?;
        }
        let text = serde_json::to_vec_pretty(accepted).expect("plain data has a form in JSON");
        match create_atomic(&path.join(ACCEPTED), |out| out.write_all(&text))? {
            true => Ok(path),
            false => Err(Error::Usage(format!("{}: a baseline already", path.display()))),
        }
    }

    /// Baselines of an experiment on a device, in the order in which they were accepted.
    pub fn of(&self, experiment: &str, device: &str) -> Result<Vec<Baseline>> {
        let mut found = in_folder(&self.place(experiment, device))?;
        // Other names may have the same folder.
        found.retain(|base| base.manifest.experiment.name == experiment && base.manifest.device == device);
        Ok(found)
    }

    /// All baselines, by experiment, device and time.
    pub fn all(&self) -> Result<Vec<Baseline>> {
        let mut found = Vec::new();
        for experiment in folders(&self.path)? {
            for device in folders(&experiment)? {
                found.extend(in_folder(&device)?);
            }
        }
        Ok(found)
    }
}

fn in_folder(path: &Path) -> Result<Vec<Baseline>> {
    let marked = folders(path)?.into_iter().filter(|path| path.join(ACCEPTED).exists());
    let mut found = marked.map(|path| read(&path)).collect::<Result<Vec<_>>>()?;
    found.sort_by(|a, b| a.accepted.accepted_at.cmp(&b.accepted.accepted_at));
    Ok(found)
}

fn read(path: &Path) -> Result<Baseline> {
    let file = path.join(ACCEPTED);
    let wrong = |message: String| Error::data(&file, message);
    let accepted: Accepted = serde_json::from_str(&input::text(&file)?).map_err(|error| wrong(error.to_string()))?;
    if accepted.schema != SCHEMA {
        let found = accepted.schema;
        return Err(wrong(format!("schema {found}; this version of ulplab reads {SCHEMA}")));
    }
    let (folder, manifest) = Folder::open(path)?;
    if manifest.fingerprint != accepted.run {
        let (accepted, found) = (&accepted.run, &manifest.fingerprint);
        let message = format!("it accepts the run {accepted}, and the run next to it is {found}");
        return Err(wrong(message));
    }
    Ok(Baseline {
        path: folder.path,
        manifest,
        accepted,
    })
}

/// The folders in a folder, by name; none if it is not there.
fn folders(path: &Path) -> Result<Vec<PathBuf>> {
    if !path.exists() {
        return Ok(Vec::new());
    }
    let mut paths = entries(path, "read")?;
    paths.retain(|path| path.is_dir());
    Ok(paths)
}
