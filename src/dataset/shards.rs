//! The safetensors files of a checkpoint.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::ops::Range;
use std::path::{Component, Path, PathBuf};

use reference::paths::TensorSpec;
use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;

use super::{decode, manifest};
use crate::error::did_you_mean;
use crate::{Error, Result};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// Problems listed in full before only their number is told.
const LISTED: usize = 20;

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

/// `model.safetensors.index.json`; other keys (`metadata`) do not matter here.
#[derive(Deserialize)]
struct Index {
    /// File by tensor.
    weight_map: BTreeMap<String, String>,
}

impl Tensors {
    /// Opens `model.safetensors`, else the files named by `model.safetensors.index.json`, else every `*.safetensors` of
    /// the folder.
    pub fn open(folder: &Path) -> Result<Self> {
        let index_file = folder.join(INDEX);
        let index = match !folder.join(SINGLE).is_file() && index_file.is_file() {
            true => Some(read_index(&index_file)?),
            false => None,
        };
        let names = match &index {
            Some(index) => index.values().cloned().collect::<BTreeSet<_>>().into_iter().collect(),
            None => unindexed(folder)?,
        };
        let mut tensors = Self {
            folder: folder.to_path_buf(),
            shards: Vec::new(),
            stored: BTreeMap::new(),
        };
        for name in names {
            tensors.add(folder.join(name))?;
        }
        if let Some(index) = index {
            tensors.agrees(&index_file, &index)?;
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

    /// Whether every tensor is where the index says.
    fn agrees(&self, index_file: &Path, index: &BTreeMap<String, String>) -> Result<()> {
        let mut problems = Problems::default();
        for (name, file) in index {
            let found = self.stored.get(name).map(|stored| &self.shards[stored.shard].path);
            if found.is_some_and(|path| path.ends_with(file)) {
                continue;
            }
            problems.add(|| match found {
                Some(path) => format!("tensor '{name}' should be in '{file}', but is in {}", path.display()),
                None => format!("tensor '{name}' should be in '{file}', but is not there"),
            });
        }
        problems.into_result(index_file)
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

fn read_index(file: &Path) -> Result<BTreeMap<String, String>> {
    let text = std::fs::read_to_string(file).map_err(Error::io(file, "read the index"))?;
    let Index { weight_map } = serde_json::from_str(&text).map_err(|error| Error::data(file, error.to_string()))?;
    let mut problems = Problems::default();
    for name in weight_map.values().collect::<BTreeSet<_>>() {
        let inside = Path::new(name)
            .components()
            .all(|part| matches!(part, Component::Normal(_)));
        if !inside {
            problems.add(|| format!("shard '{name}' is outside the checkpoint's folder"));
        } else if !file.with_file_name(name).is_file() {
            let tensors = weight_map.values().filter(|file| *file == name).count();
            problems.add(|| format!("shard '{name}' with {tensors} tensors is missing"));
        }
    }
    problems.into_result(file)?;
    Ok(weight_map)
}

/// Names of the safetensors files of a folder without an index.
fn unindexed(folder: &Path) -> Result<Vec<String>> {
    if folder.join(SINGLE).is_file() {
        return Ok(vec![SINGLE.into()]);
    }
    let list = || -> std::io::Result<Vec<String>> {
        std::fs::read_dir(folder)?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect()
    };
    let mut names = list().map_err(Error::io(folder, "list the checkpoint"))?;
    names.retain(|name| name.ends_with(".safetensors"));
    names.sort();
    if names.is_empty() {
        return Err(Error::data(
            folder,
            format!("no {SINGLE}, {INDEX} or other *.safetensors in this folder"),
        ));
    }
    // model-00001-of-00002.safetensors tells how many there must be.
    let of = |name: &String| {
        name.strip_suffix(".safetensors")?
            .rsplit_once("-of-")?
            .1
            .parse::<usize>()
            .ok()
    };
    if let Some(expected) = names.iter().filter_map(of).max()
        && names.len() != expected
    {
        let message = format!("{} of {expected} shards are there: {}", names.len(), names.join(", "));
        return Err(Error::data(folder, message));
    }
    Ok(names)
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

/// Problems that are reported together.
#[derive(Default)]
struct Problems {
    text: String,
    count: usize,
}

impl Problems {
    /// Words the problem only if it is among those listed.
    fn add(&mut self, problem: impl FnOnce() -> String) {
        if self.count < LISTED {
            write!(self.text, "\n  {}", problem()).expect("a String takes all");
        }
        self.count += 1;
    }

    fn into_result(self, file: &Path) -> Result<()> {
        let Self { text, count } = self;
        match count {
            0 => Ok(()),
            1 => Err(Error::data(file, text.trim_start())),
            _ if count <= LISTED => Err(Error::data(file, format!("{count} problems:{text}"))),
            _ => Err(Error::data(
                file,
                format!("{count} problems:{text}\n  … and {} more", count - LISTED),
            )),
        }
    }
}
