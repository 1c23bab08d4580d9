//! A run on disk: `records.parquet` and `summary.parquet` in tidy form (one number a row, zstd), and `records.jsonl`
//! for everything that reads lines.
//!
//! Each file is written whole and renamed into place, so a run that is killed leaves the files of the last time.

use std::io::Write;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::lines;
use super::loss::Loss;
use super::summary::Summary;
use super::table::{self, Column, Table, Values};
use super::{Manifest, Run};
use crate::run::verdict::Status;
use ulplab_core::atomic::write_atomic;
use ulplab_core::record::{Failure, Phase, Record, Worst};
use ulplab_core::{Error, Result};

pub const RECORDS: &str = "records.parquet";
pub const SUMMARY: &str = "summary.parquet";
pub const JSONL: &str = "records.jsonl";

/// Version of the files' layout, the `schema` of a [`Manifest`].
pub const SCHEMA: u32 = 4;

/// Writes the three files of a run to `folder` (made if missing) and tells their paths.
pub fn write_run(run: &Run, folder: &Path) -> Result<Vec<PathBuf>> {
    std::fs::create_dir_all(folder).map_err(Error::io(folder, "create"))?;
    let paths = [RECORDS, SUMMARY, JSONL].map(|name| folder.join(name));
    write_records(run, &paths[0])?;
    write_summaries(run, &paths[1])?;
    write_jsonl(run, &paths[2])?;
    Ok(paths.into())
}

/// Name of a run among others: experiment and the beginning of the fingerprint.
pub fn run_id(manifest: &Manifest) -> String {
    let short: String = manifest.fingerprint.chars().take(12).collect();
    format!("{}-{short}", manifest.experiment.name)
}

/// One row a record: every field of [`Record`] and what says which run it is from.
pub fn write_records(run: &Run, path: &Path) -> Result<()> {
    let records = &run.records;
    let mut columns = provenance(&run.manifest, records.len());
    columns.extend([
        strings("cell", records, |r| Some(&r.cell)),
        strings("recipe", records, |r| Some(&r.recipe)),
        strings("phase", records, |r| Some(r.phase.name())),
        strings("window", records, |r| Some(&r.window)),
        layers(records.iter().map(|r| r.layer)),
        strings("site", records, |r| Some(&r.site)),
        strings("metric", records, |r| Some(&r.metric)),
        floats("value", records, |r| Some(r.value)),
        counts("n", records, |r| r.n),
        counts("nonfinite_want", records, |r| r.nonfinite_want),
        counts("nonfinite_got", records, |r| r.nonfinite_got),
        indices("worst_index", records),
        floats("worst_want", records, |r| r.worst.as_ref().map(|w| w.want)),
        floats("worst_got", records, |r| r.worst.as_ref().map(|w| w.got)),
        strings("failure", records, |r| {
            r.failure.as_ref().map(|failure| failure.message.as_str())
        }),
    ]);
    table::write(path, &columns)
}

/// One row a summary.
pub fn write_summaries(run: &Run, path: &Path) -> Result<()> {
    let rows = &run.summaries;
    let mut columns = provenance(&run.manifest, rows.len());
    columns.extend([
        strings("recipe", rows, |s| Some(&s.recipe)),
        strings("phase", rows, |s| Some(s.phase.name())),
        layers(rows.iter().map(|s| s.layer)),
        strings("site", rows, |s| Some(&s.site)),
        strings("metric", rows, |s| Some(&s.metric)),
        counts("windows", rows, |s| s.windows.into()),
        floats("mean", rows, |s| Some(s.mean)),
        floats("min", rows, |s| Some(s.min)),
        floats("max", rows, |s| Some(s.max)),
        floats("ci_low", rows, |s| Some(s.ci_low)),
        floats("ci_high", rows, |s| Some(s.ci_high)),
    ]);
    table::write(path, &columns)
}

/// Columns that are the same in every row, so that the files of many runs can be read as one table.
fn provenance(manifest: &Manifest, rows: usize) -> Vec<Column> {
    let constant = |value: Option<&str>| Values::Text(vec![value.map(String::from); rows]);
    vec![
        ("run_id", constant(Some(&run_id(manifest)))),
        ("fingerprint", constant(Some(&manifest.fingerprint))),
        ("commit", constant(manifest.commit.as_deref())),
        ("device", constant(Some(&manifest.device))),
        ("seed", Values::Count(vec![Some(manifest.experiment.seed); rows])),
    ]
}

fn strings<'a, T>(name: &'static str, rows: &'a [T], get: impl Fn(&'a T) -> Option<&'a str>) -> Column {
    (
        name,
        Values::Text(rows.iter().map(|row| get(row).map(String::from)).collect()),
    )
}

fn floats<T>(name: &'static str, rows: &[T], get: impl Fn(&T) -> Option<f64>) -> Column {
    (name, Values::Float(rows.iter().map(get).collect()))
}

fn counts<T>(name: &'static str, rows: &[T], get: impl Fn(&T) -> u64) -> Column {
    (name, Values::Count(rows.iter().map(|row| Some(get(row))).collect()))
}

/// Layers as nullable `i32`, null outside the layers.
fn layers(layers: impl Iterator<Item = Option<u32>>) -> Column {
    let layers = layers.map(|layer| layer.map(|layer| layer as i32));
    ("layer", Values::Int(layers.collect()))
}

/// The index of the worst element as `list<u64>`, null where the metric has none.
fn indices(name: &'static str, records: &[Record]) -> Column {
    let index = |record: &Record| record.worst.as_ref().map(|worst| worst.index.clone());
    (name, Values::Counts(records.iter().map(index).collect()))
}

