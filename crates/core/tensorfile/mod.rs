//! Named tensors from `.safetensors` and `.npy` files and folders of shards, from any program, read and written.
//!
//! The files are read by `reference::tensorfile`; its errors are those of this crate here.

mod write;

use std::ops::Deref;
use std::path::Path;

use reference::tensorfile::TensorFile as Files;
pub use reference::tensorfile::{Flaw, KEY, Kind, Metadata, Problems, Tensor, byte_len, type_names};
pub use write::{Slot, Writer, write_safetensors};

use crate::error::Result;

/// A file of tensors, or a folder of such files.
#[derive(Debug)]
pub struct TensorFile(Files);

impl TensorFile {
    /// Opens a file or a folder of shards, as [`reference::tensorfile::TensorFile::open`] does.
    ///
    /// # Errors
    /// If a file is missing, truncated or not of its format, tensors are in two files, or an index does not agree with its files.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Files::open(path).map(Self).map_err(Into::into)
    }

    /// Opens a file whose bytes are in memory; `path` is used in messages, and its extension gives the format.
    ///
    /// # Errors
    /// If the bytes are truncated or not of the format.
    pub fn from_bytes(path: impl AsRef<Path>, bytes: Vec<u8>) -> Result<Self> {
        Files::from_bytes(path, bytes).map(Self).map_err(Into::into)
    }

    /// Opens what can be read of a file or a folder, and returns the flaws of the files with it.
    ///
    /// # Errors
    /// If a single file cannot be read, or a folder has neither an index that can be read nor a safetensors file.
    pub fn survey(path: &Path) -> Result<(Self, Vec<Flaw>)> {
        let (file, flaws) = Files::survey(path).map_err(Into::into)?;
        Ok((Self(file), flaws))
    }
}

impl Deref for TensorFile {
    type Target = Files;

    fn deref(&self) -> &Files {
        &self.0
    }
}
