//! Surveys a folder of shards: reads all tensors that can be read, and reports disagreements of the index and the files as flaws.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use super::error::counted;
use super::folder::{INDEX, Shards};
use super::{Error, Format, Problems, TensorFile};

/// A fault of a file, or of the place of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flaw {
    /// The file or tensor.
    pub subject: String,
    /// The state that was found.
    pub found: String,
    /// The state that was expected.
    pub expected: String,
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            subject,
            found,
            expected,
        } = self;
        write!(f, "'{subject}': {found}; expected {expected}")
    }
}

/// The file of each tensor, by an index.
type Index = BTreeMap<String, String>;

impl TensorFile {
    /// Opens a file, or a folder of safetensors shards (`model.safetensors`, the files that `model.safetensors.index.json`
    /// names, or all `*.safetensors`), and checks the headers. The data is mapped into memory, not read; the files must not
    /// change while they are open.
    ///
    /// # Errors
    /// If a file is missing, truncated or not of its format, tensors are in two files, or an index names no tensor, or another file for one.
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

    /// Opens the same without the demand that the files are whole: returns all tensors that can be read, and the flaws of the files.
    ///
    /// # Errors
    /// If a single file cannot be read, or a folder has neither an index that can be read nor a safetensors file.
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

    /// Reads all tensors that can be read, with the flaws of the files, and the index if a folder has one. Tensors that the index does not
    /// name are not a flaw here.
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
            // A tensor that is in two files is read from the first.
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
                // The file was reported as a whole.
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

    /// The file of a tensor, relative to the folder.
    fn shard_of(&self, tensor: &str) -> Option<String> {
        let path = self.file_of(tensor)?;
        Some(path.strip_prefix(&self.path).unwrap_or(path).display().to_string())
    }
}
