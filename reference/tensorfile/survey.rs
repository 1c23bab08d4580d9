//! Survey of a folder of shards: reads every readable tensor, and reports a [`Flaw`] for each damaged file and for each
//! contradiction between the index and the files.

use std::collections::BTreeMap;
use std::path::Path;

use super::error::counted;
use super::folder::{INDEX, Shards};
use super::{Error, Format, Problems, TensorFile};

/// Problem of a folder of shards: a missing or damaged file, or a tensor that is not in the file that the index names.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{subject}': {found}; expected {expected}")]
pub struct Flaw {
    /// Name of the file or tensor.
    pub subject: String,
    /// Actual state.
    pub found: String,
    /// Expected state.
    pub expected: String,
}

/// File name of each tensor, as listed in the index of a folder.
type Index = BTreeMap<String, String>;

impl TensorFile {
    /// Opens a file, or a folder of safetensors shards (`model.safetensors`, the files named by `model.safetensors.index.json`,
    /// or all `*.safetensors`), and checks the headers. The data is mapped into memory, not read; the files must not change
    /// while they are open.
    ///
    /// # Errors
    /// Returns an error if a file is missing, truncated or not of its format, if two files have the same tensor, or if an index
    /// is empty or names the wrong file for a tensor.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let (file, flaws, index) = Self::read(path)?;
        if index.is_some_and(|index| index.is_empty()) {
            let message = "the index lists no tensors in 'weight_map'; expected the file of each tensor";
            return Err(Error::format(&path.join(INDEX), message));
        }
        let mut problems = Problems::default();
        for flaw in flaws {
            problems.add(|| flaw.to_string());
        }
        problems.into_result(path)?;
        Ok(file)
    }

    /// Same as [`TensorFile::open`], but accepts damaged folders: returns all readable tensors, and a [`Flaw`] for each problem.
    ///
    /// # Errors
    /// Returns an error if a single file cannot be read, or if a folder has neither a readable index nor a safetensors file.
    pub fn survey(path: &Path) -> Result<(Self, Vec<Flaw>), Error> {
        let (file, mut flaws, index) = Self::read(path)?;
        if let Some(index) = index {
            let unnamed = file.tensors().filter(|tensor| !index.contains_key(tensor.name));
            flaws.extend(unnamed.map(|tensor| Flaw {
                subject: tensor.name.into(),
                found: format!(
                    "in {}, and not in the index",
                    file.shard_of(tensor.name).unwrap_or_default()
                ),
                expected: "an entry in the index, without which loaders leave the tensor out".into(),
            }));
        }
        Ok((file, flaws))
    }

    /// Reads all readable tensors. Also returns the flaws of the files, and the index if the folder has one. Does not report
    /// tensors that are missing in the index; [`Self::survey`] reports them.
    fn read(path: &Path) -> Result<(Self, Vec<Flaw>, Option<Index>), Error> {
        if !path.is_dir() {
            return Ok((Self::file(path, None)?, Vec::new(), None));
        }
        let Shards { files, index } = Shards::new(path)?;
        let (mut file, mut flaws) = (Self::nothing(path), Vec::new());
        for shard in &files {
            let name = shard.strip_prefix(path).unwrap_or(shard).display().to_string();
            let flaw = |found: String| Flaw {
                subject: name.clone(),
                found,
                expected: "a whole safetensors file".into(),
            };
            if let Some(index) = index.as_ref().filter(|_| !shard.exists()) {
                let tensors = index.values().filter(|file| **file == name).count();
                let tensors = counted(tensors, "tensor");
                flaws.push(flaw(format!("no such file, and the index puts {tensors} into it")));
                continue;
            }
            // If two files have the same tensor, the first file is used.
            match Self::file(shard, Some(Format::Safetensors)) {
                Ok(shard) => flaws.extend(file.add(shard)?.into_iter().map(|(subject, other)| Flaw {
                    subject,
                    found: format!("in {name} and in {}", other.file_name().unwrap_or_default().display()),
                    expected: "a tensor in one file".into(),
                })),
                Err(Error::Format { message, .. }) => flaws.push(flaw(message)),
                Err(other) => return Err(other),
            }
        }
        for (tensor, expected) in index.iter().flatten() {
            let found = match file.shard_of(tensor) {
                Some(found) if found == *expected => continue,
                Some(found) => format!("in {found}"),
                // Skip the tensor: the file that should have it was already reported as unreadable.
                None if !file.files.contains(&path.join(expected)) => continue,
                None => "in no file".into(),
            };
            flaws.push(Flaw {
                subject: tensor.clone(),
                found,
                expected: format!("in {expected}, as the index says"),
            });
        }
        Ok((file, flaws, index))
    }

    /// Returns the path of a tensor's file, relative to the folder.
    fn shard_of(&self, tensor: &str) -> Option<String> {
        let path = self.file_of(tensor)?;
        Some(path.strip_prefix(&self.path).unwrap_or(path).display().to_string())
    }
}
