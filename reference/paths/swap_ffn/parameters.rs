//! The tensors a model is made of, and how they start before training.

use std::convert::Infallible;

use super::config::Config;
use super::sites::*;
use crate::SiteInfo;
use crate::paths::{self, Invalid, TensorSpec, Weights};

/// The sites of parameters.
fn parameters() -> impl Iterator<Item = &'static SiteInfo> {
    SITES.iter().filter(|site| site.name.starts_with(PREFIX))
}

/// The prefix of the sites of parameters, which their tensors do not have.
const PREFIX: &str = "weights.";

/// Returns the name of the tensor of a parameter's site.
pub(super) fn tensor_name(site: &'static str) -> &'static str {
    site.strip_prefix(PREFIX).unwrap_or(site)
}

impl Config {
    /// Every tensor of the model.
    pub fn tensors(&self) -> Vec<TensorSpec> {
        let spec = |site: &SiteInfo| TensorSpec {
            name: tensor_name(site.name).into(),
            shape: paths::Config::dims(self, site),
            integer: false,
        };
        parameters().map(spec).collect()
    }
}

/// Weights before training, of numbers that `draw` gives: so many of N(0, 1) for the tensor of that name.
pub struct Initial<'a, F> {
    /// The configuration of the model that is made.
    pub config: &'a Config,
    /// `draw(name, n)` gives n numbers.
    pub draw: F,
}

/// Weights that cannot fail have no error for a model that cannot be made of them.
impl From<Invalid> for Infallible {
    fn from(invalid: Invalid) -> Self {
        panic!("{invalid}")
    }
}

impl<F: FnMut(&str, usize) -> Vec<f32>> Weights for Initial<'_, F> {
    type Error = Infallible;

    fn floats(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, Infallible> {
        let len = shape.iter().product();
        let inputs = match parameters().find(|site| tensor_name(site.name) == name) {
            Some(site) if [ROUTER_NORM, FFN_NORM].contains(&site.name) => return Ok(vec![1.0; len]),
            Some(site) => match site.name {
                EMBED => None,
                SCALE_BIAS | SHIFT_BIAS | ALPHA_BIAS => Some(self.config.d_embed),
                SWAP_B | BANK_W | BANK_B => Some(self.config.d_router),
                _ => shape.last().copied(),
            },
            None => None,
        };
        // N(0, 1), or with the variance of PyTorch's linear layers, 1 / (3 · inputs).
        let deviation = inputs.map_or(1.0, |inputs| (3.0 * inputs as f64).powf(-0.5));
        let drawn = (self.draw)(name, len).into_iter();
        Ok(drawn.map(|x| (f64::from(x) * deviation) as f32).collect())
    }

    fn integers(&mut self, _: &str, _: &[usize]) -> Result<Vec<u32>, Infallible> {
        Ok(Vec::new())
    }
}
