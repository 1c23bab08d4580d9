//! The record that `ulplab quantize` writes into the metadata of a file, under the key `ulplab`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Nonfinite, reads_as};
use ulplab_core::error::{Error, Result, refuse};
use ulplab_core::formats::Format;
use ulplab_core::tensorfile::{KEY, Metadata, TensorFile};

/// Version of the manifest. Since version 2, the matrices of a stack are quantized one by one.
const VERSION: u32 = 2;

/// The quantized tensors of a file by name; their parts are `<name>.data`, `<name>.scale` and `<name>.global`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of the manifest; a file with another version is rejected.
    pub version: u32,
    /// The quantized tensors by name.
    pub tensors: BTreeMap<String, Entry>,
}

/// The properties of a tensor before and after it was quantized.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Format string, including the rule.
    pub format: String,
    /// Shape of the tensor before it was quantized.
    pub shape: Vec<usize>,
    /// Type of the tensor before it was quantized, as safetensors names it, e.g. `BF16`.
    pub dtype: String,
    /// Layout of the scales; `None` if they are row-major.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layout: Option<String>,
    /// Counts of NaN and infinities in the tensor before it was quantized; `None` if it had none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nonfinite: Option<Nonfinite>,
}

impl Entry {
    /// Returns the words "the file's metadata", for messages about the source that defines how scales are decoded. `None` if the
    /// format in the metadata decodes stored scales differently from `format`.
    pub(super) fn says(&self, format: &Format) -> Option<String> {
        let own: Format = self.format.parse().ok()?;
        reads_as(&own, format).then(|| "the file's metadata".into())
    }
}

impl Manifest {
    /// Reads the manifest from the metadata of a file; empty if there is none.
    pub fn read(file: &TensorFile) -> Result<Self> {
        let Some(text) = file.metadata().get(KEY) else {
            return Ok(Self::default());
        };
        let wrong = |why: String| Error::data(file.path(), format!("metadata '{KEY}': {why}"));
        let manifest: Self = serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
        let message = format_args!("version {}, expected {VERSION}", manifest.version);
        refuse(manifest.version != VERSION, message).map_err(wrong)?;
        Ok(manifest)
    }

    /// Returns the metadata of a file to be written: the metadata of the source file, and this manifest.
    pub fn write(mut self, source: &Metadata) -> Metadata {
        let mut metadata = source.clone();
        metadata.remove(KEY);
        if !self.tensors.is_empty() {
            self.version = VERSION;
            let text = serde_json::to_string(&self).expect("strings and numbers");
            metadata.insert(KEY.into(), text);
        }
        metadata
    }
}
