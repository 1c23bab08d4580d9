//! A run on disk: `records.parquet` and `summary.parquet` in tidy form (one number a row, zstd), and `records.jsonl`
//! for everything that reads lines.
//!
//! Each file is written whole and renamed into place, so a run that is killed leaves the files of the last time.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::builder::{ListBuilder, UInt64Builder};
use arrow_array::{
    Array, ArrayRef, ArrowPrimitiveType, Float64Array, Int32Array, ListArray, PrimitiveArray, RecordBatch, StringArray,
    UInt64Array, new_null_array,
};
use arrow_schema::DataType;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::{ArrowReaderOptions, ParquetRecordBatchReaderBuilder};
use parquet::basic::{Compression, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
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
    write_parquet(path, columns)
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
    write_parquet(path, columns)
}

/// A column with its name.
type Column = (&'static str, ArrayRef);

/// Columns that are the same in every row, so that the files of many runs can be read as one table.
fn provenance(manifest: &Manifest, rows: usize) -> Vec<Column> {
    let constant = |value: &str| Arc::new(StringArray::from_iter_values(std::iter::repeat_n(value, rows))) as ArrayRef;
    let commit = match &manifest.commit {
        Some(commit) => constant(commit),
        None => new_null_array(&DataType::Utf8, rows),
    };
    vec![
        ("run_id", constant(&run_id(manifest))),
        ("fingerprint", constant(&manifest.fingerprint)),
        ("commit", commit),
        ("device", constant(&manifest.device)),
        (
            "seed",
            Arc::new(UInt64Array::from_value(manifest.experiment.seed, rows)),
        ),
    ]
}

fn strings<'a, T>(name: &'static str, rows: &'a [T], get: impl Fn(&'a T) -> Option<&'a str>) -> Column {
    (name, Arc::new(StringArray::from_iter(rows.iter().map(get))))
}

fn floats<T>(name: &'static str, rows: &[T], get: impl Fn(&T) -> Option<f64>) -> Column {
    (name, Arc::new(Float64Array::from_iter(rows.iter().map(get))))
}

fn counts<T>(name: &'static str, rows: &[T], get: impl Fn(&T) -> u64) -> Column {
    (name, Arc::new(UInt64Array::from_iter_values(rows.iter().map(get))))
}

/// Layers as nullable `i32`, null outside the layers.
fn layers(layers: impl Iterator<Item = Option<u32>>) -> Column {
    let layers = layers.map(|layer| layer.map(|layer| layer as i32));
    ("layer", Arc::new(Int32Array::from_iter(layers)))
}

/// The index of the worst element as `list<u64>`, null where the metric has none.
fn indices(name: &'static str, records: &[Record]) -> Column {
    let mut builder = ListBuilder::new(UInt64Builder::new());
    for record in records {
        let index = record.worst.as_ref().map(|worst| &worst.index);
        index.into_iter().for_each(|index| builder.values().append_slice(index));
        builder.append(index.is_some());
    }
    (name, Arc::new(builder.finish()))
}

fn write_parquet(path: &Path, columns: Vec<Column>) -> Result<()> {
    let columns = columns.into_iter().map(|(name, column)| (name, column, true));
    let batch = RecordBatch::try_from_iter_with_nullable(columns).map_err(|error| parquet_error(path, error))?;
    let compression = Compression::ZSTD(ZstdLevel::default());
    let properties = WriterProperties::builder().set_compression(compression).build();
    write_atomic(path, |file| {
        let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties)).map_err(io_error)?;
        writer.write(&batch).map_err(io_error)?;
        writer.close().map(|_| ()).map_err(io_error)
    })
}

