//! Writes tables to Parquet files: named columns of nullable text, numbers and lists of them, compressed by zstd.

use std::io;
use std::path::Path;
use std::sync::Arc;

use parquet::basic::{Compression, ZstdLevel};
use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;

use ulplab_core::atomic::write_atomic;
use ulplab_core::{Error, Result};

/// A column: its declaration in the language of Parquet's schemas, its values without nulls, and their levels.
///
/// Levels are those of the format: a value has the highest definition level of its column, and the first value of a row has
/// repetition level 0.
pub struct Column {
    declaration: String,
    values: Values,
    definition: Vec<i16>,
    /// Only lists have repetition levels.
    repetition: Option<Vec<i16>>,
}

enum Values {
    Text(Vec<ByteArray>),
    F64(Vec<f64>),
    I64(Vec<i64>),
    I32(Vec<i32>),
}

impl Column {
    fn flat<T>(declaration: String, rows: impl Iterator<Item = Option<T>>, values: fn(Vec<T>) -> Values) -> Self {
        let rows: Vec<Option<T>> = rows.collect();
        Self {
            declaration,
            definition: rows.iter().map(|row| i16::from(row.is_some())).collect(),
            values: values(rows.into_iter().flatten().collect()),
            repetition: None,
        }
    }

    pub fn text<'a>(name: &str, rows: impl Iterator<Item = Option<&'a str>>) -> Self {
        let rows = rows.map(|row| row.map(ByteArray::from));
        Self::flat(format!("optional binary {name} (string);"), rows, Values::Text)
    }

    pub fn floats(name: &str, rows: impl Iterator<Item = Option<f64>>) -> Self {
        Self::flat(format!("optional double {name};"), rows, Values::F64)
    }

    pub fn counts(name: &str, rows: impl Iterator<Item = u64>) -> Self {
        let rows = rows.map(|count| Some(count.cast_signed()));
        Self::flat(format!("optional int64 {name} (integer(64,false));"), rows, Values::I64)
    }

    pub fn ints(name: &str, rows: impl Iterator<Item = Option<i32>>) -> Self {
        Self::flat(format!("optional int32 {name};"), rows, Values::I32)
    }

    /// Lists of counts.
    pub fn lists<'a>(name: &str, rows: impl Iterator<Item = Option<&'a [u64]>>) -> Self {
        let (mut values, mut definition, mut repetition) = (Vec::new(), Vec::new(), Vec::new());
        for row in rows {
            let items = row.unwrap_or_default();
            if items.is_empty() {
                definition.push(i16::from(row.is_some()));
                repetition.push(0);
            }
            for (at, item) in items.iter().enumerate() {
                definition.push(3);
                repetition.push(i16::from(at > 0));
                values.push(item.cast_signed());
            }
        }
        let items = "repeated group list { optional int64 item (integer(64,false)); }";
        Self {
            declaration: format!("optional group {name} (list) {{ {items} }}"),
            values: Values::I64(values),
            definition,
            repetition: Some(repetition),
        }
    }

    fn write<W: io::Write + Send>(
        &self,
        group: &mut SerializedRowGroupWriter<'_, W>,
    ) -> std::result::Result<(), ParquetError> {
        let missing = || ParquetError::General("there are more columns than the schema has".into());
        let mut column = group.next_column()?.ok_or_else(missing)?;
        let (definition, repetition) = (Some(&self.definition[..]), self.repetition.as_deref());
        match &self.values {
            Values::Text(values) => column
                .typed::<ByteArrayType>()
                .write_batch(values, definition, repetition),
            Values::F64(values) => column.typed::<DoubleType>().write_batch(values, definition, repetition),
            Values::I64(values) => column.typed::<Int64Type>().write_batch(values, definition, repetition),
            Values::I32(values) => column.typed::<Int32Type>().write_batch(values, definition, repetition),
        }?;
        column.close()
    }
}

/// Writes columns of the same length.
pub fn write(path: &Path, columns: &[Column]) -> Result<()> {
    let declared: String = columns.iter().map(|column| column.declaration.as_str()).collect();
    let schema = parse_message_type(&format!("message schema {{ {declared} }}"))
        .map_err(|error| Error::data(path, format!("cannot be declared as Parquet: {error}")))?;
    let compression = Compression::ZSTD(ZstdLevel::default());
    let properties = WriterProperties::builder().set_compression(compression).build();
    write_atomic(path, |file| {
        let write = || {
            let mut writer = SerializedFileWriter::new(file, Arc::new(schema), Arc::new(properties))?;
            let mut group = writer.next_row_group()?;
            columns.iter().try_for_each(|column| column.write(&mut group))?;
            group.close()?;
            writer.close()
        };
        write().map(drop).map_err(io_error)
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
