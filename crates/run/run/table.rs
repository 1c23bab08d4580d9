//! Writes tables to Parquet files: named, nullable columns of text, numbers or lists of numbers, compressed by zstd.

use std::io;
use std::path::Path;
use std::sync::Arc;

use parquet::basic::{Compression, ZstdLevel};
use parquet::data_type::{ByteArray, ByteArrayType, DataType, DoubleType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use parquet::schema::parser::parse_message_type;

use ulplab_core::atomic::write_atomic;
use ulplab_core::{Error, Result};

/// A column: its declaration in Parquet's schema language, and a function that writes its values.
pub struct Column {
    declaration: String,
    write: Box<dyn Fn(&mut SerializedColumnWriter) -> Result<usize, ParquetError>>,
}

impl Column {
    /// Creates a column from its non-null values and their Parquet levels. A present value has the highest definition level of
    /// its column. The first value of a row has repetition level 0; only lists have repetition levels.
    fn new<D: DataType>(
        declaration: String,
        values: Vec<D::T>,
        definition: Vec<i16>,
        repetition: Option<Vec<i16>>,
    ) -> Self {
        let write = move |column: &mut SerializedColumnWriter| {
            let (definition, repetition) = (Some(&definition[..]), repetition.as_deref());
            column.typed::<D>().write_batch(&values, definition, repetition)
        };
        let write = Box::new(write);
        Self { declaration, write }
    }

    fn flat<D: DataType>(declaration: String, rows: impl Iterator<Item = Option<D::T>>) -> Self {
        let rows: Vec<Option<D::T>> = rows.collect();
        let definition = rows.iter().map(|row| i16::from(row.is_some())).collect();
        Self::new::<D>(declaration, rows.into_iter().flatten().collect(), definition, None)
    }

    pub fn text<'a>(name: &str, rows: impl Iterator<Item = Option<&'a str>>) -> Self {
        let rows = rows.map(|row| row.map(ByteArray::from));
        Self::flat::<ByteArrayType>(format!("optional binary {name} (string);"), rows)
    }

    pub fn floats(name: &str, rows: impl Iterator<Item = Option<f64>>) -> Self {
        Self::flat::<DoubleType>(format!("optional double {name};"), rows)
    }

    pub fn counts(name: &str, rows: impl Iterator<Item = u64>) -> Self {
        let rows = rows.map(|count| Some(count.cast_signed()));
        Self::flat::<Int64Type>(format!("optional int64 {name} (integer(64,false));"), rows)
    }

    /// Creates a column of layers as nullable `i32`; null for sites outside layers.
    pub fn layers(rows: impl Iterator<Item = Option<u32>>) -> Self {
        let rows = rows.map(|layer| layer.map(|layer| layer as i32));
        Self::flat::<Int32Type>("optional int32 layer;".into(), rows)
    }

    /// Creates a column of lists of counts.
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
        let declaration = format!("optional group {name} (list) {{ {items} }}");
        Self::new::<Int64Type>(declaration, values, definition, Some(repetition))
    }
}

/// Writes columns, which must have the same length, to a Parquet file.
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
            for Column { write, .. } in columns {
                let missing = || ParquetError::General("there are more columns than the schema has".into());
                let mut column = group.next_column()?.ok_or_else(missing)?;
                write(&mut column)?;
                column.close()?;
            }
            group.close()?;
            writer.close()
        };
        write().map(drop).map_err(io_error)
    })
}

/// Extracts the I/O error from an error of the Parquet writer, if there is one.
fn io_error(error: ParquetError) -> io::Error {
    match error {
        ParquetError::External(error) => match error.downcast::<io::Error>() {
            Ok(error) => *error,
            Err(error) => io::Error::other(error),
        },
        error => io::Error::other(error),
    }
}
