//! Who worked on a run, when and for how long: a small file for each process, for readers. Nothing is judged by it.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::now;
use ulplab_core::error::{Error, Result};
use ulplab_core::input;

/// What one process did. A process that was killed leaves none.
#[derive(Debug, Serialize, Deserialize)]
pub struct Session {
    /// RFC 3339.
    pub started_at: String,
    pub seconds: f64,
    /// `slice:M/N` if it had a share of the cells only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<String>,
    pub threads: usize,
    /// Cells it finished.
    pub cells: usize,
    /// `done`, or the error.
    pub ended: String,
}

/// A session that is under way.
pub struct ActiveSession {
    at: String,
    clock: Instant,
    cells: AtomicUsize,
}

impl ActiveSession {
    pub fn now() -> Self {
        Self {
            at: now(),
            clock: Instant::now(),
            cells: AtomicUsize::new(0),
        }
    }

    /// Counts a cell that is finished.
    pub fn finished(&self) {
        self.cells.fetch_add(1, Ordering::Relaxed);
    }

    /// Writes the session to a new file in `folder`.
    pub fn end(self, folder: &Path, partition: Option<String>, failed: Option<&Error>) -> Result<()> {
        let session = Session {
            seconds: self.clock.elapsed().as_secs_f64(),
            partition,
            threads: rayon::current_num_threads(),
            cells: self.cells.into_inner(),
            ended: failed.map_or("done".into(), Error::to_string),
            started_at: self.at,
        };
        let prefix = format!("{}-", session.started_at.replace(':', ""));
        let mut builder = tempfile::Builder::new();
        let file = builder.prefix(&prefix).suffix(".json").disable_cleanup(true);
        let mut file = file
            .make_in(folder, |path| File::create_new(path))
            .map_err(Error::io(folder, "create a file in"))?;
        let text = serde_json::to_vec_pretty(&session).map_err(std::io::Error::from);
        text.and_then(|text| file.write_all(&text))
            .map_err(Error::io(file.path(), "write"))
    }
}

/// Seconds in which at least one of the sessions in a folder was at work. An unreadable one counts as 0.
pub fn seconds(folder: &Path) -> f64 {
    let Ok(entries) = fs::read_dir(folder) else {
        return 0.0;
    };
    let texts = entries.filter_map(|entry| input::bytes(&entry.ok()?.path()).ok());
    let sessions = texts.filter_map(|text| serde_json::from_slice::<Session>(&text).ok());
    let times = sessions.filter_map(|session| {
        let begin = session.started_at.parse::<Timestamp>().ok()?.as_second() as f64;
        Some((begin, begin + session.seconds.max(0.0)))
    });
    let mut times: Vec<(f64, f64)> = times.collect();
    times.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (mut sum, mut until) = (0.0, f64::NEG_INFINITY);
    for (begin, end) in times {
        sum += (end - begin.max(until)).max(0.0);
        until = until.max(end);
    }
    sum
}