/// Reads back what [`write_records`] wrote, bit for bit; a failure has its message only.
pub fn read_records(path: &Path) -> Result<Vec<Record>> {
    let table = Table::open(path)?;
    let (mut cell, mut recipe, mut window) = (table.text("cell")?, table.text("recipe")?, table.text("window")?);
    let (phase, layers) = (table.text("phase")?, table.ints("layer")?);
    let (mut site, mut metric) = (table.text("site")?, table.text("metric")?);
    let (value, n) = (table.floats("value")?, table.counts("n")?);
    let (nonfinite_want, nonfinite_got) = (table.counts("nonfinite_want")?, table.counts("nonfinite_got")?);
    let (want, got) = (table.floats("worst_want")?, table.floats("worst_got")?);
    let (mut failure, mut index) = (table.text("failure")?, table.lists("worst_index")?);
    (0..table.rows)
        .map(|row| {
            let missing = |name| table.missing(name, row);
            let worst = match index[row].take() {
                None => None,
                Some(index) => Some(Worst {
                    index,
                    want: want[row].ok_or_else(|| missing("worst_want"))?,
                    got: got[row].ok_or_else(|| missing("worst_got"))?,
                }),
            };
            Ok(Record {
                cell: cell[row].take().ok_or_else(|| missing("cell"))?,
                recipe: recipe[row].take().ok_or_else(|| missing("recipe"))?,
                phase: parse_phase(phase[row].as_deref()).ok_or_else(|| missing("phase"))?,
                window: window[row].take().ok_or_else(|| missing("window"))?,
                layer: layer(&table, &layers, row)?,
                site: site[row].take().ok_or_else(|| missing("site"))?,
                metric: metric[row].take().ok_or_else(|| missing("metric"))?,
                value: value[row].ok_or_else(|| missing("value"))?,
                n: n[row].ok_or_else(|| missing("n"))?,
                nonfinite_want: nonfinite_want[row].ok_or_else(|| missing("nonfinite_want"))?,
                nonfinite_got: nonfinite_got[row].ok_or_else(|| missing("nonfinite_got"))?,
                worst,
                failure: failure[row].take().map(|message| {
                    Box::new(Failure {
                        message,
                        ..Failure::default()
                    })
                }),
            })
        })
        .collect()
}

/// Reads back what [`write_summaries`] wrote, bit for bit.
pub fn read_summaries(path: &Path) -> Result<Vec<Summary>> {
    let table = Table::open(path)?;
    let (mut recipe, phase, layers) = (table.text("recipe")?, table.text("phase")?, table.ints("layer")?);
    let (mut site, mut metric, windows) = (table.text("site")?, table.text("metric")?, table.counts("windows")?);
    let (mean, min, max) = (table.floats("mean")?, table.floats("min")?, table.floats("max")?);
    let (ci_low, ci_high) = (table.floats("ci_low")?, table.floats("ci_high")?);
    (0..table.rows)
        .map(|row| {
            let missing = |name| table.missing(name, row);
            Ok(Summary {
                recipe: recipe[row].take().ok_or_else(|| missing("recipe"))?,
                phase: parse_phase(phase[row].as_deref()).ok_or_else(|| missing("phase"))?,
                layer: layer(&table, &layers, row)?,
                site: site[row].take().ok_or_else(|| missing("site"))?,
                metric: metric[row].take().ok_or_else(|| missing("metric"))?,
                windows: windows[row]
                    .and_then(|n| u32::try_from(n).ok())
                    .ok_or_else(|| missing("windows"))?,
                mean: mean[row].ok_or_else(|| missing("mean"))?,
                min: min[row].ok_or_else(|| missing("min"))?,
                max: max[row].ok_or_else(|| missing("max"))?,
                ci_low: ci_low[row].ok_or_else(|| missing("ci_low"))?,
                ci_high: ci_high[row].ok_or_else(|| missing("ci_high"))?,
                values: Vec::new(),
                flips: Vec::new(),
            })
        })
        .collect()
}

/// The layer in a row; none outside the layers.
fn layer(table: &Table, layers: &[Option<i32>], row: usize) -> Result<Option<u32>> {
    let layer = layers[row].map(u32::try_from).transpose();
    layer.map_err(|_| table.missing("layer", row))
}

fn parse_phase(name: Option<&str>) -> Option<Phase> {
    [Phase::Local, Phase::Cumulative]
        .into_iter()
        .find(|phase| Some(phase.name()) == name)
}

/// The first and the last line of `records.jsonl`; `type` tells them from the measurements.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Line<'a> {
    Manifest(&'a Manifest),
    Summary {
        records: usize,
        summaries: usize,
        pass: usize,
        fail: usize,
        /// Rules that were not judged on a recipe.
        not_judged: usize,
        complete: bool,
        /// The reference's own loss, if it read text.
        #[serde(skip_serializing_if = "Option::is_none")]
        reference: Option<Loss>,
    },
}

/// The manifest, then all measurements, then a line of counts: a file without that last line was cut off.
pub fn write_jsonl(run: &Run, path: &Path) -> Result<()> {
    let count = |status| run.verdicts.iter().filter(|verdict| verdict.status == status).count();
    let end = Line::Summary {
        records: run.records.len(),
        summaries: run.summaries.len(),
        pass: count(Status::Pass),
        fail: count(Status::Fail),
        not_judged: count(Status::NotJudged) + count(Status::NotForDevice),
        complete: run.manifest.complete,
        reference: Loss::of(run),
    };
    write_atomic(path, |writer| {
        serde_json::to_writer(&mut *writer, &Line::Manifest(&run.manifest))?;
        writer.write_all(b"\n")?;
        lines::write(&run.records, writer)?;
        serde_json::to_writer(&mut *writer, &end)?;
        writer.write_all(b"\n")
    })
}
