//! Writes a run to disk: `records.parquet` and `summary.parquet` in tidy form (one number per row, zstd), and `records.jsonl` for
//! programs that read lines.
//!
//! Each file is written whole and renamed into place, so a killed process leaves the previous files intact.

use std::io::Write;
use std::iter::repeat_n;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::json;

use super::loss::Loss;
use super::table::{self, Column};
use super::{Manifest, Run, lines};
use crate::run::verdict::Status;
use ulplab_core::atomic::write_atomic;
use ulplab_core::{Error, Result};

pub const RECORDS: &str = "records.parquet";
pub const SUMMARY: &str = "summary.parquet";
pub const JSONL: &str = "records.jsonl";

/// Version of the files' layout, the `schema` of a [`Manifest`].
pub const SCHEMA: u32 = 4;

/// Writes the three files of a run to `folder` (created if missing) and returns their paths.
pub fn write_run(run: &Run, folder: &Path) -> Result<Vec<PathBuf>> {
    std::fs::create_dir_all(folder).map_err(Error::io(folder, "create"))?;
    let paths = [RECORDS, SUMMARY, JSONL].map(|name| folder.join(name));
    write_records(run, &paths[0])?;
    write_summaries(run, &paths[1])?;
    write_jsonl(run, &paths[2])?;
    Ok(paths.into())
}

/// Returns a name that identifies a run: the experiment and the beginning of the fingerprint.
pub fn run_id(manifest: &Manifest) -> String {
    let short: String = manifest.fingerprint.chars().take(12).collect();
    format!("{}-{short}", manifest.experiment.name)
}

/// Writes one row per record: every field of [`Record`], and the run that it belongs to.
///
/// [`Record`]: ulplab_core::record::Record
pub fn write_records(run: &Run, path: &Path) -> Result<()> {
    let records = || run.records.iter();
    let worst = || records().map(|r| r.worst.as_ref());
    let mut columns = provenance(&run.manifest, run.records.len());
    columns.extend([
        Column::text("cell", records().map(|r| Some(r.cell.as_str()))),
        Column::text("recipe", records().map(|r| Some(r.recipe.as_str()))),
        Column::text("phase", records().map(|r| Some(r.phase.name()))),
        Column::text("window", records().map(|r| Some(r.window.as_str()))),
        Column::layers(records().map(|r| r.layer)),
        Column::text("site", records().map(|r| Some(r.site.as_str()))),
        Column::text("metric", records().map(|r| Some(r.metric.as_str()))),
        Column::floats("value", records().map(|r| Some(r.value))),
        Column::counts("n", records().map(|r| r.n)),
        Column::counts("nonfinite_want", records().map(|r| r.nonfinite_want)),
        Column::counts("nonfinite_got", records().map(|r| r.nonfinite_got)),
        Column::lists("worst_index", worst().map(|worst| Some(&worst?.index[..]))),
        Column::floats("worst_want", worst().map(|worst| Some(worst?.want))),
        Column::floats("worst_got", worst().map(|worst| Some(worst?.got))),
        Column::text("failure", records().map(|r| Some(r.failure.as_ref()?.message.as_str()))),
    ]);
    table::write(path, &columns)
}

/// Writes one row per summary.
pub fn write_summaries(run: &Run, path: &Path) -> Result<()> {
    let rows = || run.summaries.iter();
    let mut columns = provenance(&run.manifest, run.summaries.len());
    columns.extend([
        Column::text("recipe", rows().map(|s| Some(s.recipe.as_str()))),
        Column::text("phase", rows().map(|s| Some(s.phase.name()))),
        Column::layers(rows().map(|s| s.layer)),
        Column::text("site", rows().map(|s| Some(s.site.as_str()))),
        Column::text("metric", rows().map(|s| Some(s.metric.as_str()))),
        Column::counts("windows", rows().map(|s| s.windows.into())),
        Column::floats("mean", rows().map(|s| Some(s.mean))),
        Column::floats("min", rows().map(|s| Some(s.min))),
        Column::floats("max", rows().map(|s| Some(s.max))),
        Column::floats("ci_low", rows().map(|s| Some(s.ci_low))),
        Column::floats("ci_high", rows().map(|s| Some(s.ci_high))),
    ]);
    table::write(path, &columns)
}

/// Returns the columns that identify the run, with the same value in every row: the tables of many runs can then be read as one.
fn provenance(manifest: &Manifest, rows: usize) -> Vec<Column> {
    let id = run_id(manifest);
    let constant = |name, value| Column::text(name, repeat_n(value, rows));
    vec![
        constant("run_id", Some(id.as_str())),
        constant("fingerprint", Some(manifest.fingerprint.as_str())),
        constant("commit", manifest.commit.as_deref()),
        constant("device", Some(manifest.device.as_str())),
        Column::counts("seed", repeat_n(manifest.experiment.seed, rows)),
    ]
}

/// The first line of `records.jsonl`; the key `type` distinguishes it from measurements.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Line<'a> {
    Manifest(&'a Manifest),
}

/// Writes the manifest, then all measurements, then a line of counts. A file without this last line was truncated.
pub fn write_jsonl(run: &Run, path: &Path) -> Result<()> {
    let count = |status| run.verdicts.iter().filter(|verdict| verdict.status == status).count();
    let mut end = json!({
        "type": "summary",
        "records": run.records.len(),
        "summaries": run.summaries.len(),
        // Verdicts by status; a verdict is one rule on one recipe.
        "pass": count(Status::Pass),
        "fail": count(Status::Fail),
        "not_judged": count(Status::NotJudged) + count(Status::NotForDevice),
        "complete": run.manifest.complete,
    });
    if let Some(loss) = Loss::of(run) {
        end["reference"] = json!(loss);
    }
    write_atomic(path, |writer| {
        serde_json::to_writer(&mut *writer, &Line::Manifest(&run.manifest))?;
        writer.write_all(b"\n")?;
        lines::write(&run.records, writer)?;
        serde_json::to_writer(&mut *writer, &end)?;
        writer.write_all(b"\n")
    })
}
