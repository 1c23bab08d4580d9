//! Writes safetensors one tensor at a time, so that only one tensor needs to be in memory.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::Path;

use safetensors::Dtype;
use serde_json::{Map, Value, json};

use super::{Metadata, byte_len};
use crate::atomic::{tidy, write_atomic};
use crate::error::{Error, Result};

/// Name, type and shape of a tensor to be written.
#[derive(Clone, Debug)]
pub struct Slot {
    /// Name of the tensor; unique within the file.
    pub name: String,
    /// Type of the elements.
    pub dtype: Dtype,
    /// Shape in elements of `dtype`.
    pub shape: Vec<usize>,
}

impl Slot {
    /// Creates the slot of a tensor with this name, type and shape.
    pub fn new(name: impl Into<String>, dtype: Dtype, shape: impl Into<Vec<usize>>) -> Self {
        let (name, shape) = (name.into(), shape.into());
        Self { name, dtype, shape }
    }
}

/// Writes the tensors of a file in any order, whole or in parts.
pub struct Writer<'a> {
    out: &'a mut BufWriter<File>,
    /// Offset in the file and length of each tensor, in bytes.
    places: HashMap<String, (u64, usize)>,
}

impl Writer<'_> {
    /// Writes a whole tensor.
    ///
    /// # Panics
    /// If no tensor of the header has that name, or the tensor has another size than `bytes`. The header with the sizes is
    /// already written.
    pub fn put(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        assert_eq!(bytes.len(), self.places[name].1, "bytes of tensor '{name}'");
        self.put_part(name, 0, bytes)
    }

    /// Writes a part of a tensor, from byte `at` of the tensor on.
    ///
    /// # Panics
    /// If no tensor of the header has that name, or the part ends after the tensor.
    pub fn put_part(&mut self, name: &str, at: usize, bytes: &[u8]) -> io::Result<()> {
        let (start, len) = self.places[name];
        assert!(at + bytes.len() <= len, "bytes of tensor '{name}'");
        self.out.seek(SeekFrom::Start(start + at as u64))?;
        self.out.write_all(bytes)
    }
}

/// Writes a safetensors file atomically; `fill` must write every byte of every tensor. In the file, tensors with larger elements
/// come first, so that all tensors are aligned.
pub fn write_safetensors(
    path: &Path,
    mut slots: Vec<Slot>,
    metadata: &Metadata,
    fill: impl FnOnce(&mut Writer) -> io::Result<()>,
) -> Result<()> {
    tidy(path);
    slots.sort_by_key(|slot| std::cmp::Reverse(slot.dtype.bitsize()));
    let (mut header, mut places, mut end) = (Map::new(), HashMap::new(), 0);
    if !metadata.is_empty() {
        header.insert("__metadata__".into(), json!(metadata));
    }
    for Slot { name, dtype, shape } in slots {
        let len = byte_len(dtype, &shape).map_err(|why| Error::data(path, format!("tensor '{name}': {why}")))?;
        let entry = json!({ "dtype": dtype, "shape": shape, "data_offsets": [end, end + len] });
        if name == "__metadata__" || header.insert(name.clone(), entry).is_some() {
            return Err(Error::data(path, format!("two tensors would be called '{name}'")));
        }
        places.insert(name, (end as u64, len));
        end += len;
    }
    let mut header = Value::Object(header).to_string().into_bytes();
    header.resize(header.len().next_multiple_of(8), b' ');
    for (start, _) in places.values_mut() {
        *start += 8 + header.len() as u64;
    }
    write_atomic(path, |out| {
        out.write_all(&(header.len() as u64).to_le_bytes())?;
        out.write_all(&header)?;
        fill(&mut Writer { out, places })
    })
}
