//! Configuration of a model with grouped-query attention: one type for all families of models.

use super::decoder::{Decoder, Decodes, LayerConfig};
use super::layer::Layer;
use super::parts::Parts;
use super::{Family, PATH};
use crate::Real;
use crate::paths::{LoadError, Path};

/// Sizes of a model and the kinds of its layers, read from a `config.json` by [`PATH`].
pub type Config = Decoder<GroupedQuery>;

/// Properties of a model whose layers have grouped-query attention.
#[derive(Clone, Debug)]
pub struct GroupedQuery {
    /// Model family: properties that the `config.json` of a model does not state.
    pub family: &'static Family,
    /// α and c of [`Activation::Clamped`](crate::ops::gated_mlp::Activation::Clamped); `None` if experts do not clamp.
    pub clamp: Option<[f64; 2]>,
    /// True if the query, key and value projections have a bias.
    pub query_key_value_bias: bool,
    /// True if attention's output projection has a bias.
    pub output_bias: bool,
    /// True if feed-forward layers have biases.
    pub mlp_bias: bool,
}

impl Decodes for GroupedQuery {
    const PATH: &'static Path = &PATH;

    fn layer_types(&self, layer: LayerConfig) -> Vec<&'static str> {
        let mut types = vec![
            if layer.window.is_some() {
                "sliding_attention"
            } else {
                "full_attention"
            },
            if layer.experts { "experts" } else { "dense" },
        ];
        if self.family.norm_before_weight {
            types.push("norm_before_weight");
        }
        types
    }

    fn layer<T: Real>(parts: &mut Parts<'_, '_, '_, T, Self>, layer: LayerConfig) -> Result<Layer<T>, LoadError> {
        parts.layer(layer)
    }
}
