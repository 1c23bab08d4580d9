//! The commands of the program, one file or folder each.

pub mod audit;
pub mod baseline;
pub mod bisect;
pub mod calibrate;
pub mod compare;
pub mod dev;
pub mod diff;
pub mod external;
pub mod inspect;
pub mod inventory;
pub mod judged;
pub mod kernels;
pub mod merge;
pub mod mix;
pub mod paired;
pub mod quantize;
pub mod status;
pub mod submit;
pub mod sweep;

use std::fs::metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use ulplab_core::error::{Error, Result};

/// Returns an error if two paths lead to the same file or folder, directly or through links: comparing a file with itself says
/// nothing.
pub(crate) fn check_two(names: [&str; 2], paths: [&Path; 2]) -> Result<()> {
    let place = |path| metadata(path).ok().map(|about| (about.dev(), about.ino()));
    let [one, other] = paths.map(place);
    let ([a, b], path) = (names, paths[1].display());
    let message = format_args!("{path}: {a} and {b} are the same, and equal themselves; expected two");
    Error::refuse(one.is_some() && one == other, message)
}
