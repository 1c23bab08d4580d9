//! A run on disk: `records.parquet` and `summary.parquet` in tidy form (one number a row, zstd), and `records.jsonl`
//! for everything that reads lines.
//!
//! Each file is written whole and renamed into place, so a run that is killed leaves the files of the last time.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use polars::prelude::*;
use polars_io::prelude::*;
use serde::Serialize;

use super::lines;
use super::summary::Summary;
use super::{Manifest, Run};
use crate::run::verdict::Status;
use crate::{Error, Result};
use ulplab_core::atomic::write_atomic;
use ulplab_core::input;
use ulplab_core::record::{Failure, Phase, Record, Worst};

pub const RECORDS: &str = "records.parquet";
pub const SUMMARY: &str = "summary.parquet";
pub const JSONL: &str = "records.jsonl";

/// Version of the files' layout, the `schema` of a [`Manifest`].
pub const SCHEMA: u32 = 3;

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
    write_parquet(path, records.len(), columns)
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
    write_parquet(path, rows.len(), columns)
}

/// Columns that are the same in every row, so that the files of many runs can be read as one table.
fn provenance(manifest: &Manifest, rows: usize) -> Vec<Column> {
    let constant =
        |name: &str, value: &str| Column::new_scalar(name.into(), Scalar::from(PlSmallStr::from(value)), rows);
    let commit = match &manifest.commit {
        Some(commit) => constant("commit", commit),
        None => Column::full_null("commit".into(), rows, &DataType::String),
    };
    vec![
        constant("run_id", &run_id(manifest)),
        constant("fingerprint", &manifest.fingerprint),
        commit,
        constant("device", &manifest.device),
        Column::new_scalar("seed".into(), Scalar::from(manifest.experiment.seed), rows),
    ]
}

fn strings<'a, T>(name: &str, rows: &'a [T], get: impl Fn(&'a T) -> Option<&'a str>) -> Column {
    StringChunked::from_iter_options(name.into(), rows.iter().map(get)).into_column()
}

fn floats<T>(name: &str, rows: &[T], get: impl Fn(&T) -> Option<f64>) -> Column {
    Float64Chunked::from_iter_options(name.into(), rows.iter().map(get)).into_column()
}

fn counts<T>(name: &str, rows: &[T], get: impl Fn(&T) -> u64) -> Column {
    UInt64Chunked::from_iter_values(name.into(), rows.iter().map(get)).into_column()
}

/// Layers as nullable `i32`, null outside the layers.
fn layers(layers: impl Iterator<Item = Option<u32>>) -> Column {
    Int32Chunked::from_iter_options("layer".into(), layers.map(|layer| layer.map(|l| l as i32))).into_column()
}

/// The index of the worst element as `list<u64>`, null where the metric has none.
fn indices(name: &str, records: &[Record]) -> Column {
    let capacity = records.len();
    let mut builder =
        ListPrimitiveChunkedBuilder::<UInt64Type>::new(name.into(), capacity, 3 * capacity, DataType::UInt64);
    for record in records {
        match &record.worst {
            Some(worst) => builder.append_slice(&worst.index),
            None => builder.append_null(),
        }
    }
    builder.finish().into_column()
}

fn write_parquet(path: &Path, rows: usize, columns: Vec<Column>) -> Result<()> {
    let mut frame = DataFrame::new(rows, columns).map_err(|error| polars_error(path, error))?;
    write_atomic(path, |writer| {
        ParquetWriter::new(writer)
            .with_compression(ParquetCompression::Zstd(None))
            .finish(&mut frame)
            .map(|_| ())
            .map_err(|error| match error {
                PolarsError::IO { error, .. } => io::Error::new(error.kind(), error),
                error => io::Error::other(error),
            })
    })
}

/// Reads back what [`write_records`] wrote, bit for bit; a failure has its message only.
pub fn read_records(path: &Path) -> Result<Vec<Record>> {
    let table = Table::read(path)?;
    let (cell, recipe, window) = (table.text("cell")?, table.text("recipe")?, table.text("window")?);
    let (phase, layer) = (table.text("phase")?, table.layers()?);
    let (site, metric) = (table.text("site")?, table.text("metric")?);
    let (value, n) = (table.floats("value")?, table.counts("n")?);
    let (nonfinite_want, nonfinite_got) = (table.counts("nonfinite_want")?, table.counts("nonfinite_got")?);
    let (want, got) = (table.floats("worst_want")?, table.floats("worst_got")?);
    let failure = table.text("failure")?;
    let index = table
        .column("worst_index")?
        .list()
        .map_err(|error| polars_error(path, error))?;
    (0..table.frame.height())
        .map(|row| {
            let missing = |name| table.missing(name, row);
            let worst = match index.get_as_series(row) {
                None => None,
                Some(index) => Some(Worst {
                    index: index
                        .u64()
                        .map_err(|error| polars_error(path, error))?
                        .into_no_null_iter()
                        .collect(),
                    want: want.get(row).ok_or_else(|| missing("worst_want"))?,
                    got: got.get(row).ok_or_else(|| missing("worst_got"))?,
                }),
            };
            Ok(Record {
                cell: cell.get(row).ok_or_else(|| missing("cell"))?.into(),
                recipe: recipe.get(row).ok_or_else(|| missing("recipe"))?.into(),
                phase: parse_phase(phase.get(row)).ok_or_else(|| missing("phase"))?,
                window: window.get(row).ok_or_else(|| missing("window"))?.into(),
                layer: table.layer(layer, row)?,
                site: site.get(row).ok_or_else(|| missing("site"))?.into(),
                metric: metric.get(row).ok_or_else(|| missing("metric"))?.into(),
                value: value.get(row).ok_or_else(|| missing("value"))?,
                n: n.get(row).ok_or_else(|| missing("n"))?,
                nonfinite_want: nonfinite_want.get(row).ok_or_else(|| missing("nonfinite_want"))?,
                nonfinite_got: nonfinite_got.get(row).ok_or_else(|| missing("nonfinite_got"))?,
                worst,
                failure: failure.get(row).map(|message| {
                    Box::new(Failure {
                        message: message.into(),
                        ..Failure::default()
                    })
                }),
            })
        })
        .collect()
}

