//! Storage formats of the numbers of a decode step: of the KV cache, of weights, and of the inputs of matrix products.

use super::projections::{ACTIVATIONS, Projection, activations, of_attention};
use ulplab_operations::ops::blocks::Blocks;
use ulplab_operations::ops::stored::{FP8, Storage};

/// Formats of a decode step: of the KV cache, of weights, and of the inputs of matrix products.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Formats<'a> {
    /// KV-record format of keys; `None` if keys are not stored as records.
    pub record: Option<&'a str>,
    /// Format of index keys, one of [`INDEX_RECORDS`](super::INDEX_RECORDS); `None` if index keys are not stored as records.
    pub index: Option<&'a str>,
    /// Storage of matrices, one of [`WEIGHTS`].
    pub weights: &'a str,
    /// Format of activations, one of [`ACTIVATIONS`](super::ACTIVATIONS); `None` if all are f32. The projections of attention
    /// take 8-bit activations of this format, and their weights are E4M3, even if other matrices are stored differently. With
    /// the suffix `+bf16`, all other products take bfloat16, and `weights` is [`SIXTEEN`].
    pub activations: Option<&'a str>,
}

impl<'a> Formats<'a> {
    /// All formats are f32.
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

    /// Returns these formats with activations in the format `activations`.
    pub const fn with_activations(self, activations: &'a str) -> Self {
        let activations = Some(activations);
        Self { activations, ..self }
    }

    /// Returns the properties (name and value, e.g. `stored` and `bf16`) of a test case with these formats, and the prefix of its
    /// name.
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

    /// True if all products except the projections of attention take bfloat16.
    pub(super) fn sixteen(self) -> bool {
        self.activations == Some(ACTIVATIONS[1])
    }

    /// Returns four flags: the KV cache is stored as records, index keys are stored as records, attention's projections take
    /// 8-bit codes, and all other products take bfloat16.
    pub(super) fn flags(self) -> [bool; 4] {
        let [records, indexed] = [self.record, self.index].map(|format| format.is_some());
        [records, indexed, self.activations.is_some(), self.sixteen()]
    }

    /// Parses the formats of the weights of routed experts, of all other weights, and of activations.
    ///
    /// # Errors
    /// Returns an error if a format of weights or of activations is unknown.
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

/// Storage of the matrices of routed experts, and of all other matrices. Embeddings, the matrices that mix streams, norms and
/// biases are always f32.
#[derive(Clone, Copy)]
pub(super) struct Storages {
    pub dense: Storage,
    routed: Storage,
    /// Format of the 8-bit activations of attention's projections, whose weights are stored as tiles; `None` for f32.
    pub activations: Option<&'static Blocks>,
    /// True if all products except the projections of attention take bfloat16. The shared expert is then stored after the
    /// routed experts, in the same format.
    pub sixteen: bool,
}

/// Storage formats of weights for which kernels are compiled. A single name applies to all matrices. In `a+b`, `b` applies to
/// routed experts, and `a` to all other matrices.
pub const WEIGHTS: [&str; 5] = ["f32", "bf16", FP8, "fp8_b64_f32+mxfp4", "fp8_b64_f32+nvfp4"];

/// Storage of matrices if products take bfloat16: MXFP4 for experts, bfloat16 for all other matrices.
pub const SIXTEEN: &str = "bf16+mxfp4";

/// Splits a name into the storage of all matrices except routed experts, and the storage of routed experts.
fn pair(weights: &str) -> [&str; 2] {
    weights
        .split_once('+')
        .map_or([weights; 2], |(dense, routed)| [dense, routed])
}

impl Storages {
    /// Parses a name such as `bf16+mxfp4`, which must be in `known`: returns the storage of all matrices except routed experts,
    /// and that of routed experts.
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

    /// Returns the projection of attention whose weights are `tensor`; `None` for other tensors, or if projections do not take
    /// 8-bit codes.
    pub fn projection(self, tensor: &str) -> Option<Projection> {
        self.activations.and_then(|_| Projection::of(tensor))
    }

    /// Returns the storage of a tensor; `None` if the tensor is not a matrix that may be stored as codes.
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

    /// Returns the bits per element of the storages `dense` and `routed`.
    pub fn bits(self) -> Result<[usize; 2], String> {
        Ok([self.dense.bits()?, self.routed.bits()?])
    }
}
