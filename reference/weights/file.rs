//! The tensors of safetensors files.

mod scales;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use safetensors::{Dtype, SafeTensorError, SafeTensors};
use serde::Deserialize;

use scales::mxfp4_names;

use super::files::{self, Files};
use super::{Error, decode, stacks};
use crate::paths::{TensorSpec, Weights};

/// The bytes of a file: mapped, or in memory.
type Bytes = Box<dyn AsRef<[u8]> + Send + Sync>;

/// The tensors of a checkpoint, decoded when they are read. The [module](super) says what is read.
pub struct Safetensors {
    path: PathBuf,
    files: Vec<Opened>,
    stored: BTreeMap<String, Stored>,
    /// Names in the files by those that models ask for, where these differ.
    renamed: BTreeMap<String, String>,
    /// Matrices within stacks of experts, each with the name of its stack.
    stacked: BTreeMap<String, (String, Stored)>,
    /// Rows and columns of the blocks that share a scale, if that is known.
    block: Option<[usize; 2]>,
}

struct Opened {
    path: PathBuf,
    bytes: Bytes,
}

struct Stored {
    file: usize,
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Range<usize>,
}

impl Safetensors {
    /// Opens a file, or of a folder `model.safetensors`, else the files named by `model.safetensors.index.json`, else every
    /// `*.safetensors`. Files are mapped into memory: nobody may shorten them while the tensors are read.
    ///
    /// # Errors
    /// Files that are missing, truncated or no safetensors; tensors in two files; an index that does not agree with its files.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let Files { paths, told } = Files::of(path)?;
        let map = |path: PathBuf| {
            let bytes: Bytes = Box::new(files::map(&path)?);
            Ok((path, bytes))
        };
        let opened = Self::of_bytes(path, paths.into_iter().map(map).collect::<Result<Vec<_>, Error>>()?)?;
        for (tensor, expected) in told {
            let found = opened.file_of(&tensor);
            if found != Some(&expected) {
                let found = found.map_or("in none of the files".into(), |found| format!("in {}", found.display()));
                return Err(Error::Format {
                    path: path.to_path_buf(),
                    message: format!("tensor '{tensor}' should be in {}, but is {found}", expected.display()),
                });
            }
        }
        Ok(opened)
    }

    /// The tensors of files whose bytes the caller has; their paths, and `path` for all of them, stand in errors only.
    ///
    /// # Errors
    /// Bytes that are truncated or no safetensors, and tensors in two files.
    pub fn of_bytes(
        path: impl Into<PathBuf>,
        files: impl IntoIterator<Item = (PathBuf, Bytes)>,
    ) -> Result<Self, Error> {
        let mut opened = Self {
            path: path.into(),
            files: Vec::new(),
            stored: BTreeMap::new(),
            renamed: BTreeMap::new(),
            stacked: BTreeMap::new(),
            block: None,
        };
        for (path, bytes) in files {
            opened.add(path, bytes)?;
        }
        Ok(opened)
    }

    /// Says of how many rows and columns blocks with a scale are, as `weight_block_size` of a configuration does. Else it is known from
    /// the shapes of the scales, which leaves it open for sizes that are no multiples.
    #[must_use]
    pub fn in_blocks(mut self, block: Option<[usize; 2]>) -> Self {
        self.block = block;
        self
    }

    fn add(&mut self, path: PathBuf, file: Bytes) -> Result<(), Error> {
        let bytes = (*file).as_ref();
        let read = SafeTensors::read_metadata(bytes);
        let (header, metadata) = read.map_err(|error| Error::Format {
            message: describe(bytes, &error),
            path: path.clone(),
        })?;
        let data = size_of::<u64>() + header;
        let mut twice = Vec::new();
        for name in metadata.offset_keys() {
            let Some(info) = metadata.info(&name) else { continue };
            let stored = Stored {
                file: self.files.len(),
                dtype: info.dtype,
                shape: info.shape.clone(),
                bytes: data + info.data_offsets.0..data + info.data_offsets.1,
            };
            if !decode::needs_scale(stored.dtype) {
                self.unstack(&name, &stored);
            }
            if let Some(new) = stacks::renamed(&name) {
                self.renamed.entry(new).or_insert_with(|| name.clone());
            }
            if let Some(other) = self.stored.insert(name.clone(), stored) {
                twice.push((name, self.files[other.file].path.clone()));
            }
        }
        if !twice.is_empty() {
            return Err(Error::Twice { path, tensors: twice });
        }
        self.files.push(Opened { path, bytes: file });
        Ok(())
    }

    /// Remembers the matrices of a stack of experts; their bytes are a part of its own.
    fn unstack(&mut self, name: &str, stack: &Stored) {
        let elements = stack.shape.iter().product::<usize>().max(1);
        let size = stack.bytes.len() / elements;
        let mut start = stack.bytes.start;
        for (matrix, shape) in stacks::matrices(name, &stack.shape) {
            let end = start + shape[0] * shape[1] * size;
            let stored = Stored {
                file: stack.file,
                dtype: stack.dtype,
                shape: shape.to_vec(),
                bytes: start..end,
            };
            start = end;
            self.stacked.insert(matrix, (name.into(), stored));
        }
    }

    /// The tensor of a file that has this name, or is read for it, and its name there.
    fn entry(&self, name: &str) -> Option<(&str, &Stored)> {
        let own = self.stored.get_key_value(name);
        let entry = own.or_else(|| self.stored.get_key_value(self.renamed.get(name)?));
        entry.map(|(name, stored)| (name.as_str(), stored))
    }

    /// The name that models ask for a tensor by, of its name in published files.
    pub fn asked(name: &str) -> String {
        stacks::renamed(name).unwrap_or_else(|| name.into())
    }

    /// The names of all tensors, scales among them, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.stored.keys().map(String::as_str)
    }

    /// The shape of a tensor as stored; `None` if there is no such tensor.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.entry(name).map(|(_, stored)| &stored.shape[..])
    }

    /// The bytes of a tensor as stored; `None` if there is no such tensor.
    pub fn raw(&self, name: &str) -> Option<&[u8]> {
        self.entry(name).map(|(_, stored)| self.bytes(stored))
    }

    /// How many tensors the files have, and how many numbers all of them.
    pub fn size(&self) -> (usize, usize) {
        let elements = self
            .stored
            .values()
            .map(|stored| stored.shape.iter().product::<usize>());
        (self.stored.len(), elements.sum())
    }

    /// The file that a tensor is in.
    pub fn file_of(&self, name: &str) -> Option<&PathBuf> {
        self.entry(name).map(|(_, stored)| &self.files[stored.file].path)
    }

    /// Checks, without decoding anything, that a tensor is there, of this shape, of a type that is read, and with a scale
    /// that fits if it needs one.
    ///
    /// # Errors
    /// What is wrong.
    pub fn check(&self, spec: &TensorSpec) -> Result<(), Error> {
        if !spec.integer && self.mxfp4(&spec.name, &spec.shape)?.is_some() {
            return Ok(());
        }
        if self.in_parts(spec) {
            return stacks::matrices(&spec.name, &spec.shape)
                .try_for_each(|(name, shape)| self.find(&name, &shape, false).map(|_| ()));
        }
        self.find(&spec.name, &spec.shape, spec.integer).map(|_| ())
    }

    /// Whether a stack is not there, and the first of its matrices is.
    fn in_parts(&self, TensorSpec { name, shape, .. }: &TensorSpec) -> bool {
        let first = || stacks::matrices(name, shape).next();
        self.entry(name).is_none() && first().is_some_and(|(first, _)| self.entry(&first).is_some())
    }

    /// Tensors that are none of these, nor the scales that they are multiplied by, sorted.
    pub fn unused(&self, needed: &[TensorSpec]) -> Vec<&str> {
        let mut unused: BTreeSet<&str> = self.names().collect();
        let mut take = |name: &str| {
            let Some((own, stored)) = self.entry(name) else {
                return false;
            };
            unused.remove(own);
            // Two scales of one tensor are an error, and neither is used.
            if let [(_, own, _)] = &self.scales(name)[..]
                && (decode::needs_scale(stored.dtype) || decode::is_packed(stored.dtype))
            {
                unused.remove(own);
            }
            true
        };
        for spec in needed {
            if self.in_parts(spec) {
                let _ = stacks::matrices(&spec.name, &spec.shape).all(|(name, _)| take(&name));
            } else if !take(&spec.name) {
                mxfp4_names(&spec.name).iter().for_each(|name| _ = take(name));
                if let Some((stack, _)) = self.stacked.get(&spec.name) {
                    take(stack);
                }
            }
        }
        unused.into_iter().collect()
    }

    /// A tensor as f32, times its scales.
    ///
    /// # Errors
    /// A tensor that is missing, of another shape, of a type that is not read, without a scale that it needs, or with elements
    /// that are not finite.
    pub fn floats(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, Error> {
        let spec = || TensorSpec {
            name: name.into(),
            shape: shape.to_vec(),
            integer: false,
        };
        let (stored, values) = match self.mxfp4(name, shape)? {
            Some((codes, scales, sizes)) => {
                let values = decode::mxfp4_columns(self.bytes(codes), self.bytes(scales), sizes);
                (codes, values)
            }
            None if self.in_parts(&spec()) => {
                let mut values = Vec::new();
                for (name, shape) in stacks::matrices(name, shape) {
                    values.extend(self.floats(&name, &shape)?);
                }
                return Ok(values);
            }
            None => {
                let stored = self.find(name, shape, false)?;
                let mut values = match decode::is_packed(stored.dtype) {
                    true => decode::e2m1_pairs(self.bytes(stored)),
                    false => self.decoded(name, stored)?,
                };
                if let Some((scale, block)) = self.scale_of(name, stored)? {
                    let scales = decode::scales(scale.dtype, self.bytes(scale));
                    let scales = scales.ok_or_else(|| self.wrong_type(name, scale, decode::SCALES))?;
                    decode::scale(&mut values, shape, &scales, &block);
                }
                (stored, values)
            }
        };
        let Some(first) = values.iter().position(|value| !value.is_finite()) else {
            return Ok(values);
        };
        Err(Error::NotFinite {
            path: self.file(stored).into(),
            tensor: name.into(),
            count: values[first..].iter().filter(|value| !value.is_finite()).count(),
            first: values[first],
            index: unravel(first, shape),
        })
    }

    /// The codes of a tensor that is stored as E4M3 with f32 scales, one for every `cols` columns of a row or for what there is of
    /// them, and its scales; none if it is stored otherwise.
    ///
    /// # Errors
    /// As [`Safetensors::floats`], but for elements that are not finite.
    pub fn e4m3_rows(&self, name: &str, shape: &[usize], cols: usize) -> Result<Option<(&[u8], Vec<f32>)>, Error> {
        let stored = self.find(name, shape, false)?;
        let Some((scale, block)) = self.scale_of(name, stored)? else {
            return Ok(None);
        };
        let (of_rows, of_cols) = block.split_at(block.len().saturating_sub(1));
        let whole = shape.last().map_or(0, |width| cols.min(*width));
        let types = (stored.dtype, scale.dtype) == (Dtype::F8_E4M3, Dtype::F32);
        if !types || of_rows.iter().any(|rows| *rows != 1) || of_cols != [whole] {
            return Ok(None);
        }
        Ok(Some((self.bytes(stored), self.decoded(name, scale)?)))
    }

    /// A tensor of integers from 0 to `limit − 1`.
    ///
    /// # Errors
    /// A tensor that is missing, of another shape, of no integer type, or with an integer out of range.
    pub fn integers(&self, name: &str, shape: &[usize], limit: u32) -> Result<Vec<u32>, Error> {
        self.up_to(name, shape, i128::from(limit) - 1)
    }

    fn up_to(&self, name: &str, shape: &[usize], most: i128) -> Result<Vec<u32>, Error> {
        let stored = self.find(name, shape, true)?;
        let integers = decode::integers(stored.dtype, self.bytes(stored));
        let integers = integers.ok_or_else(|| self.wrong_type(name, stored, decode::INTEGERS))?;
        let small = |(i, &found): (usize, &i128)| match u32::try_from(found) {
            Ok(small) if found <= most => Ok(small),
            _ => Err(Error::Integer {
                path: self.file(stored).into(),
                tensor: name.into(),
                found,
                most,
                index: unravel(i, shape),
            }),
        };
        integers.iter().enumerate().map(small).collect()
    }

    /// The tensor, if it is as it is needed.
    fn find(&self, name: &str, shape: &[usize], integer: bool) -> Result<&Stored, Error> {
        let stacked = || self.stacked.get(name).map(|(_, matrix)| matrix);
        let Some(stored) = self.entry(name).map(|(_, stored)| stored).or_else(stacked) else {
            return Err(Error::Missing {
                path: self.path.clone(),
                tensor: name.into(),
                expected: shape.to_vec(),
            });
        };
        if !integer && self.packs(name, stored, shape) {
            return Ok(stored);
        }
        let (read, types): (fn(Dtype) -> bool, _) = match integer {
            true => (decode::is_integer, decode::INTEGERS),
            false => (decode::is_float, decode::FLOATS),
        };
        if !read(stored.dtype) {
            return Err(self.wrong_type(name, stored, types));
        }
        if stored.shape != shape {
            return Err(Error::Shape {
                path: self.file(stored).into(),
                tensor: name.into(),
                found: stored.shape.clone(),
                expected: shape.to_vec(),
            });
        }
        if !integer {
            self.scale_of(name, stored)?;
        }
        Ok(stored)
    }

    /// Whether a matrix of this shape is stored as pairs of E2M1 with a scale for every 32 columns of a row, as DeepSeek-V4's experts.
    fn packs(&self, name: &str, stored: &Stored, shape: &[usize]) -> bool {
        let &[outputs, inputs] = shape else { return false };
        let scales = self.scales(name);
        let [(_, _, scale)] = scales[..] else { return false };
        decode::is_packed(stored.dtype)
            && inputs.is_multiple_of(32)
            && stored.shape == [outputs, inputs / 2]
            && scale.shape == [outputs, inputs / 32]
            && decode::is_e8m0(scale.dtype)
    }

    fn decoded(&self, name: &str, stored: &Stored) -> Result<Vec<f32>, Error> {
        let values = decode::floats(stored.dtype, self.bytes(stored));
        values.ok_or_else(|| self.wrong_type(name, stored, decode::FLOATS))
    }

    fn wrong_type(&self, name: &str, stored: &Stored, expected: &'static str) -> Error {
        Error::Type {
            path: self.file(stored).into(),
            tensor: name.into(),
            found: stored.dtype.to_string(),
            expected,
        }
    }

    fn bytes(&self, stored: &Stored) -> &[u8] {
        let bytes = (*self.files[stored.file].bytes).as_ref();
        // Within the file, as `read_metadata` has checked.
        &bytes[stored.bytes.clone()]
    }

    fn file(&self, stored: &Stored) -> &Path {
        &self.files[stored.file].path
    }
}

