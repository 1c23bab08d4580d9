//! Which files a checkpoint is in.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::{Component, Path, PathBuf};

use memmap2::Mmap;
use serde::Deserialize;

use super::Error;

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// What `model.safetensors.index.json` says; other keys (`metadata`) do not matter here.
#[derive(Deserialize)]
struct Index {
    /// File by tensor.
    weight_map: BTreeMap<String, String>,
}

/// Files, and in which of them tensors must be, if that is told.
pub(super) struct Files {
    pub paths: Vec<PathBuf>,
    /// File by tensor.
    pub told: BTreeMap<String, PathBuf>,
}

impl Files {
    /// A file by itself; of a folder `model.safetensors`, else the files named by `model.safetensors.index.json`, else every
    /// `*.safetensors`.
    pub fn of(path: &Path) -> Result<Self, Error> {
        let untold = |paths| Files {
            paths,
            told: BTreeMap::new(),
        };
        if !path.is_dir() {
            return Ok(untold(vec![path.to_path_buf()]));
        }
        let (single, index) = (path.join(SINGLE), path.join(INDEX));
        if single.is_file() {
            return Ok(untold(vec![single]));
        }
        if index.is_file() {
            return Self::of_index(&index);
        }
        let entries = fs::read_dir(path).map_err(io(path))?;
        let mut paths = entries
            .map(|entry| entry.map(|entry| entry.path()))
            .collect::<Result<Vec<_>, _>>()
            .map_err(io(path))?;
        paths.retain(|path| path.extension().is_some_and(|extension| extension == "safetensors"));
        paths.sort();
        match paths.is_empty() {
            false => Ok(untold(paths)),
            true => Err(Error::Format {
                path: path.to_path_buf(),
                message: format!("expected {SINGLE}, {INDEX} or other *.safetensors files, found none"),
            }),
        }
    }

    fn of_index(index: &Path) -> Result<Self, Error> {
        let wrong = |message| Error::Format {
            path: index.to_path_buf(),
            message,
        };
        let text = fs::read(index).map_err(io(index))?;
        let Index { weight_map } = serde_json::from_slice(&text).map_err(|error| wrong(error.to_string()))?;
        let names: BTreeSet<&String> = weight_map.values().collect();
        for name in &names {
            let mut parts = Path::new(name).components();
            if name.is_empty() || !parts.all(|part| matches!(part, Component::Normal(_))) {
                return Err(wrong(format!("file '{name}' is outside the folder of the index")));
            }
        }
        if names.is_empty() {
            return Err(wrong("no tensors are listed".into()));
        }
        let path = |name: &String| index.with_file_name(name);
        Ok(Self {
            paths: names.into_iter().map(path).collect(),
            told: weight_map
                .iter()
                .map(|(tensor, name)| (tensor.clone(), path(name)))
                .collect(),
        })
    }
}

/// Maps a file into memory, to be read as it is touched. Nobody may shorten the file meanwhile.
pub(super) fn map(path: &Path) -> Result<Mmap, Error> {
    let meta = fs::metadata(path).map_err(io(path))?;
    if !meta.is_file() {
        // Opening a pipe would wait for a writer.
        return Err(Error::Format {
            path: path.to_path_buf(),
            message: "expected a regular file".into(),
        });
    }
    let file = File::open(path).map_err(io(path))?;
    // SAFETY: the map is read-only and private to this process; that nobody shortens the file while it is read is asked of
    // callers of `Safetensors::open`.
    unsafe { Mmap::map(&file) }.map_err(io(path))
}

fn io(path: &Path) -> impl Fn(std::io::Error) -> Error + '_ {
    move |error| Error::Io {
        path: path.to_path_buf(),
        error,
    }
}
