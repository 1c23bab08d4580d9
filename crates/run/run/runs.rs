//! Default folders of runs: `runs/<name>/<time>`.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::IgnoredAny;

use ulplab_core::error::{Error, Result};
use ulplab_core::input;

use super::folder::RUN;
use crate::entries::entries;

/// Folder of all runs.
const HOME: &str = "runs";

/// Suffix of the names of calibration experiments. Such an experiment has no gates; its runs calibrate the gates of another
/// experiment.
pub const NULL: &str = "-null";

/// Returns the folder of the runs of an experiment.
pub fn of(experiment: &str) -> PathBuf {
    Path::new(HOME).join(experiment)
}

/// Returns an unused folder for a run of an experiment that begins at `time`, in RFC 3339.
pub fn fresh(experiment: &str, time: &str) -> PathBuf {
    unused(&of(experiment).join(time.replace(':', "")))
}

/// Converts a name to a folder name: lower case, with `-` for characters other than ASCII letters, digits and `_`.
pub fn slug(name: &str) -> String {
    let other = |c: char| !c.is_ascii_alphanumeric() && c != '_';
    name.to_lowercase().replace(other, "-")
}

/// Returns the path itself, or the first of `path-2`, `path-3` … that does not exist: two runs may start in the same second.
pub fn unused(path: &Path) -> PathBuf {
    let numbered = (2..).map(|number| PathBuf::from(format!("{}-{number}", path.display())));
    let mut all = std::iter::once(path.to_path_buf()).chain(numbered);
    all.find(|path| !path.exists()).unwrap_or_default()
}

/// Returns the newest run in a folder. Runs are named by their time, so the newest is the last by name.
pub fn newest(home: &Path) -> Result<PathBuf> {
    let nothing = || Error::Usage(format!("{}: no run to resume", home.display()));
    let paths = entries(home, "read").unwrap_or_default().into_iter();
    let runs = paths.filter(|path| path.join(RUN).is_file());
    runs.max().ok_or_else(nothing)
}

/// Returns the latest run in `runs/*` or `runs/*/*`. Skips calibration runs, which have no gates. A run without a starting time
/// is an error, because it may be the latest.
pub fn newest_of_all() -> Result<PathBuf> {
    #[derive(Deserialize)]
    struct Head {
        /// Time in RFC 3339 to the second, in UTC: sorting the strings sorts the times.
        started_at: String,
        experiment: Asked,
    }
    #[derive(Deserialize)]
    struct Asked {
        name: String,
        #[serde(default)]
        gate: Vec<IgnoredAny>,
    }
    let runs = entries(Path::new(HOME), "read").unwrap_or_default();
    let nested = runs
        .iter()
        .flat_map(|folder| entries(folder, "read").unwrap_or_default());
    let all = runs.iter().cloned().chain(nested);
    let mut newest = None;
    for path in all.filter(|path| path.join(RUN).is_file()) {
        let file = path.join(RUN);
        let bytes = input::bytes(&file)?;
        let head = serde_json::from_slice::<Head>(&bytes);
        let head =
            head.map_err(|error| Error::data(&file, format!("{error}; name the folder of the run that you mean")))?;
        if head.experiment.name.ends_with(NULL) && head.experiment.gate.is_empty() {
            continue;
        }
        // Two runs may start in the same second: also compare the times of their files.
        let modified = file.metadata().and_then(|metadata| metadata.modified()).ok();
        newest = newest.max(Some((head.started_at, modified, path)));
    }
    let nothing = || Error::Usage(format!("{HOME}: contains no run; name the folder of a run"));
    newest.map(|(_, _, path)| path).ok_or_else(nothing)
}
