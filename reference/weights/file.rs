//! Tensors of safetensors files: finds a tensor by name, checks it, and decodes it.

mod scales;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;
use std::path::Path;

use safetensors::Dtype;

use scales::mxfp4_names;

use super::decode::{FLOATS, INTEGERS, PAIRS, POWERS, SCALED, SCALES};
use super::{Error, Problem, decode, stacks};
use crate::paths::{TensorSpec, Weights};
use crate::tensorfile::{Tensor, TensorFile};

/// Tensors of a checkpoint, which are decoded when they are read. The [module](super) describes the supported formats.
pub struct Safetensors {
    files: TensorFile,
    /// Maps the name by which models request a tensor to the name in the files; contains only names that differ.
    renamed: BTreeMap<String, String>,
    /// Position of each matrix that is part of a stack of experts, by the name of the matrix.
    stacked: BTreeMap<String, Stacked>,
    /// Number of rows and columns of the blocks that share a scale; `None` if unknown.
    block: Option<[usize; 2]>,
}

/// Position of a matrix in a stack of experts: the name of the stack, the shape of the matrix, and its range in the bytes of
/// the stack.
struct Stacked {
    stack: String,
    shape: [usize; 2],
    bytes: Range<usize>,
}

impl Safetensors {
    /// Opens a file or a folder. In a folder, opens `model.safetensors`, else the files named by
    /// `model.safetensors.index.json`, else every `*.safetensors`. The files are mapped into memory, and must not be truncated
    /// while the tensors are read.
    ///
    /// # Errors
    /// Returns an error if files are missing, truncated or not safetensors, if two files have the same tensor, or if an index
    /// contradicts its files.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        Ok(Self::new(TensorFile::open(path)?))
    }

    /// Uses the tensors of files that are already open.
    pub fn new(files: TensorFile) -> Self {
        let (mut renamed, mut stacked) = (BTreeMap::new(), BTreeMap::new());
        let mut names: Vec<Tensor> = files.tensors().collect();
        names.sort_by_key(|tensor| tensor.name);
        for tensor in names {
            if !SCALED.contains(&tensor.dtype) {
                let size = tensor.bytes.len() / tensor.shape.iter().product::<usize>().max(1);
                let mut start = 0;
                for (matrix, shape) in stacks::matrices(tensor.name, tensor.shape) {
                    let (stack, bytes) = (tensor.name.into(), start..start + shape[0] * shape[1] * size);
                    start = bytes.end;
                    stacked.insert(matrix, Stacked { stack, shape, bytes });
                }
            }
            if let Some(new) = stacks::renamed(tensor.name) {
                renamed.entry(new).or_insert_with(|| tensor.name.into());
            }
        }
        Self {
            files,
            renamed,
            stacked,
            block: None,
        }
    }

    /// Sets the number of rows and columns of the blocks that share a scale, like `weight_block_size` of a configuration.
    /// With `None`, the block size is inferred from the shapes of the scales, which is ambiguous if the shape of the weight is
    /// not a multiple of the block.
    #[must_use]
    pub fn in_blocks(mut self, block: Option<[usize; 2]>) -> Self {
        self.block = block;
        self
    }

    /// Finds a tensor by its name in the files or, if no tensor in the files has this name, by the name that models use. The
    /// field `name` of the result is the name in the files.
    fn entry(&self, name: &str) -> Option<Tensor<'_>> {
        let renamed = || self.files.get(self.renamed.get(name)?);
        self.files.get(name).or_else(renamed)
    }

    /// Returns a matrix of a stack as a tensor; the tensor has the name of the stack.
    fn stacked(&self, name: &str) -> Option<Tensor<'_>> {
        let Stacked { stack, shape, bytes } = self.stacked.get(name)?;
        let whole = self.files.get(stack)?;
        let bytes = &whole.bytes[bytes.clone()];
        Some(Tensor { shape, bytes, ..whole })
    }

    /// Converts the name of a tensor in published files to the name by which models request the tensor.
    pub fn asked(name: &str) -> String {
        stacks::renamed(name).unwrap_or_else(|| name.into())
    }

    /// Returns the shape of a tensor as stored; `None` if no file has the tensor.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.entry(name).map(|tensor| tensor.shape)
    }

    /// Returns the bytes of a tensor as stored; `None` if no file has the tensor.
    pub fn raw(&self, name: &str) -> Option<&[u8]> {
        self.entry(name).map(|tensor| tensor.bytes)
    }

    /// Returns the open files.
    pub fn files(&self) -> &TensorFile {
        &self.files
    }

    /// Checks, without decoding, that a tensor exists, has this shape and a supported type, and has a matching scale if it
    /// needs a scale.
    ///
    /// # Errors
    /// Returns an error if one of these checks fails.
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

    /// Returns true if a stack of matrices is stored as single matrices: the files lack the stack, but have at least its first
    /// matrix.
    fn in_parts(&self, TensorSpec { name, shape, .. }: &TensorSpec) -> bool {
        let first = || stacks::matrices(name, shape).next();
        self.entry(name).is_none() && first().is_some_and(|(first, _)| self.entry(&first).is_some())
    }

    /// Returns the sorted names of all tensors that are neither `needed` nor scales of needed tensors.
    pub fn unused(&self, needed: &[TensorSpec]) -> Vec<&str> {
        let mut unused: BTreeSet<&str> = self.files.tensors().map(|tensor| tensor.name).collect();
        let mut take = |name: &str| {
            let Some(stored) = self.entry(name) else {
                return false;
            };
            unused.remove(stored.name);
            // Two scales of one tensor are an error; in this case, both scales count as unused.
            if let [(_, scale)] = &self.scales(name)[..]
                && (SCALED.contains(&stored.dtype) || PAIRS.contains(&stored.dtype))
            {
                unused.remove(scale.name);
            }
            true
        };
        for spec in needed {
            if self.in_parts(spec) {
                let _ = stacks::matrices(&spec.name, &spec.shape).all(|(name, _)| take(&name));
            } else if !take(&spec.name) {
                mxfp4_names(&spec.name).iter().for_each(|name| _ = take(name));
                if let Some(matrix) = self.stacked.get(&spec.name) {
                    take(&matrix.stack);
                }
            }
        }
        unused.into_iter().collect()
    }

    /// Returns a tensor as f32, multiplied by its scales.
    ///
    /// # Errors
    /// Returns an error if the tensor is missing, has the wrong shape or an unsupported type, lacks a required scale, or has
    /// elements that are not finite.
    pub fn floats(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, Error> {
        let spec = || TensorSpec {
            name: name.into(),
            shape: shape.to_vec(),
            integer: false,
        };
        let (stored, values) = match self.mxfp4(name, shape)? {
            Some((codes, scales, sizes)) => {
                let values = decode::mxfp4_columns(codes.bytes, scales.bytes, sizes);
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
                let mut values = match PAIRS.contains(&stored.dtype) {
                    true => decode::e2m1_pairs(stored.bytes),
                    false => self.decoded(name, &stored)?,
                };
                if let Some((scale, block)) = self.scale_of(name, &stored)? {
                    let scales = scale.to_scales();
                    let scales = scales.ok_or_else(|| self.wrong_type(name, &scale, SCALES))?;
                    decode::scale(&mut values, shape, &scales, &block);
                }
                (stored, values)
            }
        };
        let Some(first) = values.iter().position(|value| !value.is_finite()) else {
            return Ok(values);
        };
        let problem = Problem::NotFinite {
            count: values[first..].iter().filter(|value| !value.is_finite()).count(),
            first: values[first],
            index: unravel(first, shape),
        };
        Err(self.wrong(name, &stored, problem))
    }

    /// Returns the codes and scales of a tensor that is stored in E4M3 with f32 scales, one scale per `cols` columns of a row
    /// (the last block may be shorter); `None` if the tensor is stored in another format.
    ///
    /// # Errors
    /// Returns the errors of [`Safetensors::floats`], except for elements that are not finite.
    pub fn e4m3_rows(&self, name: &str, shape: &[usize], cols: usize) -> Result<Option<(&[u8], Vec<f32>)>, Error> {
        let stored = self.find(name, shape, false)?;
        let Some((scale, block)) = self.scale_of(name, &stored)? else {
            return Ok(None);
        };
        let (of_rows, of_cols) = block.split_at(block.len().saturating_sub(1));
        let whole = shape.last().map_or(0, |width| cols.min(*width));
        let types = (stored.dtype, scale.dtype) == (Dtype::F8_E4M3, Dtype::F32);
        if !types || of_rows.iter().any(|rows| *rows != 1) || of_cols != [whole] {
            return Ok(None);
        }
        Ok(Some((stored.bytes, self.decoded(name, &scale)?)))
    }

    /// Returns a tensor of integers from 0 to `limit − 1`.
    ///
    /// # Errors
    /// Returns an error if the tensor is missing, has the wrong shape, is not of an integer type, or has an integer out of range.
    pub fn integers(&self, name: &str, shape: &[usize], limit: u32) -> Result<Vec<u32>, Error> {
        self.up_to(name, shape, i128::from(limit) - 1)
    }

    fn up_to(&self, name: &str, shape: &[usize], most: i128) -> Result<Vec<u32>, Error> {
        let stored = self.find(name, shape, true)?;
        let small = |(i, found): (usize, i128)| match u32::try_from(found) {
            Ok(small) if found <= most => Ok(small),
            _ => {
                let index = unravel(i, shape);
                Err(self.wrong(name, &stored, Problem::Integer { found, most, index }))
            }
        };
        stored.integers().enumerate().map(small).collect()
    }

    /// Returns a stored tensor after checking its shape and type.
    fn find(&self, name: &str, shape: &[usize], integer: bool) -> Result<Tensor<'_>, Error> {
        let Some(stored) = self.entry(name).or_else(|| self.stacked(name)) else {
            return Err(self.missing(name, shape));
        };
        if !integer && self.packs(name, &stored, shape) {
            return Ok(stored);
        }
        let types = if integer { INTEGERS } else { FLOATS };
        if !types.contains(&stored.dtype) {
            return Err(self.wrong_type(name, &stored, types));
        }
        if stored.shape != shape {
            let (found, expected) = (stored.shape.into(), shape.into());
            return Err(self.wrong(name, &stored, Problem::Shape { found, expected }));
        }
        if !integer {
            self.scale_of(name, &stored)?;
        }
        Ok(stored)
    }

    /// Returns true if a matrix of this shape is stored as E2M1 codes, two per byte, with a scale per 32 columns of a row, like
    /// DeepSeek-V4's experts.
    fn packs(&self, name: &str, stored: &Tensor, shape: &[usize]) -> bool {
        let &[outputs, inputs] = shape else { return false };
        let scales = self.scales(name);
        let [(_, scale)] = scales[..] else { return false };
        PAIRS.contains(&stored.dtype)
            && inputs.is_multiple_of(32)
            && stored.shape == [outputs, inputs / 2]
            && scale.shape == [outputs, inputs / 32]
            && POWERS.contains(&scale.dtype)
    }

    fn decoded(&self, name: &str, stored: &Tensor) -> Result<Vec<f32>, Error> {
        stored.to_f32().ok_or_else(|| self.wrong_type(name, stored, FLOATS))
    }

    fn wrong_type(&self, name: &str, stored: &Tensor, expected: &'static [Dtype]) -> Error {
        let found = stored.dtype;
        self.wrong(name, stored, Problem::Type { found, expected })
    }

    fn missing(&self, name: &str, shape: &[usize]) -> Error {
        Error::Tensor {
            path: self.files.path().into(),
            tensor: name.into(),
            problem: Problem::Missing { expected: shape.into() },
        }
    }

    fn wrong(&self, name: &str, stored: &Tensor, problem: Problem) -> Error {
        let path = self.files.file_of(stored.name).unwrap_or(self.files.path());
        Error::Tensor {
            path: path.into(),
            tensor: name.into(),
            problem,
        }
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

/// Prints the path and the number of tensors: a checkpoint may have too many tensors to print their names.
impl fmt::Debug for Safetensors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (path, tensors) = (self.files.path(), self.files.tensors().len());
        f.debug_struct("Safetensors")
            .field("path", &path)
            .field("tensors", &tensors)
            .finish()
    }
}

/// Converts a flat index of an element to its index in every dimension.
fn unravel(mut flat: usize, shape: &[usize]) -> Vec<usize> {
    let mut index = vec![0; shape.len()];
    for (index, &size) in index.iter_mut().zip(shape).rev() {
        *index = flat % size;
        flat /= size;
    }
    index
}
