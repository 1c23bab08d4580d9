//! `datasets/manifest.toml`: all data sets with their files, file sizes and checksums.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Component, Path, PathBuf};

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::strict::parse_toml;
use super::tokenizer;
use crate::entries::with_extension;
use crate::shipped;
use ulplab_core::error::{did_you_mean, refuse};
use ulplab_core::text::shown;
use ulplab_core::{Error, Result, input};

const MANIFEST: &str = "manifest.toml";
const CONFIG: &str = "config.json";
/// Environment variable with the folder of the data sets.
const VARIABLE: &str = "ULPLAB_DATASETS";

/// Kind of a data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A folder with `config.json` and safetensors.
    Checkpoint,
    /// One file of bytes; UTF-8 for models with a tokenizer.
    Text,
}

/// One entry of the manifest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dataset {
    pub kind: Kind,
    /// Description of the data set, in a line or two.
    pub about: String,
    pub licence: String,
    /// Origin of the data set.
    pub source: String,
    /// True if the checkpoints of the manifest were trained on this text; `None` if the data set is a checkpoint.
    pub in_training: Option<bool>,
    #[serde(rename = "file")]
    pub files: Vec<DataFile>,
}

/// One file of a data set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataFile {
    /// Path relative to the folder of the manifest, with `/` between names.
    pub path: String,
    pub bytes: u64,
    /// blake3 of the file, in lower-case hexadecimal.
    pub blake3: String,
}

/// All data sets of a folder.
#[derive(Clone, Debug, PartialEq)]
pub struct Manifest {
    /// Folder that contains the manifest.
    pub root: PathBuf,
    pub datasets: BTreeMap<String, Dataset>,
}

/// Returns the folder of the data sets: `flag` if given, else `variable`. If neither is given, searches `places` in order for a
/// subfolder `datasets` with a manifest.
pub fn find_root_from(flag: Option<&Path>, variable: Option<&Path>, places: &[PathBuf]) -> Result<PathBuf> {
    for (folder, who) in [(flag, "--datasets"), (variable, VARIABLE)] {
        if let Some(folder) = folder {
            let message = format!("no {MANIFEST} in this folder (given by {who})");
            return match folder.join(MANIFEST).is_file() {
                true => Ok(folder.to_path_buf()),
                false => Err(Error::config(folder, message)),
            };
        }
    }
    let looked = || places.iter().map(|folder| folder.join("datasets"));
    let found = looked().find(|folder| folder.join(MANIFEST).is_file());
    found.ok_or_else(|| {
        let looked: String = looked().map(|folder| format!("\n  {}", folder.display())).collect();
        Error::Usage(format!(
            "no data sets found; tell their folder with --datasets DIR or {VARIABLE}. Looked for {MANIFEST} in{looked}"
        ))
    })
}

impl Manifest {
    /// Reads the manifest in the folder that `--datasets` names (`flag`), else in `$ULPLAB_DATASETS`, else in the subfolder
    /// `datasets` of one of [`shipped::places`].
    pub fn open(flag: Option<&Path>) -> Result<Self> {
        let variable = std::env::var_os(VARIABLE).filter(|value| !value.is_empty());
        let root = find_root_from(flag, variable.as_ref().map(Path::new), &shipped::places());
        Self::load(&root?)
    }

    /// Reads `manifest.toml` in the folder `root`.
    pub fn load(root: &Path) -> Result<Self> {
        let file = root.join(MANIFEST);
        let text = input::text(&file)?;
        let datasets: BTreeMap<String, Dataset> = parse_toml(&file, &text)?;
        for (name, dataset) in &datasets {
            let checked = dataset.check();
            checked.map_err(|message| Error::config(&file, format!("[{name}]: {message}")))?;
        }
        let root = root.to_path_buf();
        Ok(Self { root, datasets })
    }

