//! The safetensors files of a checkpoint.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};

use reference::paths::TensorSpec;
use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;

use super::{decode, manifest};
use crate::error::did_you_mean;
use crate::tensorfile::folder::{Problems, Shards};
use crate::{Error, Result};

/// Every tensor of a checkpoint folder, memory-mapped and decoded to f32 on demand.
pub struct Tensors {
    folder: PathBuf,
    shards: Vec<Shard>,
    stored: BTreeMap<String, Stored>,
}

struct Shard {
    path: PathBuf,
    map: memmap2::Mmap,
}

struct Stored {
    shard: usize,
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Range<usize>,
}

impl Tensors {
    /// Opens `model.safetensors`, else the files named by `model.safetensors.index.json`, else every `*.safetensors` of
    /// the folder.
    pub fn open(folder: &Path) -> Result<Self> {
        let Shards { files, index } = Shards::of(folder)?;
        let mut tensors = Self {
            folder: folder.to_path_buf(),
            shards: Vec::new(),
            stored: BTreeMap::new(),
        };
        for path in files {
            tensors.add(path)?;
        }
        if let Some(index) = index {
            index.agrees(|name| Some(&tensors.shards[tensors.stored.get(name)?.shard].path))?;
        }
        Ok(tensors)
    }

    fn add(&mut self, path: PathBuf) -> Result<()> {
        let map = manifest::map(&path)?;
        let (header, metadata) = SafeTensors::read_metadata(&map).map_err(|error| describe(&path, &map, &error))?;
        let data = size_of::<u64>() + header;
        let mut twice = Problems::default();
        for name in metadata.offset_keys() {
            let Some(info) = metadata.info(&name) else { continue };
            let stored = Stored {
                shard: self.shards.len(),
                dtype: info.dtype,
                shape: info.shape.clone(),
                bytes: data + info.data_offsets.0..data + info.data_offsets.1,
            };
            if let Some(other) = self.stored.get(&name) {
                let other = self.shards[other.shard].path.display();
                twice.add(|| format!("tensor '{name}' is in {other} too"));
            }
            self.stored.insert(name, stored);
        }
        twice.into_result(&path)?;
        self.shards.push(Shard { path, map });
        Ok(())
    }

    /// Checks that all tensors a model needs are there, of the right shape, of a type ulplab reads, and with scales that
    /// fit; every problem is reported in one error. Returns the tensors that the model does not use.
    pub fn check(&self, needed: &[TensorSpec]) -> Result<Vec<String>> {
        let mut unused: BTreeSet<&str> = self.stored.keys().map(String::as_str).collect();
        for spec in needed {
            unused.remove(spec.name.as_str());
            if let Ok(Some((name, _))) = self.find_scale(&spec.name) {
                unused.remove(name.as_str());
            }
        }
        let mut problems = Problems::default();
        for spec in needed {
            let found = self.find(&spec.name, &spec.shape, spec.integer);
            if let Err(problem) = found {
                problems.add(|| problem + &self.hint(&spec.name, &unused));
            }
        }
        problems.into_result(&self.folder)?;
        Ok(unused.into_iter().map(str::to_string).collect())
    }

    /// A name near that of a missing tensor.
    fn hint(&self, name: &str, names: &BTreeSet<&str>) -> String {
        match self.stored.contains_key(name) {
            true => String::new(),
            false => did_you_mean(name, names.iter().copied()),
        }
    }

    /// A tensor as f32, times its scales; an element that is not finite is an error.
    pub fn floats(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
        let wrong = |message: String| Error::data(&self.folder, message);
        let stored = self.find(name, shape, false).map_err(wrong)?;
        let read =
            |stored: &Stored| decode::floats(stored.dtype, self.bytes(stored)).ok_or_else(|| unread(name, stored));
        let mut values = read(stored).map_err(wrong)?;
        if let Some((scales, block)) = self.scales_of(name, stored).map_err(wrong)? {
            decode::scale(&mut values, shape, &read(scales).map_err(wrong)?, &block);
        }
        if let Some(first) = values.iter().position(|value| !value.is_finite()) {
            let count = values[first..].iter().filter(|value| !value.is_finite()).count();
            let (index, value) = (unravel(first, shape), values[first]);
            let message = format!("tensor '{name}' has {count} values that are not finite, first {value} at {index:?}");
            return Err(Error::data(&self.shards[stored.shard].path, message));
        }
        Ok(values)
    }

