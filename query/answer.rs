//! The result of a query, in the format that the user wants.

use std::io::{self, Write};
use std::path::Path;

use comfy_table::{Cell, CellAlignment, Table, presets};
use polars::prelude::{
    AnyValue, Column, CsvWriter, DataFrame, JsonFormat, JsonWriter, ParquetWriter, PolarsResult, SerWriter,
};
use ulplab_core::error::{Error, Result};
use ulplab_core::text;

/// A format of results.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Aligned columns for people.
    Table,
    Csv,
    /// An array of objects. NaN and infinities are null.
    Json,
    Parquet,
}

impl Format {
    /// The format that the extension of a file stands for.
    ///
    /// # Errors
    /// If it stands for none.
    pub fn from_extension(file: &Path) -> Result<Self> {
        match file.extension().and_then(|extension| extension.to_str()) {
            Some("txt") => Ok(Self::Table),
            Some("csv") => Ok(Self::Csv),
            Some("json") => Ok(Self::Json),
            Some("parquet") => Ok(Self::Parquet),
            _ => Err(Error::Usage(format!(
                "{}: its extension stands for no format; expected .csv, .json, .parquet or .txt, or --format",
                file.display()
            ))),
        }
    }

    /// Writes a result. One without rows has its header.
    ///
    /// # Errors
    /// If `out` cannot be written.
    pub fn write(self, mut frame: DataFrame, mut out: impl Write) -> io::Result<()> {
        let written = match self {
            Self::Table => return writeln!(out, "{}", table(&frame)),
            Self::Csv => flat(frame).and_then(|mut frame| CsvWriter::new(&mut out).finish(&mut frame)),
            Self::Json => {
                let mut writer = JsonWriter::new(&mut out).with_json_format(JsonFormat::Json);
                writer.finish(&mut frame).and_then(|()| Ok(writeln!(out)?))
            }
            Self::Parquet => ParquetWriter::new(&mut out).finish(&mut frame).map(drop),
        };
        written.map_err(io::Error::other)
    }
}

fn table(frame: &DataFrame) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    let aligned = |column: &Column, text: String| {
        let right = column.dtype().is_numeric();
        Cell::new(text).set_alignment(if right {
            CellAlignment::Right
        } else {
            CellAlignment::Left
        })
    };
    let titles = frame.columns().iter();
    table.set_header(titles.map(|column| aligned(column, text::shown(column.name()))));
    for row in 0..frame.height() {
        let cells = frame.columns().iter();
        table.add_row(cells.map(|column| aligned(column, shown(&column.get(row).unwrap_or(AnyValue::Null)))));
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    let lines: Vec<String> = table.lines().map(|line| line.trim_end().to_string()).collect();
    lines.join("\n")
}

/// A value in one line; nothing for null.
fn shown(value: &AnyValue) -> String {
    match value {
        AnyValue::Null => String::new(),
        AnyValue::String(value) => text::shown(value),
        AnyValue::StringOwned(value) => text::shown(value),
        AnyValue::Float32(value) => value.to_string(),
        AnyValue::Float64(value) => text::number(*value),
        AnyValue::List(values) => {
            let values: Vec<String> = values.iter().map(|value| shown(&value)).collect();
            format!("[{}]", values.join(", "))
        }
        other => text::shown(&other.to_string()),
    }
}

/// The frame with texts for lists, which CSV does not have.
fn flat(frame: DataFrame) -> PolarsResult<DataFrame> {
    let texts = |column: &Column| {
        let rows = (0..column.len()).map(|row| match column.get(row) {
            Ok(AnyValue::Null) | Err(_) => None,
            Ok(value) => Some(shown(&value)),
        });
        let rows: Vec<Option<String>> = rows.collect();
        Column::new(column.name().clone(), rows)
    };
    let columns = frame.columns().iter();
    let columns = columns.map(|column| {
        if column.dtype().is_nested() {
            texts(column)
        } else {
            column.clone()
        }
    });
    DataFrame::new_infer_height(columns.collect())
}
