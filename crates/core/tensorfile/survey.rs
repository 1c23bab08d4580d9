//! A folder of shards as it is: what its index and its files do not agree on is told, and all that can be read is read.

use std::collections::BTreeSet;
use std::path::Path;

use super::TensorFile;
use super::folder::Shards;
use crate::error::{Error, Result, counted};

/// The tensors that can be read, and what is wrong with the files.
#[derive(Debug)]
pub struct Survey {
    /// All tensors that can be read.
    pub file: TensorFile,
    /// What the index and the files do not agree on, and files that cannot be read.
    pub flaws: Vec<Flaw>,
}

/// What is wrong with a file, or with the place of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flaw {
    /// The file or tensor.
    pub subject: String,
    /// What was found.
    pub found: String,
    /// What was expected.
    pub expected: String,
}

impl Survey {
    /// Opens a file, or a folder of shards as [`TensorFile::open`] finds them, without the demand that they are whole.
    ///
    /// # Errors
    /// A single file cannot be read, or a folder has no index that can be read and no safetensors file.
    pub fn open(path: &Path) -> Result<Self> {
        if !path.is_dir() {
            let file = TensorFile::open(path)?;
            return Ok(Self {
                file,
                flaws: Vec::new(),
            });
        }
        let shards = Shards::as_named(path)?;
        let (mut file, mut flaws) = (TensorFile::nothing(path), Vec::new());
        for shard in &shards.files {
            let name = shard.strip_prefix(path).unwrap_or(shard).display().to_string();
            let flaw = |found: String| Flaw {
                subject: name.clone(),
                found,
                expected: "a whole safetensors file".into(),
            };
            if !shard.is_file() {
                let tensors = shards.index.as_ref().map_or(0, |index| index.tensors_of(&name));
                let found = format!(
                    "no such file, and the index puts {} into it",
                    counted(tensors, "tensor")
                );
                flaws.push(flaw(found));
                continue;
            }
            // A tensor that is in two files is read from the first.
            match TensorFile::open(shard) {
                Ok(shard) => flaws.extend(file.add_new(shard)?.into_iter().map(|(subject, other)| Flaw {
                    subject,
                    found: format!("in {name} and in {}", other.file_name().unwrap_or_default().display()),
                    expected: "a tensor in one file".into(),
                })),
                Err(Error::Data { message, .. }) => flaws.push(flaw(message)),
                Err(other) => return Err(other),
            }
        }
        if let Some(index) = &shards.index {
            flaws.extend(file.against(index.places(), path));
        }
        Ok(Self { file, flaws })
    }
}

impl TensorFile {
    /// The tensors whose places differ from those of an index, and those that it does not name.
    fn against<'a>(&self, places: impl Iterator<Item = (&'a str, &'a str)>, folder: &Path) -> Vec<Flaw> {
        let shard = |name: &str| {
            let path = self.file_of(name)?;
            Some(path.strip_prefix(folder).unwrap_or(path).display().to_string())
        };
        let (mut flaws, mut named) = (Vec::new(), BTreeSet::new());
        for (name, file) in places {
            named.insert(name);
            let found = match shard(name) {
                Some(found) if found == file => continue,
                Some(found) => format!("in {found}"),
                // The file was reported as a whole.
                None if !self.files().contains(&folder.join(file)) => continue,
                None => "in no file".into(),
            };
            flaws.push(Flaw {
                subject: name.into(),
                found,
                expected: format!("in {file}, as the index says"),
            });
        }
        let unnamed = self
            .tensors()
            .map(|tensor| tensor.name)
            .filter(|name| !named.contains(name));
        flaws.extend(unnamed.map(|name| Flaw {
            subject: name.into(),
            found: format!("in {}, and not in the index", shard(name).unwrap_or_default()),
            expected: "an entry in the index, without which loaders leave the tensor out".into(),
        }));
        flaws
    }
}