    /// Returns the data set with the given name.
    pub fn get(&self, name: &str) -> Result<&Dataset> {
        self.datasets.get(name).ok_or_else(|| {
            let known: Vec<_> = self.datasets.keys().map(String::as_str).collect();
            let hint = did_you_mean(name, known.iter().copied());
            let (name, known, file) = (shown(name), known.join(", "), self.root.join(MANIFEST));
            let hub = match name.contains('/') {
                true => "; ulplab downloads nothing: give the path of a folder with config.json and safetensors, or of a text",
                false => "",
            };
            let known = format!("known: {known}, in {}", file.display());
            Error::Usage(format!(
                "no data set '{name}'{hint} ({known}), and no text file or checkpoint is at that path{hub}"
            ))
        })
    }

    /// Returns the folder of a checkpoint, for [`super::Checkpoint::open`]. `name` is a name in the manifest, or the path of a
    /// folder with `config.json`.
    pub fn checkpoint(&self, name: &str) -> Result<PathBuf> {
        if let Some(folder) = self.unlisted(name, Kind::Checkpoint) {
            return Ok(folder.to_path_buf());
        }
        let files = &self.expect(name, Kind::Checkpoint)?.files;
        let mut paths = files.iter().map(|file| self.root.join(&file.path));
        let folder = paths.find_map(|path| Some(path.parent()?.to_path_buf()).filter(|_| path.ends_with(CONFIG)));
        folder.ok_or_else(|| Error::config(self.root.join(MANIFEST), format!("[{name}]: no file is a {CONFIG}")))
    }

    /// Returns the size of a text in bytes. `name` is a name in the manifest, or the path of a file.
    pub fn text_bytes(&self, name: &str) -> Result<u64> {
        self.open_text(name).map(|(.., size)| size)
    }

    fn open_text(&self, name: &str) -> Result<(PathBuf, File, u64)> {
        let path = match self.unlisted(name, Kind::Text) {
            Some(path) => path.to_path_buf(),
            None => self.root.join(&self.expect(name, Kind::Text)?.files[0].path),
        };
        let file = input::open(&path)?;
        let metadata = file.metadata();
        let size = metadata.map_err(Error::io(&path, "tell the size of the text"))?.len();
        Ok((path, file, size))
    }

    /// Reads `len` bytes from byte `offset` of a text. `name` is a name in the manifest, or the path of a file.
    pub fn text(&self, name: &str, offset: usize, len: usize) -> Result<Vec<u8>> {
        let (path, mut file, size) = self.open_text(name)?;
        let (offset, len) = (offset as u64, len as u64);
        if offset.checked_add(len).is_none_or(|end| end > size) {
            let most = match size.checked_sub(len) {
                Some(most) => format!("the largest offset is {most}"),
                None => format!("choose at most {size} tokens"),
            };
            let message = format!("the text has {size} bytes; expected {len} from byte {offset} on; {most}");
            return Err(Error::data(&path, message));
        }
        let mut bytes = Vec::new();
        let sought = file.seek(SeekFrom::Start(offset));
        sought.map_err(Error::io(&path, "seek in the text"))?;
        let read = file.take(len).read_to_end(&mut bytes);
        read.map_err(Error::io(&path, "read the text"))?;
        Ok(bytes)
    }

    /// Checks the size and checksum of every file of a data set. Returns the path and blake3 of each file, for the manifest of a
    /// run. Files that this manifest of data sets does not list are only hashed.
    pub fn verify(&self, name: &str) -> Result<Vec<(String, String)>> {
        if let Some(path) = self.unlisted(name, Kind::Text) {
            return Ok(vec![hash_file(path)?]);
        }
        if let Some(folder) = self.unlisted(name, Kind::Checkpoint) {
            return hash_folder(folder);
        }
        let dataset = self.get(name)?;
        let files = dataset.files.par_iter().map(|file| self.verify_file(file));
        let mut verified = files.collect::<Result<Vec<_>>>()?;
        // The tokenizer file of a checkpoint determines the token ids: hash it even if the manifest does not list it.
        if dataset.kind == Kind::Checkpoint {
            let path = self.checkpoint(name)?.join(tokenizer::FILE);
            let listed = dataset.files.iter().any(|file| self.root.join(&file.path) == path);
            if path.is_file() && !listed {
                verified.push(hash_file(&path)?);
            }
        }
        Ok(verified)
    }

