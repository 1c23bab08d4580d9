//! A candidate (an altered model to compare with the reference), as it is written in an experiment file.

use std::num::NonZeroUsize;

use reference::paths::Config;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use super::calls::Calls;
use crate::backend::recipe::{Ranges, Round};
use crate::backend::rounding::{Noise, Rounding};
use crate::backend::stand_in::stand_in;
use crate::experiment::Mistake;
use ulplab_core::error::refuse;
use ulplab_operations::ops::call::Type;

/// A candidate to measure against the reference.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    pub name: String,
    /// Description of the recipe, in one line.
    pub doc: String,
    /// Replace each rounding error by Gaussian noise of the same energy. The noise has the error's size, but not its structure.
    #[serde(default)]
    pub noise: bool,
    /// The size of the noise, in multiples of the rounding error.
    pub gain: Option<f64>,
    #[serde(default, rename = "round", skip_serializing_if = "Vec::is_empty")]
    pub rounds: Vec<Round>,
    /// Replaces this recipe by one recipe for each of the given layers, to show how sensitive each layer is.
    pub each: Option<Each>,
    /// Kernels that compute operations of the model, as `op.variant`. If several compute one operation, the first that supports
    /// the sizes is used.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kernels: Vec<String>,
    /// Type of the tensors that `kernels` read and write.
    #[serde(default, skip_serializing_if = "Type::is_f32")]
    pub dtype: Type,
    /// Kernel that computes the whole model token by token, `decode_step.VARIANT`. Only the phase `cumulative` is measured.
    pub step: Option<String>,
    /// Format of the matrices in the kernel of `step`: `f32`, `bf16` or `fp8_b64_f32` (the checkpoint's own FP8 codes, if it has
    /// them). The suffix `+mxfp4` or `+nvfp4` sets the format of routed experts. Kernels decode matrices on read; activations
    /// stay f32.
    pub weights: Option<String>,
    /// Format of index keys and index queries in the kernel of `step`: `index_fp8` or `index_mxfp4`; f32 if absent.
    pub index: Option<String>,
    /// Number of tokens in each call of the model: `1` is decoding; by default, one call reads all tokens. Only the order of sums
    /// changes, except that a recurrent state is rounded after every call. Only the phase `cumulative` is measured.
    pub chunk: Option<NonZeroUsize>,
    /// Splits the text into calls of 1, 2, 4, … or 64 tokens. This number, the experiment's seed and the window's name select the
    /// random sizes; another number gives another order of sums. Only the phase `cumulative` is measured.
    pub cuts: Option<u64>,
    /// Name of a recipe to compare with in place of the reference, e.g. to compare kernels with the rounding that they should
    /// compute. Only the phase `cumulative` is measured.
    pub against: Option<String>,
}

impl Recipe {
    /// Resolves the recipe's roundings, noise and kernels for the model of `config`.
    ///
    /// # Errors
    /// Returns an error if the recipe does not fit the model. The error names the key of the recipe that has the mistake.
    pub fn resolve(&self, config: &dyn Config, seed: u64) -> Result<Rounding, Mistake> {
        let kernels = stand_in(&self.kernels, self.dtype)?;
        let noise = Noise::asked(self.noise, self.gain, seed)?;
        Rounding::resolve(&self.rounds, noise, kernels, config)
    }

    /// True if the local phase, which feeds every layer the reference's input, is impossible: the recipe does not compute single
    /// layers, or is not compared with single layers of the reference.
    pub(super) fn runs_free(&self) -> bool {
        self.step.is_some() || self.chunk.is_some() || self.cuts.is_some() || self.against.is_some()
    }

    /// Returns the calls in which the recipe reads a text; `None` if it reads the whole text in one call.
    pub(super) fn calls(&self, seed: u64) -> Option<Calls> {
        let drawn = self.cuts.map(|number| Calls::Drawn { seed, number });
        self.chunk.map(Calls::Even).or(drawn)
    }
}

/// One recipe for each of some layers. In gates, a pattern such as `NAME_*` matches all of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Each {
    /// `only = "0-23"`: the recipe `NAME_l7` rounds only layer 7.
    Only(String),
    /// `but = "0-23"`: the recipe `NAME_but7` rounds all of these layers except layer 7.
    But(String),
}

/// Largest number of layers of a model; a larger number is refused as a mistake.
pub(super) const MOST_LAYERS: usize = 1024;

impl Each {
    /// Expands a recipe with the key `each` into one recipe per layer or group of layers. Returns for each of them the suffix of its
    /// name, the suffix of its description, and the layers that it rounds.
    fn layers(&self) -> Result<Vec<(String, String, Ranges)>, String> {
        let (Self::Only(text) | Self::But(text)) = self;
        let all = Ranges::parse(text, MOST_LAYERS, "layer", "layers").map_err(|message| format!("each: {message}"))?;
        let all: Vec<usize> = (0..MOST_LAYERS).filter(|layer| all.contains(*layer)).collect();
        let of = |layer: usize| match self {
            Self::Only(_) => (format!("l{layer}"), format!("layer {layer} only"), Ranges::of([layer])),
            Self::But(_) => {
                let others = Ranges::of(all.iter().copied().filter(|other| *other != layer));
                (format!("but{layer}"), format!("without layer {layer}"), others)
            }
        };
        let why = format_args!("each: but = \"{text}\" leaves no layer: expected two or more");
        refuse(matches!(self, Self::But(_)) && all.len() < 2, why)?;
        Ok(all.iter().map(|layer| of(*layer)).collect())
    }
}

impl Recipe {
    /// Expands the key `each`: returns one recipe for each listed layer. A recipe without the key is returned unchanged.
    fn layer_by_layer(self) -> Result<Vec<Self>, String> {
        let Some(each) = &self.each else {
            return Ok(vec![self]);
        };
        let wrong = |message: String| format!("recipe '{}': {message}", self.name);
        let why = "each: there is no 'round' that could be of one layer";
        refuse(self.rounds.is_empty(), why).map_err(wrong)?;
        let named = self.rounds.iter().any(|round| round.layers.is_some());
        refuse(named, "each: a 'round' of the recipe names 'layers' itself").map_err(wrong)?;
        let of = |(name, doc, layers): (String, String, Ranges)| {
            let mut recipe = Self {
                name: format!("{}_{name}", self.name),
                doc: format!("{}, {doc}", self.doc),
                each: None,
                ..self.clone()
            };
            for round in &mut recipe.rounds {
                round.layers = Some(layers.to_string());
            }
            recipe
        };
        let layers = each.layers().map_err(wrong)?;
        Ok(layers.into_iter().map(of).collect())
    }
}

/// Deserializes recipes. A recipe with the key `each` is replaced by one recipe for each of its layers.
pub fn written_out<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Recipe>, D::Error> {
    let recipes = Vec::<Recipe>::deserialize(deserializer)?.into_iter();
    let written: Result<Vec<Vec<Recipe>>, String> = recipes.map(Recipe::layer_by_layer).collect();
    Ok(written.map_err(serde::de::Error::custom)?.concat())
}
