//! A path that is not the crate's: each layer attends to keys and values that are cached apart, or reads a state of fixed size.

use reference::ops::linear::{Linear, dot};
use reference::ops::rmsnorm::rmsnorm;
use reference::paths::{Config, Input, Loader, LoadError, Model, Path, State, Takes, TensorSpec, Weights};
use reference::sites::{Growth, Held};
use reference::{Numerics, Real, Site, SiteInfo, Tensor};
use serde::Deserialize;

reference::sites! {
    KEYS: "attention.keys" [T, width] "keys" .layered_if(&["full_attention"]).cached(Growth::Token, Held::Key).compared();
    VALUES: "attention.values" [T, width] "values" .layered_if(&["full_attention"]).cached(Growth::Token, Held::Value).compared();
    STATE: "linear.state" [width, width] "state after the call" .layered_if(&["linear_attention"]).cached(Growth::State, Held::State);
    OUTPUT: "output" [T, width] "residual stream that leaves the layer" .layered().leaves().compared();
    LOGITS: "logits" [T, vocab_size] "logits" .output();
}

pub struct Tiny;

impl Path for Tiny {
    fn name(&self) -> &'static str {
        "tiny"
    }
    fn model_types(&self) -> &'static [&'static str] {
        &["tiny", "tiny_text"]
    }
    fn sites(&self) -> &'static [SiteInfo] {
        SITES
    }
    fn config(&self, json: &str) -> Result<Box<dyn Config>, String> {
        Ok(Box::new(serde_json::from_str::<Sizes>(json).map_err(|error| error.to_string())?))
    }
}

#[derive(Clone, Debug, Deserialize)]
pub struct Sizes {
    vocab_size: usize,
    width: usize,
    layer_types: Vec<String>,
}

/// A layer's projections: to queries, keys and values.
type Layer<T> = [Linear<T>; 3];

impl Sizes {
    fn load<T: Real>(&self, weights: &mut dyn Weights<Error = LoadError>) -> Result<Whole<T>, LoadError> {
        let (width, mut load) = (self.width, Loader::new(weights));
        let embedding = load.tensor("embed", &[self.vocab_size, width])?;
        let mut layers = Vec::new();
        for layer in 0..self.layer_types.len() {
            load.prefix = format!("layers.{layer}.");
            layers.push([load.linear("q", width, width)?, load.linear("k", width, width)?, load.linear("v", width, width)?]);
        }
        Ok(Whole { sizes: self.clone(), embedding: Linear { weight: embedding }, layers })
    }
}

#[rustfmt::skip]
impl Config for Sizes {
    fn path(&self) -> &'static dyn Path { &Tiny }
    fn layers(&self) -> usize { self.layer_types.len() }
    fn takes(&self) -> Takes { Takes::Ids { vocabulary: self.vocab_size } }
    fn size(&self, name: &str) -> Option<usize> {
        [("width", self.width), ("vocab_size", self.vocab_size)].iter().find(|size| size.0 == name).map(|size| size.1)
    }
    fn layer_types(&self, layer: usize) -> Vec<&'static str> {
        vec![if self.layer_types[layer] == "linear_attention" { "linear_attention" } else { "full_attention" }]
    }
    fn tensors(&self) -> Vec<TensorSpec> {
        reference::paths::asked(|weights| self.load::<f32>(weights).map(drop))
    }
    fn load_f32(&self, weights: &mut dyn Weights<Error = LoadError>, _: &mut dyn Numerics<f32>) -> Result<Box<dyn Model<f32>>, LoadError> {
        Ok(Box::new(self.load::<f32>(weights)?))
    }
    fn load_f64(&self, weights: &mut dyn Weights<Error = LoadError>, _: &mut dyn Numerics<f64>) -> Result<Box<dyn Model<f64>>, LoadError> {
        Ok(Box::new(self.load::<f64>(weights)?))
    }
    fn boxed(&self) -> Box<dyn Config> { Box::new(self.clone()) }
}
