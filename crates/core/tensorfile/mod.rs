//! Reads and writes named tensors in `.safetensors` and `.npy` files, and in folders of shards. The files may come from any
//! program, so reading validates them.
//!
//! `reference::tensorfile` reads the files; this module converts its errors to errors of this crate.

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
    /// If a file is missing, truncated or malformed, if a tensor is in two files, or if an index does not agree with its files.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Files::open(path).map(Self).map_err(Into::into)
    }

    /// Opens a file whose bytes are in memory. `path` is used in messages, and its extension determines the format.
    ///
    /// # Errors
    /// If the bytes are truncated or malformed.
    pub fn from_bytes(path: impl AsRef<Path>, bytes: Vec<u8>) -> Result<Self> {
        Files::from_bytes(path, bytes).map(Self).map_err(Into::into)
    }

    /// Opens a file or a folder of shards even if parts of it are unreadable. Returns the readable tensors, and the files' flaws.
    ///
    /// # Errors
    /// If a single file cannot be read, or a folder has neither a readable index nor a safetensors file.
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
