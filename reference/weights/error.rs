//! Errors of tensors that cannot be read.

use std::path::{Path, PathBuf};

use safetensors::Dtype;

use crate::paths::Invalid;
use crate::tensorfile::{self, type_names};

/// Error if a tensor or a file cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file or folder cannot be read.
    #[error("{0}")]
    File(#[from] tensorfile::Error),
    /// A tensor is missing, or does not meet the requirements.
    #[error("{}: {}", path.display(), self.problem())]
    Tensor {
        /// File of the tensor; if the tensor is missing, the folder or the only file.
        path: PathBuf,
        /// The name of the tensor.
        tensor: String,
        /// The problem, with the actual and the expected state.
        problem: Problem,
    },
    /// The tensors can be read, but no model can be made from them.
    #[error("{0}")]
    Model(#[from] Invalid),
}

/// Problem of a tensor.
#[derive(Debug)]
#[non_exhaustive]
pub enum Problem {
    /// No file has the tensor.
    Missing {
        /// The shape that the model needs.
        expected: Vec<usize>,
    },
    /// The tensor is stored in a type that is not supported.
    Type {
        /// Actual type.
        found: Dtype,
        /// Supported types.
        expected: &'static [Dtype],
    },
    /// The tensor does not have the shape that the model needs.
    Shape {
        /// Actual shape.
        found: Vec<usize>,
        /// The shape that the model needs.
        expected: Vec<usize>,
    },
    /// The scale of the tensor is missing, ambiguous (two scales), of a wrong type, or of a shape that matches no rule. The
    /// string describes the problem.
    Scale(String),
    /// Elements are infinite or NaN, as stored or after scaling.
    NotFinite {
        /// Number of infinite or NaN elements.
        count: usize,
        /// First infinite or NaN element in row-major order.
        first: f32,
        /// Index of the element `first`, one number per dimension.
        index: Vec<usize>,
    },
    /// An integer is out of range.
    Integer {
        /// The integer.
        found: i128,
        /// Largest valid integer; the smallest is 0. −1 if no integer is valid.
        most: i128,
        /// Index of the element `found`, one number per dimension.
        index: Vec<usize>,
    },
}

impl Error {
    /// Returns the file or folder of the error; `None` for [`Error::Model`].
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::File(error) => Some(error.path()),
            Self::Tensor { path, .. } => Some(path),
            Self::Model(_) => None,
        }
    }

    /// Returns the problem, without the path.
    pub fn problem(&self) -> String {
        let (tensor, problem) = match self {
            Self::File(error) => return error.problem(),
            Self::Model(invalid) => return invalid.to_string(),
            Self::Tensor { tensor, problem, .. } => (tensor, problem),
        };
        match problem {
            Problem::Missing { expected } => format!("tensor '{tensor}' {expected:?} is missing"),
            Problem::Type { found, expected } => {
                format!(
                    "tensor '{tensor}' is stored as {found}, expected {}",
                    type_names(expected)
                )
            }
            Problem::Shape { found, expected } => {
                format!("tensor '{tensor}' is {found:?}, the model needs {expected:?}")
            }
            Problem::Scale(message) => message.clone(),
            Problem::NotFinite { count, first, index } => {
                format!("tensor '{tensor}' has {count} values that are not finite, first {first} at {index:?}")
            }
            Problem::Integer { found, most, index } => {
                format!("tensor '{tensor}' has {found} at {index:?}, expected 0 … {most}")
            }
        }
    }
}
