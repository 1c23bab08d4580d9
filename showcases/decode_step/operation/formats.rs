//! Formats of a step: of its keys, its weights, and the activations of its products.

use super::projections::{ACTIVATIONS, Projection, activations, of_attention};
use ulplab_operations::ops::blocks::Blocks;
use ulplab_operations::ops::stored::{FP8, Storage};

/// Formats of a step: of its keys, its weights, and the activations of its products.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Formats<'a> {
    /// The format of keys, if they are stored as KV records.
    pub record: Option<&'a str>,
    /// The format of index keys, if they are stored as records: one of [`INDEX_RECORDS`](super::INDEX_RECORDS).
    pub index: Option<&'a str>,
    /// The storage of matrices, one of [`WEIGHTS`].
    pub weights: &'a str,
    /// The format of what the products of attention take, one of [`ACTIVATIONS`](super::ACTIVATIONS), if they are of eight bits; their
    /// weights are E4M3 then, too, however other matrices are stored. With a `+bf16` behind it, all other products take bfloat16, and
    /// weights are [`SIXTEEN`].
    pub activations: Option<&'a str>,
}

impl<'a> Formats<'a> {
    /// Everything is f32.
    pub const F32: Self = Self {
        record: None,
        index: None,
        weights: "f32",
        activations: None,
    };

    /// Returns these formats with keys stored as KV records of the format `record`.
    pub const fn with_record(self, record: &'a str) -> Self {
        let record = Some(record);
        Self { record, ..self }
    }

    /// Returns these formats with index keys stored as records of the format `index`.
    pub const fn with_index(self, index: &'a str) -> Self {
        let index = Some(index);
        Self { index, ..self }
    }

    /// Returns these formats with matrices stored as `weights`.
    pub const fn with_weights(self, weights: &'a str) -> Self {
        Self { weights, ..self }
    }

    /// The same with products of attention that take activations in this format.
    pub const fn with_activations(self, activations: &'a str) -> Self {
        let activations = Some(activations);
        Self { activations, ..self }
    }

    /// The keys of a case, and what stands before its name.
    pub(super) fn keys(self) -> (Vec<(&'static str, String)>, String) {
        let [dense, routed] = pair(self.weights);
        let mut keys = vec![("stored", dense.to_string()), ("routed", routed.to_string())];
        keys.extend(self.record.map(|record| ("record", record.to_string())));
        keys.extend(self.index.map(|index| ("index", index.to_string())));
        keys.extend(
            self.activations
                .map(|format| ("activations", of_attention(format).to_string())),
        );
        let weights = Some(self.weights).filter(|weights| *weights != Self::F32.weights);
        let eight = self.activations.map(|_| if self.sixteen() { "w8a16" } else { "w8a8" });
        let prefix = eight.into_iter().chain(weights).chain(self.record).chain(self.index);
        let prefix = prefix.map(|format| format!("{format}."));
        (keys, prefix.collect())
    }

    /// True if all products except attention's take bfloat16.
    pub(super) fn sixteen(self) -> bool {
        self.activations == Some(ACTIVATIONS[1])
    }

    /// True for keys that are records, index keys that are records, products of attention in eight bits, and all others in sixteen.
    pub(super) fn flags(self) -> [bool; 4] {
        let [records, indexed] = [self.record, self.index].map(|format| format.is_some());
        [records, indexed, self.activations.is_some(), self.sixteen()]
    }

    /// The storage of matrices.
    ///
    /// # Errors
    /// If the name of the storage or of the format of activations is unknown.
    pub(super) fn storages(self) -> Result<Storages, String> {
        let sixteen = self.sixteen();
        let [dense, routed] = Storages::pair(self.weights, if sixteen { &[SIXTEEN] } else { &WEIGHTS })?;
        Ok(Storages {
            dense,
            routed,
            activations: self.activations.map(activations).transpose()?,
            sixteen,
        })
    }
}

/// The storage of matrices: of routed experts, and of all others. Embeddings, the matrices that mix streams, norms and biases are
/// f32 always.
#[derive(Clone, Copy)]
pub(super) struct Storages {
    pub dense: Storage,
    routed: Storage,
    /// Activation format of 8-bit attention GEMMs; their weights are in tiles.
    pub activations: Option<&'static Blocks>,
    /// True if all other products take bfloat16: then the shared expert is stored after the routed ones, in the same format.
    pub sixteen: bool,
}

/// The ways to store matrices for which kernels are compiled: one for all, or one for those of routed experts behind a `+`.
pub const WEIGHTS: [&str; 5] = ["f32", "bf16", FP8, "fp8_b64_f32+mxfp4", "fp8_b64_f32+nvfp4"];

/// The storage of matrices in products of bfloat16: MXFP4 for experts, bfloat16 for all others.
pub const SIXTEEN: &str = "bf16+mxfp4";

/// The storage of all matrices except those of routed experts, and of these.
fn pair(weights: &str) -> [&str; 2] {
    weights
        .split_once('+')
        .map_or([weights; 2], |(dense, routed)| [dense, routed])
}

impl Storages {
    /// The storages of a name that is `known`: of all matrices except those of routed experts, and of these.
    fn pair(weights: &str, known: &[&str]) -> Result<[Storage; 2], String> {
        if !known.contains(&weights) {
            let known = known.join(", ");
            return Err(format!(
                "a whole step does not store weights as '{weights}': expected one of {known}"
            ));
        }
        let [dense, routed] = pair(weights);
        Ok([Storage::named(dense)?, Storage::named(routed)?])
    }

    /// The product of eight bits that a tensor's weights are of.
    pub fn projection(self, tensor: &str) -> Option<Projection> {
        self.activations.and_then(|_| Projection::of(tensor))
    }

    /// The storage of a tensor, if it is a matrix that may be codes.
    pub fn of(self, tensor: &str) -> Option<Storage> {
        let dense =
            tensor.ends_with("_proj.weight") || tensor.ends_with("mlp.gate.weight") || tensor == "lm_head.weight";
        match () {
            _ if tensor.contains("mlp.experts.") => Some(self.routed),
            _ if self.sixteen && tensor.contains("mlp.shared_experts.") => Some(self.routed),
            _ if dense => Some(self.dense),
            _ => None,
        }
    }

    /// Bits of an element of each.
    pub fn bits(self) -> Result<[usize; 2], String> {
        Ok([self.dense.bits()?, self.routed.bits()?])
    }
}
