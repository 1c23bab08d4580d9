//! Finds the files of a folder that hold the tensors of a checkpoint.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Component, Path, PathBuf};

use serde::Deserialize;

use crate::error::{Error, Result, counted};
use crate::input;

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// The most problems that are listed in full.
const LISTED: usize = 20;

/// The safetensors files of a folder.
pub struct Shards {
    /// The files in the order in which their tensors are read.
    pub files: Vec<PathBuf>,
    /// The index file, if the folder has one.
    pub index: Option<Index>,
}

/// The contents of `model.safetensors.index.json`.
pub struct Index {
    path: PathBuf,
    /// The file of each tensor.
    files: BTreeMap<String, String>,
}

/// The index as it is stored; other keys (`metadata`) do not matter here.
#[derive(Deserialize)]
struct IndexFile {
    weight_map: BTreeMap<String, String>,
}

impl Shards {
    /// The shards are `model.safetensors`, or else the files that `model.safetensors.index.json` names, or else every
    /// `*.safetensors` of the folder.
    pub fn in_folder(folder: &Path) -> Result<Self> {
        let shards = Self::as_named(folder)?;
        shards.index.as_ref().map_or(Ok(()), Index::exists)?;
        Ok(shards)
    }

    /// The same, whether the files that the index names exist or not.
    pub fn as_named(folder: &Path) -> Result<Self> {
        let path = folder.join(INDEX);
        let index = match !folder.join(SINGLE).is_file() && path.is_file() {
            true => Some(Index::read(path)?),
            false => None,
        };
        let names: Vec<String> = match &index {
            Some(index) => index.shards().into_iter().cloned().collect(),
            None => unindexed(folder)?,
        };
        let files = names.iter().map(|name| folder.join(name)).collect();
        Ok(Self { files, index })
    }
}

impl Index {
    /// Reads the index. Its files must be inside its folder.
    fn read(path: PathBuf) -> Result<Self> {
        let text = input::text(&path)?;
        let IndexFile { weight_map: files } =
            serde_json::from_str(&text).map_err(|error| Error::data(&path, error.to_string()))?;
        let index = Self { path, files };
        let mut problems = Problems::default();
        for name in index.shards() {
            let mut parts = Path::new(name).components();
            if !parts.all(|part| matches!(part, Component::Normal(_))) {
                problems.add(|| format!("shard '{name}' is outside the checkpoint's folder"));
            }
        }
        problems.into_result(&index.path)?;
        Ok(index)
    }

    /// Checks that its files exist.
    fn exists(&self) -> Result<()> {
        let mut problems = Problems::default();
        for name in self.shards() {
            if !self.path.with_file_name(name).is_file() {
                let tensors = self.tensors_of(name);
                problems.add(|| format!("shard '{name}' with {} is missing", counted(tensors, "tensor")));
            }
        }
        problems.into_result(&self.path)
    }

    /// The names of its files, without repetition.
    fn shards(&self) -> BTreeSet<&String> {
        self.files.values().collect()
    }

    /// Number of tensors that it puts into a file.
    pub fn tensors_of(&self, file: &str) -> usize {
        self.files.values().filter(|other| *other == file).count()
    }

    /// The tensors, each with its file.
    pub fn places(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files.iter().map(|(name, file)| (name.as_str(), file.as_str()))
    }

    /// Checks that every tensor is in the file that the index names; `file` gives the file it is in.
    pub fn agrees<'a>(&self, file: impl Fn(&str) -> Option<&'a PathBuf>) -> Result<()> {
        let mut problems = Problems::default();
        for (name, expected) in &self.files {
            match file(name) {
                Some(path) if path.ends_with(expected) => {}
                Some(path) => problems.add(|| {
                    format!(
                        "tensor '{name}' should be in '{expected}', but is in {}",
                        path.display()
                    )
                }),
                None => problems.add(|| format!("tensor '{name}' should be in '{expected}', but is not there")),
            }
        }
        problems.into_result(&self.path)
    }
}

/// Names of the safetensors files of a folder without an index.
fn unindexed(folder: &Path) -> Result<Vec<String>> {
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
        return Err(Error::data(
            folder,
            format!("no {SINGLE}, {INDEX} or other *.safetensors in this folder"),
        ));
    }
    // model-00001-of-00002.safetensors tells how many there must be.
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
        return Err(Error::data(folder, message));
    }
    Ok(names)
}

/// Problems that are reported together.
#[derive(Default)]
pub struct Problems {
    text: String,
    count: usize,
}

impl Problems {
    /// Formats the problem only if it is among those listed.
    pub fn add(&mut self, problem: impl FnOnce() -> String) {
        if self.count < LISTED {
            write!(self.text, "\n  {}", problem()).expect("a String takes all");
        }
        self.count += 1;
    }

    /// An error about `file` with all problems, if there are any.
    pub fn into_result(self, file: &Path) -> Result<()> {
        let Self { text, count } = self;
        match count {
            0 => Ok(()),
            1 => Err(Error::data(file, text.trim_start())),
            _ if count <= LISTED => Err(Error::data(file, format!("{count} problems:{text}"))),
            _ => Err(Error::data(
                file,
                format!("{count} problems:{text}\n  … and {} more", count - LISTED),
            )),
        }
    }
}
