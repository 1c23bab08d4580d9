//! Digest of the Rust sources that compute the results of a run. Two builds of this program with different digests may compute
//! different results: their runs count as runs of different programs.
//!
//! The build script also includes this file.

use std::path::{Path, PathBuf};
use std::{fs, io};

/// Folders whose Rust files compute the measurements of a run. Test folders are excluded; comments and tests in a file count.
pub const FOLDERS: [&str; 10] = [
    "crates/backend",
    "crates/checkpoint",
    "crates/core",
    "crates/operations",
    "crates/run/dataset",
    "crates/run/experiment",
    "crates/run/statistics",
    "reference",
    "showcases",
    "src/studies",
];

/// Name prefixes of the external crates whose code changes results. The digest covers the versions of these crates.
const CRATES: [&str; 11] = [
    "fancy-regex",
    "gemm",
    "half",
    "pulp",
    "rand",
    "rayon",
    "safetensors",
    "serde_json",
    "statrs",
    "tokenizers",
    "toml",
];

/// Returns the digest of the sources in the checkout `tree`. The digest covers the path and content of each Rust file in
/// [`FOLDERS`], and the version and checksum in Cargo.lock of each crate in `CRATES`.
///
/// # Errors
/// Returns an error if a folder or a file cannot be read.
pub fn digest(tree: &Path) -> io::Result<String> {
    let mut files = Vec::new();
    for folder in FOLDERS {
        find(&tree.join(folder), &["tests", "fixtures"], &mut files)?;
    }
    files.retain(|file| file.extension().is_some_and(|extension| extension == "rs"));
    files.sort();
    let mut digest = blake3::Hasher::new();
    let mut part = |bytes: &[u8]| {
        digest.update(&(bytes.len() as u64).to_le_bytes());
        digest.update(bytes);
    };
    for file in files {
        let name = file.strip_prefix(tree).unwrap_or(&file);
        part(name.to_string_lossy().replace('\\', "/").as_bytes());
        part(&fs::read(&file)?);
    }
    let lock = fs::read_to_string(tree.join("Cargo.lock"))?;
    for package in lock.split("[[package]]").skip(1) {
        let value = |key: &str| {
            let mut lines = package.lines();
            let line = lines.find_map(|line| line.strip_prefix(key)?.strip_prefix(" = "));
            line.unwrap_or_default().trim_matches('"')
        };
        if CRATES.iter().any(|name| value("name").starts_with(name)) {
            for key in ["name", "version", "checksum"] {
                part(value(key).as_bytes());
            }
        }
    }
    Ok(digest.finalize().to_hex().to_string())
}

/// Adds the files below a folder to `files`, except those in folders with one of the names in `but`.
///
/// # Errors
/// Returns an error if a folder cannot be read.
pub fn find(folder: &Path, but: &[&str], files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        match path.is_dir() {
            true if but.iter().any(|name| path.ends_with(name)) => {}
            true => find(&path, but, files)?,
            false => files.push(path),
        }
    }
    Ok(())
}
