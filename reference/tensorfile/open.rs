//! Opens files given by users. Only regular files are opened, since a pipe or a device could block the program.

use std::fs::{File, FileType, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::Error;

/// Opens a regular file for reading. `action` is the verb used in error messages.
///
/// # Errors
/// Returns an error if the system cannot open the file, or if the path is a folder, pipe, socket or device.
pub fn open(path: &Path, action: &'static str) -> Result<File, Error> {
    let io = || Error::io(path, action);
    regular(path, std::fs::metadata(path).map_err(io())?.file_type())?;
    // Open without blocking and check again: the path may have become a pipe since the first check.
    let mut options = OpenOptions::new();
    let file = options
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)
        .map_err(io())?;
    regular(path, file.metadata().map_err(io())?.file_type())?;
    Ok(file)
}

fn regular(path: &Path, kind: FileType) -> Result<(), Error> {
    match (kind.is_dir(), kind.is_file()) {
        (true, _) => Err(Error::format(path, "is a folder, expected a file")),
        (_, true) => Ok(()),
        _ => Err(Error::format(
            path,
            "is a pipe, socket or device, expected a regular file",
        )),
    }
}
