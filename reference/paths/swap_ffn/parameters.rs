//! The tensors a model is made of, and how they start before training.

use std::convert::Infallible;

use super::config::Config;
use super::lanes::BANKS;
use super::sites::*;
use crate::paths::{TensorSpec, Weights};

/// Initial values of a parameter.
#[derive(Clone, Copy)]
enum Start {
    Ones,
    /// N(0, 1).
    Normal,
    /// With the variance of PyTorch's linear layers, 1 / (3 · inputs).
    Linear(usize),
}

/// Shape and start of every parameter, by its site.
fn parameters(config: &Config) -> Vec<(&'static str, Vec<usize>, Start)> {
    let (d_model, d_ff, d_router, d_embed) = (config.d_model, config.d_ff, config.d_router, config.d_embed);
    let (core_count, collapse_k, collapse_r) = (config.core_count, config.collapse_k, config.collapse_r);
    let linear = |name, shape: &[usize], inputs| (name, shape.to_vec(), Start::Linear(inputs));
    vec![
        (EMBED, vec![core_count, d_embed], Start::Normal),
        linear(SCALE_WEIGHT, &[d_model, d_embed], d_embed),
        linear(SCALE_BIAS, &[d_model], d_embed),
        linear(SHIFT_WEIGHT, &[d_model, d_embed], d_embed),
        linear(SHIFT_BIAS, &[d_model], d_embed),
        linear(ALPHA_WEIGHT, &[collapse_k, d_embed], d_embed),
        linear(ALPHA_BIAS, &[collapse_k], d_embed),
        (ROUTER_NORM, vec![d_model], Start::Ones),
        linear(ROUTER_W, &[d_router, d_model], d_model),
        linear(SWAP_W, &[d_router], d_router),
        linear(SWAP_B, &[1], d_router),
        linear(BANK_W, &[d_router, BANKS], d_router),
        linear(BANK_B, &[BANKS], d_router),
        (FFN_NORM, vec![d_model], Start::Ones),
        linear(W1, &[d_ff, d_model], d_model),
        linear(W3, &[d_ff, d_model], d_model),
        linear(W2, &[d_model, d_ff], d_ff),
        linear(BASIS, &[collapse_k, collapse_r, d_model], d_model),
        linear(DECODER, &[d_model, collapse_r], collapse_r),
    ]
}

/// Returns the name of the tensor of a parameter's site.
pub(super) fn tensor_name(site: &'static str) -> &'static str {
    site.strip_prefix("weights.").unwrap_or(site)
}

impl Config {
    /// Every tensor of the model.
    pub fn tensors(&self) -> Vec<TensorSpec> {
        let spec = |(site, shape, _)| TensorSpec {
            name: tensor_name(site).into(),
            shape,
            integer: false,
        };
        parameters(self).into_iter().map(spec).collect()
    }
}

/// Weights before training, of numbers that `draw` gives: so many of N(0, 1) for the tensor of that name.
pub struct Initial<'a, F> {
    /// The configuration of the model that is made.
    pub config: &'a Config,
    /// `draw(name, n)` gives n numbers.
    pub draw: F,
}

impl<F: FnMut(&str, usize) -> Vec<f32>> Weights for Initial<'_, F> {
    type Error = Infallible;

    fn floats(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, Infallible> {
        let len = shape.iter().product();
        let known = parameters(self.config);
        let start = known.iter().find(|(site, ..)| tensor_name(site) == name);
        let deviation = match start.map_or(Start::Normal, |(_, _, start)| *start) {
            Start::Ones => return Ok(vec![1.0; len]),
            Start::Normal => 1.0,
            Start::Linear(inputs) => (3.0 * inputs as f64).powf(-0.5),
        };
        let drawn = (self.draw)(name, len).into_iter();
        Ok(drawn.map(|x| (f64::from(x) * deviation) as f32).collect())
    }

    fn integers(&mut self, _: &str, _: &[usize]) -> Result<Vec<u32>, Infallible> {
        Ok(Vec::new())
    }
}
