//! Tables in Parquet files: named columns of nullable text, numbers and lists of them, compressed by zstd.
//!
//! Levels are those of the format: a value that is there has the highest definition level of its column, and the first of a row
//! has repetition level 0.

use std::io;
use std::path::Path;
use std::sync::Arc;

use parquet::basic::{Compression, Type as Physical, ZstdLevel};
use parquet::column::reader::{ColumnReader, get_typed_column_reader};
use parquet::data_type::{ByteArray, ByteArrayType, DataType, DoubleType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::ColumnDescriptor;

use ulplab_core::atomic::write_atomic;
use ulplab_core::input;
use ulplab_core::{Error, Result};

/// What a column has in its rows; nothing where it is null.
pub enum Values {
    Text(Vec<Option<String>>),
    Float(Vec<Option<f64>>),
    Count(Vec<Option<u64>>),
    Int(Vec<Option<i32>>),
    Counts(Vec<Option<Vec<u64>>>),
}

/// A column with its name.
pub type Column = (&'static str, Values);

impl Values {
    /// The column in the language of Parquet's schemas.
    fn declaration(&self, name: &str) -> String {
        match self {
            Self::Text(_) => format!("optional binary {name} (string);"),
            Self::Float(_) => format!("optional double {name};"),
            Self::Count(_) => format!("optional int64 {name} (integer(64,false));"),
            Self::Int(_) => format!("optional int32 {name};"),
            Self::Counts(_) => format!(
                "optional group {name} (list) {{ repeated group list {{ optional int64 item (integer(64,false)); }} }}"
            ),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Text(rows) => rows.len(),
            Self::Float(rows) => rows.len(),
            Self::Count(rows) => rows.len(),
            Self::Int(rows) => rows.len(),
            Self::Counts(rows) => rows.len(),
        }
    }

    fn write<W: io::Write + Send>(
        &self,
        group: &mut SerializedRowGroupWriter<'_, W>,
    ) -> std::result::Result<(), ParquetError> {
        match self {
            Self::Text(rows) => flat::<ByteArrayType, _>(group, rows, |text| ByteArray::from(text.as_str())),
            Self::Float(rows) => flat::<DoubleType, _>(group, rows, |value| *value),
            Self::Count(rows) => flat::<Int64Type, _>(group, rows, |count| count.cast_signed()),
            Self::Int(rows) => flat::<Int32Type, _>(group, rows, |value| *value),
            Self::Counts(rows) => {
                let (mut definition, mut repetition, mut values) = (Vec::new(), Vec::new(), Vec::new());
                for row in rows {
                    let items = row.as_deref().unwrap_or_default();
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
                put::<Int64Type>(group, &values, &definition, Some(&repetition))
            }
        }
    }
}

fn flat<T: DataType, V>(
    group: &mut SerializedRowGroupWriter<'_, impl io::Write + Send>,
    rows: &[Option<V>],
    stored: impl Fn(&V) -> T::T,
) -> std::result::Result<(), ParquetError> {
    let definition: Vec<i16> = rows.iter().map(|row| i16::from(row.is_some())).collect();
    let values: Vec<T::T> = rows.iter().flatten().map(stored).collect();
    put::<T>(group, &values, &definition, None)
}

/// Writes the next column.
fn put<T: DataType>(
    group: &mut SerializedRowGroupWriter<'_, impl io::Write + Send>,
    values: &[T::T],
    definition: &[i16],
    repetition: Option<&[i16]>,
) -> std::result::Result<(), ParquetError> {
    let Some(mut column) = group.next_column()? else {
        return Err(ParquetError::General(
            "there are more columns than the schema has".into(),
        ));
    };
    column.typed::<T>().write_batch(values, Some(definition), repetition)?;
    column.close()
}

/// Writes columns of the same length.
pub fn write(path: &Path, columns: &[Column]) -> Result<()> {
    let declared: String = columns.iter().map(|(name, values)| values.declaration(name)).collect();
    let schema = parse_message_type(&format!("message schema {{ {declared} }}"))
        .map_err(|error| Error::data(path, format!("cannot be declared as Parquet: {error}")))?;
    let compression = Compression::ZSTD(ZstdLevel::default());
    let properties = WriterProperties::builder().set_compression(compression).build();
    debug_assert!(columns.windows(2).all(|pair| pair[0].1.len() == pair[1].1.len()));
    write_atomic(path, |file| {
        let mut writer = SerializedFileWriter::new(file, Arc::new(schema), Arc::new(properties)).map_err(io_error)?;
        let mut group = writer.next_row_group().map_err(io_error)?;
        for (_, values) in columns {
            values.write(&mut group).map_err(io_error)?;
        }
        group.close().map_err(io_error)?;
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

/// A Parquet file, with errors that name the file and the column.
pub struct Table<'a> {
    path: &'a Path,
    file: SerializedFileReader<std::fs::File>,
    /// How many rows it says that it has.
    pub rows: usize,
}

/// The levels of a column, and its values that are there.
struct Stored<T> {
    values: Vec<T>,
    definition: Vec<i16>,
    repetition: Vec<i16>,
}

impl<'a> Table<'a> {
    pub fn open(path: &'a Path) -> Result<Self> {
        let file = SerializedFileReader::new(input::open(path)?).map_err(|error| wrong(path, error))?;
        let rows = usize::try_from(file.metadata().file_metadata().num_rows()).unwrap_or(0);
        Ok(Self { path, file, rows })
    }

    pub fn text(&self, name: &str) -> Result<Vec<Option<String>>> {
        let text = |bytes: ByteArray| {
            let text = std::str::from_utf8(bytes.data()).map(String::from);
            text.map_err(|error| wrong(self.path, format!("column '{name}': {error}")))
        };
        let rows = self.optional::<ByteArrayType>(name)?;
        rows.into_iter().map(|row| row.map(text).transpose()).collect()
    }

    pub fn floats(&self, name: &str) -> Result<Vec<Option<f64>>> {
        self.optional::<DoubleType>(name)
    }

    pub fn counts(&self, name: &str) -> Result<Vec<Option<u64>>> {
        let rows = self.optional::<Int64Type>(name)?;
        Ok(rows.into_iter().map(|row| row.map(i64::cast_unsigned)).collect())
    }

    pub fn ints(&self, name: &str) -> Result<Vec<Option<i32>>> {
        self.optional::<Int32Type>(name)
    }

    /// Lists of counts, which have no nulls in them.
    pub fn lists(&self, name: &str) -> Result<Vec<Option<Vec<u64>>>> {
        let (leaf, descriptor) = self.leaf(name, Physical::INT64, 1)?;
        let whole = descriptor.max_def_level();
        // Below it, a list is null; at it, empty.
        let schema = self.file.metadata().file_metadata().schema_descr();
        let empty = i16::from(schema.get_column_root(leaf).is_optional());
        let stored = self.stored::<Int64Type>(name, leaf, &descriptor)?;
        let mut values = stored.values.into_iter();
        let mut rows: Vec<Option<Vec<u64>>> = Vec::with_capacity(self.rows);
        for (definition, repetition) in stored.definition.iter().zip(&stored.repetition) {
            if *repetition == 0 {
                rows.push((*definition >= empty).then(Vec::new));
            }
            let (row, list) = (rows.len(), rows.last_mut().and_then(Option::as_mut));
            match (list, values.len()) {
                (Some(list), 1..) if *definition == whole => list.extend(values.next().map(i64::cast_unsigned)),
                (Some(_), _) if *definition > empty => return Err(self.missing(name, row - 1)),
                _ => {}
            }
        }
        self.all(name, rows)
    }

    /// The values of a column without lists, row by row.
    fn optional<T: DataType>(&self, name: &str) -> Result<Vec<Option<T::T>>> {
        let (leaf, descriptor) = self.leaf(name, T::get_physical_type(), 0)?;
        let whole = descriptor.max_def_level();
        let stored = self.stored::<T>(name, leaf, &descriptor)?;
        if whole == 0 {
            return self.all(name, stored.values.into_iter().map(Some).collect());
        }
        let mut values = stored.values.into_iter();
        let row = |definition: &i16| (*definition == whole).then(|| values.next()).flatten();
        self.all(name, stored.definition.iter().map(row).collect())
    }

    /// The rows of a column, if these are all.
    fn all<T>(&self, name: &str, rows: Vec<T>) -> Result<Vec<T>> {
        if rows.len() == self.rows {
            return Ok(rows);
        }
        let (found, said) = (rows.len(), self.rows);
        Err(Error::data(
            self.path,
            format!("column '{name}' has {found} rows, and the file says that it has {said}"),
        ))
    }

    /// Where a column is, if it has that type, and lists so deep.
    fn leaf(&self, name: &str, physical: Physical, depth: i16) -> Result<(usize, Arc<ColumnDescriptor>)> {
        let schema = self.file.metadata().file_metadata().schema_descr();
        let mut columns = schema.columns().iter().enumerate();
        let found = columns.find(|(_, column)| column.path().parts().first().is_some_and(|part| part == name));
        let Some((leaf, column)) = found else {
            return Err(Error::data(
                self.path,
                format!("no column '{name}': not a file of this version of ulplab?"),
            ));
        };
        if column.physical_type() != physical || column.max_rep_level() != depth {
            let (found, lists) = (column.physical_type(), column.max_rep_level());
            return Err(Error::data(
                self.path,
                format!("column '{name}' is of {found} in {lists} lists, which is none of ulplab's"),
            ));
        }
        Ok((leaf, column.clone()))
    }

    fn stored<T: DataType>(&self, name: &str, leaf: usize, descriptor: &ColumnDescriptor) -> Result<Stored<T::T>> {
        let mut stored = Stored {
            values: Vec::new(),
            definition: Vec::new(),
            repetition: Vec::new(),
        };
        for group in 0..self.file.num_row_groups() {
            let reader = self
                .file
                .get_row_group(group)
                .and_then(|group| group.get_column_reader(leaf));
            let reader = reader.map_err(|error| wrong(self.path, format!("column '{name}': {error}")))?;
            read::<T>(reader, descriptor, &mut stored)
                .map_err(|error| wrong(self.path, format!("column '{name}': {error}")))?;
        }
        Ok(stored)
    }

    /// The error of a value that must be there.
    pub fn missing(&self, column: &str, row: usize) -> Error {
        Error::data(
            self.path,
            format!("column '{column}', row {row}: no value, or not one of ulplab's"),
        )
    }
}

/// Reads a column of a row group behind what is there.
fn read<T: DataType>(
    reader: ColumnReader,
    descriptor: &ColumnDescriptor,
    stored: &mut Stored<T::T>,
) -> std::result::Result<(), ParquetError> {
    let mut reader = get_typed_column_reader::<T>(reader);
    loop {
        let definition = (descriptor.max_def_level() > 0).then_some(&mut stored.definition);
        let repetition = (descriptor.max_rep_level() > 0).then_some(&mut stored.repetition);
        let (records, ..) = reader.read_records(usize::MAX, definition, repetition, &mut stored.values)?;
        if records == 0 {
            return Ok(());
        }
    }
}

fn wrong(path: &Path, error: impl std::fmt::Display) -> Error {
    Error::data(path, format!("cannot be read as Parquet: {error}"))
}