impl Weights for Safetensors {
    type Error = Error;

    fn floats(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, Error> {
        Safetensors::floats(self, name, shape)
    }

    fn integers(&mut self, name: &str, shape: &[usize]) -> Result<Vec<u32>, Error> {
        self.up_to(name, shape, u32::MAX.into())
    }
}

/// The tensors are too many to be shown.
impl fmt::Debug for Safetensors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (path, tensors) = (&self.path, self.stored.len());
        f.debug_struct("Safetensors")
            .field("path", path)
            .field("tensors", &tensors)
            .finish()
    }
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
fn describe(bytes: &[u8], error: &SafeTensorError) -> String {
    /// What is needed of a tensor's entry; `__metadata__` has none.
    #[derive(Deserialize)]
    struct Entry {
        #[serde(default)]
        data_offsets: (u64, u64),
    }
    let size = bytes.len() as u64;
    let Some(header) = bytes.first_chunk().map(|length| u64::from_le_bytes(*length)) else {
        return format!("{size} bytes are too few for a safetensors file");
    };
    if header > size - 8 {
        return format!("the header should have {header} bytes, the file has {size}: truncated, or not safetensors");
    }
    let entries: Result<BTreeMap<String, Entry>, _> = serde_json::from_slice(&bytes[8..8 + header as usize]);
    let end = entries
        .ok()
        .and_then(|entries| entries.values().map(|entry| entry.data_offsets.1).max());
    match end.and_then(|end| end.checked_add(8 + header)) {
        Some(expected) if expected > size => format!("truncated: {size} bytes, but the header tells of {expected}"),
        _ => format!("corrupt safetensors: {error}"),
    }
}
