//! Reader of named tensors from `.safetensors` and `.npy` files and folders of shards, written by any program.
//!
//! Opening a file checks its header and the position of every tensor. Then the bytes of every tensor are available, row-major
//! and little-endian. Errors name the file, the tensor, and the actual and expected state.

mod error;
mod folder;
mod npy;
mod open;
mod safetensors;
mod survey;
mod values;

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::{Path, PathBuf};

use ::safetensors::Dtype;
pub use error::{Error, Problems, hidden, shown};
use memmap2::Mmap;
pub use open::open;
pub use survey::Flaw;
pub(crate) use values::e8m0;
pub use values::type_names;

/// Metadata key under which ulplab describes how tensors were quantized.
pub const KEY: &str = "ulplab";

/// A file of tensors, or a folder of such files.
#[derive(Debug, Default)]
pub struct TensorFile {
    path: PathBuf,
    /// Paths of the open files: the file itself, or the shards of the folder.
    files: Vec<PathBuf>,
    /// Content of each file.
    bytes: Vec<Bytes>,
    entries: Vec<Entry>,
    /// Maps the name of a tensor to its index in `entries`; a search would be slow with tens of thousands of tensors.
    index: HashMap<String, usize>,
    metadata: Metadata,
}

/// Metadata of a safetensors file: strings by key.
pub type Metadata = BTreeMap<String, String>;

/// One tensor of a file.
#[derive(Clone, Copy, Debug)]
pub struct Tensor<'a> {
    /// Name of the tensor; for `.npy`, which has no names, the file name without the extension.
    pub name: &'a str,
    /// Type of the elements.
    pub dtype: Dtype,
    /// Shape; empty for a scalar.
    pub shape: &'a [usize],
    /// Elements, row-major, little-endian.
    pub bytes: &'a [u8],
}

/// Way in which tensors of a type are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Floating-point numbers, compared by distance.
    Real,
    /// Integers, booleans and power-of-two scales, compared for equality.
    Exact,
    /// Complex numbers, types smaller than a byte, and the FNUZ variants of FP8: not compared.
    Unsupported,
}

/// Position of a tensor in the bytes of its file.
#[derive(Debug)]
struct Entry {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    /// Index of the file that has the tensor.
    shard: usize,
    range: Range<usize>,
}

#[derive(Debug)]
enum Bytes {
    Mapped(Mmap),
    Owned(Vec<u8>),
}

impl AsRef<[u8]> for Bytes {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Owned(bytes) => bytes,
        }
    }
}

/// Supported file formats, by extension.
#[derive(Clone, Copy)]
enum Format {
    Safetensors,
    Npy,
}

impl TensorFile {
    fn file(path: &Path, known: Option<Format>) -> Result<Self, Error> {
        if let Err(why) = path.metadata()
            && why.kind() == std::io::ErrorKind::NotFound
        {
            return Err(Error::format(
                path,
                "there is no such file or folder; expected a file of 'safetensors' or 'npy', or a folder with safetensors files",
            ));
        }
        let format = known.map_or_else(|| format(path), Ok)?;
        let file = open(path, "open")?;
        // SAFETY: the mapping is only read, and files must not change while they are mapped. If another process truncates the
        // file, access to the lost pages ends the program with SIGBUS.
        let map = unsafe { Mmap::map(&file) }.map_err(Error::io(path, "map"))?;
        Self::parse(path, format, Bytes::Mapped(map))
    }

    /// Reads a file whose bytes are in memory. `path` is used in messages, and its extension gives the format.
    ///
    /// # Errors
    /// Returns an error if the bytes are truncated or not of the format.
    pub fn from_bytes(path: impl AsRef<Path>, bytes: Vec<u8>) -> Result<Self, Error> {
        Self::parse(path.as_ref(), format(path.as_ref())?, Bytes::Owned(bytes))
    }

    /// Creates an empty [`TensorFile`] for the folder `path`.
    fn nothing(path: &Path) -> Self {
        Self {
            path: path.into(),
            ..Self::default()
        }
    }

