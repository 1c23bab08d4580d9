//! How a step stores its keys and its weights.

use super::super::stored::{FP8, Storage};

/// How a step stores its keys and its weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Formats<'a> {
    /// The format of keys, if they are stored as KV records.
    pub record: Option<&'a str>,
    /// The format of index keys, if they are stored as records: one of [`INDEX_RECORDS`](super::INDEX_RECORDS).
    pub index: Option<&'a str>,
    /// How matrices are stored, one of [`WEIGHTS`].
    pub weights: &'a str,
}

impl<'a> Formats<'a> {
    /// Everything is f32.
    pub const F32: Self = Self {
        record: None,
        index: None,
        weights: "f32",
    };

    /// The same with keys as these records.
    pub const fn with_record(self, record: &'a str) -> Self {
        let record = Some(record);
        Self { record, ..self }
    }

    /// The same with index keys as these records.
    pub const fn with_index(self, index: &'a str) -> Self {
        let index = Some(index);
        Self { index, ..self }
    }

    /// The same with weights that are stored so.
    pub const fn with_weights(self, weights: &'a str) -> Self {
        Self { weights, ..self }
    }

    /// The keys of a case, and what stands before its name.
    pub(super) fn keys(self) -> (Vec<(&'static str, String)>, String) {
        let [dense, routed] = pair(self.weights);
        let mut keys = vec![("stored", dense.to_string()), ("routed", routed.to_string())];
        keys.extend(self.record.map(|record| ("record", record.to_string())));
        keys.extend(self.index.map(|index| ("index", index.to_string())));
        let weights = Some(self.weights).filter(|weights| *weights != Self::F32.weights);
        let prefix = weights.into_iter().chain(self.record).chain(self.index);
        let prefix = prefix.map(|format| format!("{format}."));
        (keys, prefix.collect())
    }

    /// Whether keys, and index keys, are records.
    pub(super) fn records(self) -> [bool; 2] {
        [self.record.is_some(), self.index.is_some()]
    }
}

/// How matrices are stored: those of routed experts, and all others. Embeddings, the matrices that mix streams, norms and biases are
/// f32 always.
#[derive(Clone, Copy)]
pub(super) struct Storages {
    pub dense: Storage,
    routed: Storage,
}

/// The ways to store matrices for which kernels are compiled: one for all, or one for those of routed experts behind a `+`.
pub const WEIGHTS: [&str; 5] = ["f32", "bf16", FP8, "fp8_b64_f32+mxfp4", "fp8_b64_f32+nvfp4"];

/// How all matrices but those of routed experts are stored, and these.
fn pair(weights: &str) -> [&str; 2] {
    weights
        .split_once('+')
        .map_or([weights; 2], |(dense, routed)| [dense, routed])
}

impl Storages {
    /// Those with a name of [`WEIGHTS`].
    ///
    /// # Errors
    /// There is none.
    pub fn named(weights: &str) -> Result<Self, String> {
        if !WEIGHTS.contains(&weights) {
            let known = WEIGHTS.join(", ");
            return Err(format!(
                "a whole step does not store weights as '{weights}': expected one of {known}"
            ));
        }
        let [dense, routed] = pair(weights);
        Ok(Self {
            dense: Storage::named(dense)?,
            routed: Storage::named(routed)?,
        })
    }

    /// How a tensor is stored, if it is a matrix that may be codes.
    pub fn of(self, tensor: &str) -> Option<Storage> {
        let dense =
            tensor.ends_with("_proj.weight") || tensor.ends_with("mlp.gate.weight") || tensor == "lm_head.weight";
        match () {
            _ if tensor.contains("mlp.experts.") => Some(self.routed),
            _ if dense => Some(self.dense),
            _ => None,
        }
    }

    /// Bits of an element of each.
    pub fn bits(self) -> Result<[usize; 2], String> {
        Ok([self.dense.bits()?, self.routed.bits()?])
    }
}
