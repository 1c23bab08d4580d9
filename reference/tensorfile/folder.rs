//! Finds the files of a folder that store the tensors of a checkpoint.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::{Component, Path, PathBuf};

use serde::Deserialize;

use super::{Error, Problems, open};

const SINGLE: &str = "model.safetensors";
pub(super) const INDEX: &str = "model.safetensors.index.json";

/// The safetensors files of a folder.
pub struct Shards {
    /// Paths of the files, in reading order. A file that the index names may be missing.
    pub files: Vec<PathBuf>,
    /// Maps each tensor to the name of its file, as listed in the index; `None` if the folder has no index.
    pub index: Option<BTreeMap<String, String>>,
}

/// Content of an index file; keys other than `weight_map`, e.g. `metadata`, are ignored.
#[derive(Deserialize)]
struct IndexFile {
    weight_map: BTreeMap<String, String>,
}

impl Shards {
    /// Lists the shards of a folder: `model.safetensors`, else the files named by the index `model.safetensors.index.json`,
    /// else every `*.safetensors` of the folder.
    pub fn new(folder: &Path) -> Result<Self, Error> {
        let path = folder.join(INDEX);
        let index = match !folder.join(SINGLE).is_file() && path.is_file() {
            true => Some(read_index(&path)?),
            false => None,
        };
        let names: BTreeSet<String> = match &index {
            Some(index) => index.values().cloned().collect(),
            None => unindexed(folder)?.into_iter().collect(),
        };
        let files = names.iter().map(|name| folder.join(name)).collect();
        Ok(Self { files, index })
    }
}

/// Reads an index. Returns an error if the index names a file outside its folder.
fn read_index(path: &Path) -> Result<BTreeMap<String, String>, Error> {
    let mut text = Vec::new();
    let read = open(path, "read")?.read_to_end(&mut text);
    read.map_err(Error::io(path, "read"))?;
    let file: Result<IndexFile, _> = serde_json::from_slice(&text);
    let index = file.map_err(|error| Error::format(path, error.to_string()))?.weight_map;
    let mut problems = Problems::default();
    for name in index.values().collect::<BTreeSet<_>>() {
        let mut parts = Path::new(name).components();
        if !parts.all(|part| matches!(part, Component::Normal(_))) {
            problems.add(|| format!("shard '{name}' is outside the checkpoint's folder"));
        }
    }
    problems.into_result(path)?;
    Ok(index)
}

/// Returns the names of the safetensors files of a folder without an index.
fn unindexed(folder: &Path) -> Result<Vec<String>, Error> {
    if folder.join(SINGLE).is_file() {
        return Ok(vec![SINGLE.into()]);
    }
    let list = || -> std::io::Result<Vec<String>> {
        std::fs::read_dir(folder)?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect()
    };
    let mut names = list().map_err(Error::io(folder, "list the folder"))?;
    names.retain(|name| name.ends_with(".safetensors"));
    names.sort();
    if names.is_empty() {
        return Err(Error::format(
            folder,
            format!("no {SINGLE}, {INDEX} or other *.safetensors in this folder"),
        ));
    }
    // Find missing shards: a name such as model-00001-of-00002.safetensors contains the number of files.
    let of = |name: &String| {
        name.strip_suffix(".safetensors")?
            .rsplit_once("-of-")?
            .1
            .parse::<usize>()
            .ok()
    };
    if let Some(expected) = names.iter().filter_map(of).max()
        && names.len() != expected
    {
        let message = format!("{} of {expected} shards are there: {}", names.len(), names.join(", "));
        return Err(Error::format(folder, message));
    }
    Ok(names)
}
