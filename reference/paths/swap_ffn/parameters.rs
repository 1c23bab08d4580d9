//! List of the tensors of a model, and their initial values before training.

use std::convert::Infallible;

use super::config::Config;
use super::sites::*;
use crate::SiteInfo;
use crate::paths::{self, Invalid, TensorSpec, Weights};

/// Iterates over the sites whose tensors are parameters of the model.
fn parameters() -> impl Iterator<Item = &'static SiteInfo> {
    SITES.iter().filter(|site| site.name.starts_with(PREFIX))
}

/// Prefix of the site names of parameters. The name of a parameter's tensor is the site name without the prefix.
const PREFIX: &str = "weights.";

/// Returns the name of the tensor that belongs to a parameter's site.
pub(super) fn tensor_name(site: &'static str) -> &'static str {
    site.strip_prefix(PREFIX).unwrap_or(site)
}

impl Config {
    /// Returns the list of all tensors of the model.
    pub fn tensors(&self) -> Vec<TensorSpec> {
        let spec = |site: &SiteInfo| TensorSpec {
            name: tensor_name(site.name).into(),
            shape: paths::Config::dims(self, site),
            integer: false,
        };
        parameters().map(spec).collect()
    }
}

/// Initial weights before training: random numbers of N(0, 1), scaled for each tensor.
pub struct Initial<'a, F> {
    /// Configuration of the model.
    pub config: &'a Config,
    /// Random number generator: `draw(name, n)` returns n numbers for the tensor `name`.
    pub draw: F,
}

/// Panics, since `Infallible` cannot hold an error. Loading from [`Weights`] that never fail, such as [`Initial`], needs this
/// conversion.
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
        // Embeddings keep the variance 1; other weights get the variance of PyTorch's linear layers, 1 / (3 · inputs).
        let deviation = inputs.map_or(1.0, |inputs| (3.0 * inputs as f64).powf(-0.5));
        let drawn = (self.draw)(name, len).into_iter();
        Ok(drawn.map(|x| (f64::from(x) * deviation) as f32).collect())
    }

    fn integers(&mut self, _: &str, _: &[usize]) -> Result<Vec<u32>, Infallible> {
        Ok(Vec::new())
    }
}
