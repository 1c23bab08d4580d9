//! Reads files that users name. Only regular files are opened, because a pipe or a device could block the program.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::{Error, Result};

/// Opens a regular file for reading. If `path` is a folder, pipe, socket or device, the error says so.
pub fn open(path: &Path) -> Result<File> {
    reference::tensorfile::open(path, "open").map_err(Into::into)
}

/// Reads a file of at most `most` bytes. For a larger file, the inner result is `Err` with its size, and the file is not read.
pub fn bytes_up_to(path: &Path, most: u64) -> Result<Result<Vec<u8>, u64>> {
    let file = open(path)?;
    let size = file.metadata().map_err(Error::io(path, "read"))?.len();
    if size > most {
        return Ok(Err(size));
    }
    let mut bytes = Vec::new();
    // Requests one byte more than allowed, to detect a file that grows while it is read.
    let read = file.take(most + 1).read_to_end(&mut bytes);
    read.map_err(Error::io(path, "read"))?;
    match bytes.len() as u64 {
        size if size > most => Ok(Err(size)),
        _ => Ok(Ok(bytes)),
    }
}

/// Reads all bytes of a file.
pub fn bytes(path: &Path) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut file = reference::tensorfile::open(path, "read").map_err(Into::<Error>::into)?;
    file.read_to_end(&mut bytes).map_err(Error::io(path, "read"))?;
    Ok(bytes)
}

/// Reads a file as UTF-8 text.
pub fn text(path: &Path) -> Result<String> {
    String::from_utf8(bytes(path)?).map_err(|error| {
        let (at, wrong) = (error.utf8_error().valid_up_to(), error.as_bytes());
        let line = 1 + wrong[..at].iter().filter(|byte| **byte == b'\n').count();
        let message = format!("is not UTF-8 text: byte {at} (line {line}) is 0x{:02x}", wrong[at]);
        Error::data(path, message)
    })
}