/// Reads back what [`write_summaries`] wrote, bit for bit.
pub fn read_summaries(path: &Path) -> Result<Vec<Summary>> {
    let table = Table::read(path)?;
    let (recipe, phase, layer) = (table.text("recipe")?, table.text("phase")?, table.layers()?);
    let (site, metric, windows) = (table.text("site")?, table.text("metric")?, table.counts("windows")?);
    let (mean, min, max) = (table.floats("mean")?, table.floats("min")?, table.floats("max")?);
    let (ci_low, ci_high) = (table.floats("ci_low")?, table.floats("ci_high")?);
    (0..table.frame.height())
        .map(|row| {
            let missing = |name| table.missing(name, row);
            Ok(Summary {
                recipe: recipe.get(row).ok_or_else(|| missing("recipe"))?.into(),
                phase: parse_phase(phase.get(row)).ok_or_else(|| missing("phase"))?,
                layer: table.layer(layer, row)?,
                site: site.get(row).ok_or_else(|| missing("site"))?.into(),
                metric: metric.get(row).ok_or_else(|| missing("metric"))?.into(),
                windows: windows
                    .get(row)
                    .and_then(|n| u32::try_from(n).ok())
                    .ok_or_else(|| missing("windows"))?,
                mean: mean.get(row).ok_or_else(|| missing("mean"))?,
                min: min.get(row).ok_or_else(|| missing("min"))?,
                max: max.get(row).ok_or_else(|| missing("max"))?,
                ci_low: ci_low.get(row).ok_or_else(|| missing("ci_low"))?,
                ci_high: ci_high.get(row).ok_or_else(|| missing("ci_high"))?,
            })
        })
        .collect()
}

/// A Parquet file read whole, with errors that name the file and the column.
struct Table<'a> {
    path: &'a Path,
    frame: DataFrame,
}

impl<'a> Table<'a> {
    fn read(path: &'a Path) -> Result<Self> {
        let file = input::open(path)?;
        let frame = ParquetReader::new(file)
            .finish()
            .map_err(|error| polars_error(path, error))?;
        Ok(Self { path, frame })
    }

    fn column(&self, name: &str) -> Result<&Column> {
        self.frame.column(name).map_err(|_| {
            Error::data(
                self.path,
                format!("no column '{name}': not a file of this version of ulplab?"),
            )
        })
    }

    fn text(&self, name: &str) -> Result<&StringChunked> {
        self.column(name)?.str().map_err(|error| polars_error(self.path, error))
    }

    fn floats(&self, name: &str) -> Result<&Float64Chunked> {
        self.column(name)?.f64().map_err(|error| polars_error(self.path, error))
    }

    fn counts(&self, name: &str) -> Result<&UInt64Chunked> {
        self.column(name)?.u64().map_err(|error| polars_error(self.path, error))
    }

    fn layers(&self) -> Result<&Int32Chunked> {
        self.column("layer")?
            .i32()
            .map_err(|error| polars_error(self.path, error))
    }

    /// The layer in a row of [`Self::layers`]; none outside the layers.
    fn layer(&self, layers: &Int32Chunked, row: usize) -> Result<Option<u32>> {
        let layer = layers.get(row).map(u32::try_from).transpose();
        layer.map_err(|_| self.missing("layer", row))
    }

    fn missing(&self, column: &str, row: usize) -> Error {
        Error::data(
            self.path,
            format!("column '{column}', row {row}: no value, or not one of ulplab's"),
        )
    }
}

fn polars_error(path: &Path, error: PolarsError) -> Error {
    match error {
        PolarsError::IO { error, .. } => Error::data(path, format!("cannot be read as Parquet: {error}")),
        error => Error::data(path, error.to_string()),
    }
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
    };
    write_atomic(path, |writer| {
        serde_json::to_writer(&mut *writer, &Line::Manifest(&run.manifest))?;
        writer.write_all(b"\n")?;
        lines::write(&run.records, writer)?;
        serde_json::to_writer(&mut *writer, &end)?;
        writer.write_all(b"\n")
    })
}
