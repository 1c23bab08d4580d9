//! Why tensors cannot be read.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::paths::Invalid;

/// Why a tensor or a file cannot be read. Each names its file; those about a tensor name it, what was found and what was expected.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The file or folder cannot be read.
    Io {
        /// Which.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// The file is not what it should be: truncated, corrupt, not safetensors, or an index that does not agree with its files.
    Format {
        /// The file, or the folder in which there is none.
        path: PathBuf,
        /// What was found, and what was expected.
        message: String,
    },
    /// Tensors are in two files.
    Twice {
        /// The second file.
        path: PathBuf,
        /// Each tensor, and the first file that it is in.
        tensors: Vec<(String, PathBuf)>,
    },
    /// No file has the tensor.
    Missing {
        /// The folder, or the only file.
        path: PathBuf,
        /// Its name.
        tensor: String,
        /// Its shape.
        expected: Vec<usize>,
    },
    /// The tensor is stored as a type that is not read here.
    Type {
        /// The file that it is in.
        path: PathBuf,
        /// Its name.
        tensor: String,
        /// Its type.
        found: String,
        /// Types that are read.
        expected: &'static str,
    },
    /// The tensor has another shape.
    Shape {
        /// The file that it is in.
        path: PathBuf,
        /// Its name.
        tensor: String,
        /// Its shape.
        found: Vec<usize>,
        /// What was asked for.
        expected: Vec<usize>,
    },
    /// The scale of the tensor is missing, doubled, of a wrong type, or of a shape that fits no rule.
    Scale {
        /// The file that the tensor is in.
        path: PathBuf,
        /// The name of the tensor.
        tensor: String,
        /// What was found, and what was expected.
        message: String,
    },
    /// Elements are infinite or NaN, as stored or once scaled.
    NotFinite {
        /// The file that it is in.
        path: PathBuf,
        /// Its name.
        tensor: String,
        /// How many.
        count: usize,
        /// The first of them.
        first: f32,
        /// Its index in every dimension.
        index: Vec<usize>,
    },
    /// An integer is out of range.
    Integer {
        /// The file that it is in.
        path: PathBuf,
        /// The name of the tensor.
        tensor: String,
        /// The integer.
        found: i128,
        /// The largest that is expected; the smallest is 0. −1 where none is.
        most: i128,
        /// Its index in every dimension.
        index: Vec<usize>,
    },
    /// The tensors can be had, and no model can be made of them.
    Model(Invalid),
}

impl From<Invalid> for Error {
    fn from(invalid: Invalid) -> Self {
        Self::Model(invalid)
    }
}

impl Error {
    /// The file or folder that it is about; none where a model cannot be made.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Io { path, .. }
            | Self::Format { path, .. }
            | Self::Twice { path, .. }
            | Self::Missing { path, .. }
            | Self::Type { path, .. }
            | Self::Shape { path, .. }
            | Self::Scale { path, .. }
            | Self::NotFinite { path, .. }
            | Self::Integer { path, .. } => Some(path),
            Self::Model(_) => None,
        }
    }

    /// What is wrong, without the path.
    pub fn problem(&self) -> String {
        match self {
            Self::Io { error, .. } => format!("cannot be read: {error}"),
            Self::Format { message, .. } | Self::Scale { message, .. } => message.clone(),
            Self::Twice { tensors, .. } => {
                let one =
                    |(tensor, other): &(String, PathBuf)| format!("tensor '{tensor}' is in {} too", other.display());
                tensors.iter().map(one).collect::<Vec<_>>().join("; ")
            }
            Self::Missing { tensor, expected, .. } => format!("tensor '{tensor}' {expected:?} is missing"),
            Self::Type {
                tensor,
                found,
                expected,
                ..
            } => format!("tensor '{tensor}' is stored as {found}, expected {expected}"),
            Self::Shape {
                tensor,
                found,
                expected,
                ..
            } => format!("tensor '{tensor}' is {found:?}, the model needs {expected:?}"),
            Self::NotFinite {
                tensor,
                count,
                first,
                index,
                ..
            } => format!("tensor '{tensor}' has {count} values that are not finite, first {first} at {index:?}"),
            Self::Integer {
                tensor,
                found,
                most,
                index,
                ..
            } => format!("tensor '{tensor}' has {found} at {index:?}, expected 0 … {most}"),
            Self::Model(invalid) => invalid.to_string(),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(path) = self.path() {
            write!(f, "{}: ", path.display())?;
        }
        f.write_str(&self.problem())
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { error, .. } => Some(error),
            Self::Model(invalid) => Some(invalid),
            _ => None,
        }
    }
}