    fn verify_file(&self, expected: &DataFile) -> Result<(String, String)> {
        let path = self.root.join(&expected.path);
        let bytes = map(&path)?;
        let differs = |found: &dyn std::fmt::Display, expected: &dyn std::fmt::Display| {
            let message =
                format!("found {found}, {MANIFEST} says {expected}: the file was changed or not fully fetched");
            Err(Error::data(&path, message))
        };
        if bytes.len() as u64 != expected.bytes {
            return differs(&format!("{} bytes", bytes.len()), &expected.bytes);
        }
        let found = blake3::hash(&bytes).to_hex();
        if found.as_str() != expected.blake3 {
            return differs(&format!("blake3 {found}"), &expected.blake3);
        }
        Ok((expected.path.clone(), expected.blake3.clone()))
    }

    /// Returns `name` as the path of a data set that the manifest does not list. Returns `None` if the manifest lists a data set
    /// of this name, or if the path does not have a data set of this kind.
    fn unlisted<'a>(&self, name: &'a str, kind: Kind) -> Option<&'a Path> {
        let path = Path::new(name);
        let there = match kind {
            Kind::Checkpoint => path.join(CONFIG).is_file(),
            Kind::Text => path.is_file(),
        };
        (there && !self.datasets.contains_key(name)).then_some(path)
    }

    fn expect(&self, name: &str, kind: Kind) -> Result<&Dataset> {
        let dataset = self.get(name)?;
        if dataset.kind == kind {
            return Ok(dataset);
        }
        let message = format!("'{name}' is a {:?}, but a {kind:?} is needed", dataset.kind).to_lowercase();
        Err(Error::config(self.root.join(MANIFEST), message))
    }
}

impl Dataset {
    fn check(&self) -> Result<(), String> {
        match (self.kind, self.files.len(), self.in_training) {
            (_, 0, _) => return Err("`file` is empty".into()),
            (Kind::Text, 2.., _) => return Err(format!("a text is one file, not {}", self.files.len())),
            (Kind::Text, _, None) => return Err("a text needs `in_training`".into()),
            (Kind::Checkpoint, _, Some(_)) => return Err("`in_training` is for texts".into()),
            _ => {}
        }
        for DataFile { path, blake3, .. } in &self.files {
            let mut parts = Path::new(path).components();
            let inside = parts.all(|part| matches!(part, Component::Normal(_)));
            let why = format_args!("path '{path}' leaves the folder of the manifest");
            refuse(path.is_empty() || !inside, why)?;
            let digits = blake3.len() == 64 && blake3.bytes().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f'));
            let why = format_args!("blake3 '{blake3}' of {path} is not 64 lower-case hexadecimal digits");
            refuse(!digits, why)?;
        }
        Ok(())
    }
}

/// Returns the path and blake3 of each file in a checkpoint's folder that affects the results of the checkpoint.
fn hash_folder(folder: &Path) -> Result<Vec<(String, String)>> {
    let files = with_extension(folder, "list the checkpoint", &["json", "safetensors"])?;
    files.par_iter().map(|path| hash_file(path)).collect()
}

/// Returns the path and blake3 of a file.
fn hash_file(path: &Path) -> Result<(String, String)> {
    let digest = blake3::hash(&map(path)?).to_hex().to_string();
    Ok((path.display().to_string(), digest))
}

/// Maps a file into memory, to be read page by page. No process may truncate the file while it is mapped.
fn map(path: &Path) -> Result<memmap2::Mmap> {
    let file = input::open(path)?;
    // SAFETY: the map is read-only and private to this process; the file is input data that nobody writes during a run.
    unsafe { memmap2::Mmap::map(&file) }.map_err(Error::io(path, "map the file"))
}