/// The error of the system behind an error of the writer, if there is one.
fn io_error(error: ParquetError) -> io::Error {
    match error {
        ParquetError::External(error) => match error.downcast::<io::Error>() {
            Ok(error) => *error,
            Err(error) => io::Error::other(error),
        },
        error => io::Error::other(error),
    }
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
    let index = table.column::<ListArray>("worst_index")?;
    (0..table.batch.num_rows())
        .map(|row| {
            let missing = |name| table.missing(name, row);
            let worst = match index.is_valid(row) {
                false => None,
                true => Some(Worst {
                    index: numbers(&index.value(row)).ok_or_else(|| missing("worst_index"))?,
                    want: at(want, row).ok_or_else(|| missing("worst_want"))?,
                    got: at(got, row).ok_or_else(|| missing("worst_got"))?,
                }),
            };
            Ok(Record {
                cell: text(cell, row).ok_or_else(|| missing("cell"))?.into(),
                recipe: text(recipe, row).ok_or_else(|| missing("recipe"))?.into(),
                phase: parse_phase(text(phase, row)).ok_or_else(|| missing("phase"))?,
                window: text(window, row).ok_or_else(|| missing("window"))?.into(),
                layer: table.layer(layer, row)?,
                site: text(site, row).ok_or_else(|| missing("site"))?.into(),
                metric: text(metric, row).ok_or_else(|| missing("metric"))?.into(),
                value: at(value, row).ok_or_else(|| missing("value"))?,
                n: at(n, row).ok_or_else(|| missing("n"))?,
                nonfinite_want: at(nonfinite_want, row).ok_or_else(|| missing("nonfinite_want"))?,
                nonfinite_got: at(nonfinite_got, row).ok_or_else(|| missing("nonfinite_got"))?,
                worst,
                failure: text(failure, row).map(|message| {
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
    (0..table.batch.num_rows())
        .map(|row| {
            let missing = |name| table.missing(name, row);
            Ok(Summary {
                recipe: text(recipe, row).ok_or_else(|| missing("recipe"))?.into(),
                phase: parse_phase(text(phase, row)).ok_or_else(|| missing("phase"))?,
                layer: table.layer(layer, row)?,
                site: text(site, row).ok_or_else(|| missing("site"))?.into(),
                metric: text(metric, row).ok_or_else(|| missing("metric"))?.into(),
                windows: at(windows, row)
                    .and_then(|n| u32::try_from(n).ok())
                    .ok_or_else(|| missing("windows"))?,
                mean: at(mean, row).ok_or_else(|| missing("mean"))?,
                min: at(min, row).ok_or_else(|| missing("min"))?,
                max: at(max, row).ok_or_else(|| missing("max"))?,
                ci_low: at(ci_low, row).ok_or_else(|| missing("ci_low"))?,
                ci_high: at(ci_high, row).ok_or_else(|| missing("ci_high"))?,
            })
        })
        .collect()
}

/// A Parquet file read whole, with errors that name the file and the column.
struct Table<'a> {
    path: &'a Path,
    batch: RecordBatch,
}

impl<'a> Table<'a> {
    fn read(path: &'a Path) -> Result<Self> {
        let wrong = |error: ParquetError| parquet_error(path, error);
        // Types are those of the file's own schema, whoever wrote it.
        let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
        let reader =
            ParquetRecordBatchReaderBuilder::try_new_with_options(input::open(path)?, options).map_err(wrong)?;
        let rows = usize::try_from(reader.metadata().file_metadata().num_rows()).unwrap_or(0);
        let schema = reader.schema().clone();
        let mut reader = reader.with_batch_size(rows.max(1)).build().map_err(wrong)?;
        let batch = match reader.next() {
            Some(batch) => batch.map_err(|error| parquet_error(path, error))?,
            None => RecordBatch::new_empty(schema),
        };
        if batch.num_rows() != rows {
            let found = batch.num_rows();
            return Err(Error::data(
                path,
                format!("has {found} rows, and says that it has {rows}"),
            ));
        }
        Ok(Self { path, batch })
    }

    fn column<T: Array + 'static>(&self, name: &str) -> Result<&T> {
        let column = self.batch.column_by_name(name).ok_or_else(|| {
            Error::data(
                self.path,
                format!("no column '{name}': not a file of this version of ulplab?"),
            )
        })?;
        column.as_any().downcast_ref().ok_or_else(|| {
            let found = column.data_type();
            Error::data(
                self.path,
                format!("column '{name}' is of {found}, which is none of ulplab's"),
            )
        })
    }

    fn text(&self, name: &str) -> Result<&StringArray> {
        self.column(name)
    }

    fn floats(&self, name: &str) -> Result<&Float64Array> {
        self.column(name)
    }

    fn counts(&self, name: &str) -> Result<&UInt64Array> {
        self.column(name)
    }

    fn layers(&self) -> Result<&Int32Array> {
        self.column("layer")
    }

    /// The layer in a row of [`Self::layers`]; none outside the layers.
    fn layer(&self, layers: &Int32Array, row: usize) -> Result<Option<u32>> {
        let layer = at(layers, row).map(u32::try_from).transpose();
        layer.map_err(|_| self.missing("layer", row))
    }

    fn missing(&self, column: &str, row: usize) -> Error {
        Error::data(
            self.path,
            format!("column '{column}', row {row}: no value, or not one of ulplab's"),
        )
    }
}

/// The number in a row; none if it is null.
fn at<T: ArrowPrimitiveType>(column: &PrimitiveArray<T>, row: usize) -> Option<T::Native> {
    column.is_valid(row).then(|| column.value(row))
}

fn text(column: &StringArray, row: usize) -> Option<&str> {
    column.is_valid(row).then(|| column.value(row))
}

/// All numbers of a list; none if it has a null, or is of another type.
fn numbers(list: &ArrayRef) -> Option<Vec<u64>> {
    let list = list.as_any().downcast_ref::<UInt64Array>()?;
    list.iter().collect()
}

fn parquet_error(path: &Path, error: impl std::fmt::Display) -> Error {
    Error::data(path, format!("cannot be read as Parquet: {error}"))
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
