//! The safetensors files of a checkpoint.

use std::path::{Path, PathBuf};

use reference::paths::TensorSpec;
use reference::weights::{Error as ReadError, Problem, Safetensors};

use super::unread;
use ulplab_core::error::did_you_mean;
use ulplab_core::tensorfile::Problems;
use ulplab_core::{Error, Result};

/// Every tensor of a checkpoint folder, memory-mapped and decoded to f32 on demand.
pub struct Tensors {
    folder: PathBuf,
    read: Safetensors,
}

impl Tensors {
    /// Opens `model.safetensors`, else the files named by `model.safetensors.index.json`, else every `*.safetensors` file of the
    /// folder.
    pub fn open(folder: &Path) -> Result<Self> {
        let opened = reference::tensorfile::TensorFile::open(folder).map_err(Into::into);
        Ok(Self {
            read: Safetensors::new(opened?),
            folder: folder.to_path_buf(),
        })
    }

    /// Sets the block shape `[rows, columns]` of the weights (the elements of a block share one scale), if it is known.
    #[must_use]
    pub fn in_blocks(mut self, block: Option<[usize; 2]>) -> Self {
        self.read = self.read.in_blocks(block);
        self
    }

    /// Returns the number of tensors, and the total number of their elements.
    pub fn size(&self) -> (usize, usize) {
        let tensors = self.read.files().tensors();
        let count = tensors.len();
        let numbers = tensors.map(|tensor| tensor.shape.iter().product::<usize>());
        (count, numbers.sum())
    }

    /// Checks that all tensors of a model are there, with the right shape, a type that ulplab reads, and scales of the right
    /// shape. One error reports all problems. For a wrong shape, the error names the keys of the configuration (`sizes`) that
    /// determine the expected shape. Returns the tensors that the model does not use.
    pub fn check(&self, needed: &[TensorSpec], sizes: &[(&'static str, usize)]) -> Result<Vec<String>> {
        let unused = self.read.unused(needed);
        let mut problems = Problems::default();
        for spec in needed {
            if let Err(problem) = self.read.check(spec) {
                let near = || match self.read.shape(&spec.name) {
                    Some(_) => String::new(),
                    None => did_you_mean(&spec.name, unused.iter().copied()),
                };
                problems.add(|| said(&problem) + &keys(sizes, &problem) + &near());
            }
        }
        problems.into_result(&self.folder).map_err(Into::into)?;
        Ok(unused.into_iter().map(str::to_string).collect())
    }

    /// Returns notes about `unused`, the stored tensors that the model does not read. `needed` are the model's tensors, and
    /// `layers` is the number of its layers.
    ///
    /// # Errors
    /// Returns an error if some of the unused tensors would change the model's result.
    pub fn notes(&self, needed: &[TensorSpec], layers: usize, unused: &[String]) -> Result<Vec<String>> {
        let (notes, others) = unread::sort(&self.read, needed, layers, unused);
        let mut problems = Problems::default();
        others.into_iter().for_each(|problem| problems.add(|| problem));
        problems.into_result(&self.folder).map_err(Into::into)?;
        Ok(notes)
    }

    /// Returns a tensor as f32, multiplied by its scales. An element that is not finite is an error.
    pub fn floats(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
        self.read.floats(name, shape).map_err(|error| self.unread(&error))
    }

    /// Returns a tensor of ids. An id outside `0 .. limit` is an error.
    pub fn integers(&self, name: &str, shape: &[usize], limit: usize) -> Result<Vec<u32>> {
        let limit = u32::try_from(limit).unwrap_or(u32::MAX);
        let read = self.read.integers(name, shape, limit);
        read.map_err(|error| self.unread(&error))
    }

    /// Converts a read error. An error about a whole tensor names the checkpoint's folder; an error about an element names the
    /// tensor's file.
    fn unread(&self, error: &ReadError) -> Error {
        match error {
            ReadError::Tensor {
                path,
                problem: Problem::NotFinite { .. } | Problem::Integer { .. },
                ..
            } => Error::data(path, said(error)),
            _ => Error::data(&self.folder, said(error)),
        }
    }
}

/// Returns the end of the message about a tensor of the wrong shape: the keys of the configuration that determine the expected
/// sizes. Returns an empty text for other errors.
fn keys(sizes: &[(&'static str, usize)], error: &ReadError) -> String {
    let ReadError::Tensor {
        problem: Problem::Shape { found, expected },
        ..
    } = error
    else {
        return String::new();
    };
    let differs = |size: &&usize| !found.contains(*size);
    let key = |size: &usize| sizes.iter().find(|(_, own)| own == size);
    let keys = expected.iter().filter(differs).filter_map(key);
    let keys: Vec<String> = keys.map(|(key, size)| format!("{key} is {size}")).collect();
    match keys.is_empty() {
        true => String::new(),
        false => format!(" ({})", keys.join(", ")),
    }
}

fn said(error: &ReadError) -> String {
    match error {
        ReadError::Tensor {
            tensor,
            problem: Problem::Type { found, .. },
            ..
        } => format!("tensor '{tensor}' is stored as {found}, which ulplab does not read here"),
        _ => error.problem(),
    }
}