    /// A tensor of ids; one outside `0 .. limit` is an error.
    pub fn integers(&self, name: &str, shape: &[usize], limit: usize) -> Result<Vec<u32>> {
        let wrong = |message: String| Error::data(&self.folder, message);
        let stored = self.find(name, shape, true).map_err(wrong)?;
        let values = decode::integers(stored.dtype, self.bytes(stored)).ok_or_else(|| wrong(unread(name, stored)))?;
        let id = |(i, &value): (usize, &i128)| match u32::try_from(value) {
            Ok(id) if (id as usize) < limit => Ok(id),
            _ => {
                let index = unravel(i, shape);
                let message = format!(
                    "tensor '{name}' has {value} at {index:?}, expected 0 … {}",
                    limit as i128 - 1
                );
                Err(Error::data(&self.shards[stored.shard].path, message))
            }
        };
        values.iter().enumerate().map(id).collect()
    }

    /// The tensor, if it is as the model needs it; else what is wrong.
    fn find(&self, name: &str, shape: &[usize], integer: bool) -> Result<&Stored, String> {
        let Some(stored) = self.stored.get(name) else {
            return Err(format!("tensor '{name}' {shape:?} is missing"));
        };
        let read = if integer { decode::is_integer } else { decode::is_float };
        if !read(stored.dtype) {
            return Err(unread(name, stored));
        }
        if stored.shape != shape {
            return Err(format!(
                "tensor '{name}' is {:?}, the model needs {shape:?}",
                stored.shape
            ));
        }
        self.scales_of(name, stored)?;
        Ok(stored)
    }

    /// The scales of a tensor that has to have some, with the block each covers.
    fn scales_of(&self, name: &str, weight: &Stored) -> Result<Option<(&Stored, Vec<usize>)>, String> {
        if !decode::needs_scale(weight.dtype) {
            return Ok(None);
        }
        let dtype = weight.dtype;
        let Some((scale_name, scale)) = self.find_scale(name)? else {
            return Err(format!(
                "tensor '{name}' is {dtype}, but has neither '{name}_scale' nor '{name}_scale_inv'"
            ));
        };
        if !decode::is_scale(scale.dtype) {
            return Err(format!(
                "scale '{scale_name}' is {}, expected F32, BF16, F16 or F8_E8M0",
                scale.dtype
            ));
        }
        match decode::block(&weight.shape, &scale.shape) {
            Some(block) => Ok(Some((scale, block))),
            None => Err(format!(
                "scale '{scale_name}' is {:?}, which is neither one per tensor, per row, per block of columns, nor per \
                 128 × 128 of {:?}",
                scale.shape, weight.shape
            )),
        }
    }

    fn find_scale(&self, name: &str) -> Result<Option<(String, &Stored)>, String> {
        let find = |suffix| {
            let name = format!("{name}_scale{suffix}");
            self.stored.get(&name).map(|stored| (name, stored))
        };
        match (find(""), find("_inv")) {
            (Some((a, _)), Some((b, _))) => Err(format!("tensor '{name}' has two scales, '{a}' and '{b}'")),
            (a, b) => Ok(a.or(b)),
        }
    }

    fn bytes(&self, stored: &Stored) -> &[u8] {
        &self.shards[stored.shard].map[stored.bytes.clone()]
    }
}

fn unread(name: &str, stored: &Stored) -> String {
    format!(
        "tensor '{name}' is stored as {}, which ulplab does not read here",
        stored.dtype
    )
}

/// The index of an element in every dimension.
fn unravel(mut flat: usize, shape: &[usize]) -> Vec<usize> {
    let mut index = vec![0; shape.len()];
    for (index, &size) in index.iter_mut().zip(shape).rev() {
        *index = flat % size;
        flat /= size;
    }
    index
}

/// Says what the safetensors crate found wrong, telling truncation from corruption.
fn describe(path: &Path, bytes: &[u8], error: &safetensors::SafeTensorError) -> Error {
    /// What is needed of a tensor's entry; `__metadata__` has none.
    #[derive(Deserialize)]
    struct Entry {
        #[serde(default)]
        data_offsets: (u64, u64),
    }
    let size = bytes.len() as u64;
    let Some(header) = bytes.first_chunk().map(|length| u64::from_le_bytes(*length)) else {
        return Error::data(path, format!("{size} bytes are too few for a safetensors file"));
    };
    if header > size - 8 {
        let message =
            format!("the header should have {header} bytes, the file has {size}: truncated, or not safetensors");
        return Error::data(path, message);
    }
    let entries: Result<BTreeMap<String, Entry>, _> = serde_json::from_slice(&bytes[8..8 + header as usize]);
    let end = entries
        .ok()
        .and_then(|entries| entries.values().map(|entry| entry.data_offsets.1).max());
    match end.and_then(|end| end.checked_add(8 + header)) {
        Some(expected) if expected > size => Error::data(
            path,
            format!("truncated: {size} bytes, but the header tells of {expected}"),
        ),
        _ => Error::data(path, format!("corrupt safetensors: {error}")),
    }
}