    /// Adds the tensors of a shard, except tensors whose name exists already. Returns the duplicate names, each with the file
    /// that has the earlier tensor.
    fn add(&mut self, shard: Self) -> Result<Vec<(String, PathBuf)>, Error> {
        let mut doubled = Vec::new();
        for mut entry in shard.entries {
            entry.shard = self.bytes.len();
            if let Some(at) = self.index.get(&entry.name) {
                doubled.push((entry.name, self.files[self.entries[*at].shard].clone()));
                continue;
            }
            self.index.insert(entry.name.clone(), self.entries.len());
            self.entries.push(entry);
        }
        for (key, value) in shard.metadata {
            let kept = self.metadata.entry(key.clone()).or_insert_with(|| value.clone());
            if key == KEY && *kept != value {
                let message = format!("metadata '{key}' differs from that of the shards before it");
                return Err(Error::format(&shard.path, message));
            }
        }
        self.bytes.extend(shard.bytes);
        self.files.push(shard.path);
        Ok(doubled)
    }

    fn parse(path: &Path, format: Format, bytes: Bytes) -> Result<Self, Error> {
        // Remove control characters from messages: a name of a tensor may contain control sequences of a terminal.
        let error = |message: String| Error::format(path, shown(&message));
        let ((entries, metadata), bytes) = match format {
            Format::Safetensors => (safetensors::parse(bytes.as_ref()).map_err(error)?, bytes),
            Format::Npy => {
                let name = shown(&path.file_stem().unwrap_or_default().to_string_lossy());
                let (entry, rewritten) = npy::parse(&name, bytes.as_ref()).map_err(error)?;
                let entries = (vec![entry], Metadata::new());
                (entries, rewritten.map_or(bytes, Bytes::Owned))
            }
        };
        if let Some(entry) = entries.iter().find(|entry| entry.name.contains(hidden)) {
            return Err(error(format!(
                "the name of tensor '{}' has characters that do not show; expected no control characters, line ends, marks of \
                 direction or characters of no width",
                entry.name
            )));
        }
        let index = entries.iter().enumerate().map(|(at, entry)| (entry.name.clone(), at));
        Ok(Self {
            path: path.into(),
            files: vec![path.into()],
            bytes: vec![bytes],
            index: index.collect(),
            entries,
            metadata,
        })
    }

    /// Returns the path of the file, or of the folder of shards.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the paths of the files that are open.
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// Returns the path of the file with the tensor `name`; `None` if no file has this tensor.
    pub fn file_of(&self, name: &str) -> Option<&Path> {
        let at = self.index.get(name)?;
        Some(&self.files[self.entries[*at].shard])
    }

    /// Iterates over all tensors, in the order of their data in the file.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = Tensor<'_>> {
        self.entries.iter().map(|entry| self.tensor(entry))
    }

    /// Returns the metadata; empty if the file has none.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Returns the tensor called `name`; `None` if the file does not have it.
    pub fn get(&self, name: &str) -> Option<Tensor<'_>> {
        self.index.get(name).map(|at| self.tensor(&self.entries[*at]))
    }

    fn tensor<'a>(&'a self, entry: &'a Entry) -> Tensor<'a> {
        Tensor {
            name: &entry.name,
            dtype: entry.dtype,
            shape: &entry.shape,
            bytes: &self.bytes[entry.shard].as_ref()[entry.range.clone()],
        }
    }
}

fn format(path: &Path) -> Result<Format, Error> {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("safetensors") => Ok(Format::Safetensors),
        Some("npy") => Ok(Format::Npy),
        other => Err(Error::format(
            path,
            format!(
                "extension '{}', expected 'safetensors' or 'npy' (safetensors.torch.save_file and numpy.save write them)",
                other.unwrap_or_default()
            ),
        )),
    }
}

/// Maximum number of dimensions, as in NumPy.
const MAX_DIMENSIONS: usize = 64;

/// Returns the size of a tensor in bytes.
///
/// # Errors
/// Returns an error if the shape has too many dimensions or elements, or the size in bits is not a multiple of 8.
pub fn byte_len(dtype: Dtype, shape: &[usize]) -> Result<usize, String> {
    if shape.len() > MAX_DIMENSIONS {
        return Err(format!(
            "shape has {} dimensions, expected at most {MAX_DIMENSIONS}",
            shape.len()
        ));
    }
    let elements = shape
        .iter()
        .try_fold(1usize, |product, &size| product.checked_mul(size));
    let bits = elements.and_then(|elements| elements.checked_mul(dtype.bitsize()));
    match bits {
        Some(bits) if bits % 8 == 0 => Ok(bits / 8),
        Some(bits) => Err(format!(
            "shape {shape:?} of {dtype} is misaligned: {bits} bits do not end at a byte"
        )),
        None => Err(format!(
            "shape {shape:?} of {dtype} has more elements than memory has addresses"
        )),
    }
}
