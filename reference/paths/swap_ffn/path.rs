//! The path as others find it.

use super::{BANKS, Config, DecisionRule, Model, RouterForm, SITES, State, load};
use crate::paths::{self, Input, LoadError, Path, Takes, TensorSpec, Weights};
use crate::{Numerics, SiteInfo, Tensor};

/// Swap-FFN. A run takes a vector of each sequence and gives their deltas; a state begins with the banks of all sequences.
#[derive(Clone, Copy, Debug)]
pub struct SwapFfn;

impl Path for SwapFfn {
    fn name(&self) -> &'static str {
        "swap_ffn"
    }

    fn model_types(&self) -> &'static [&'static str] {
        &["swap_ffn"]
    }

    fn sites(&self) -> &'static [SiteInfo] {
        SITES
    }

    fn config(&self, json: &str) -> Result<Box<dyn paths::Config>, String> {
        let config: Config = serde_json::from_str(json).map_err(|error| error.to_string())?;
        config.check()?;
        Ok(Box::new(config))
    }
}

impl paths::Config for Config {
    fn path(&self) -> &'static dyn Path {
        &SwapFfn
    }

    fn layers(&self) -> usize {
        self.n_events
    }

    fn takes(&self) -> Takes {
        Takes::Vectors { cols: self.d_model }
    }

    fn size(&self, name: &str) -> Option<usize> {
        Some(match name {
            "collapse_k" => self.collapse_k,
            "collapse_r" => self.collapse_r,
            "core_count" => self.core_count,
            "d_embed" => self.d_embed,
            "d_ff" => self.d_ff,
            "d_model" => self.d_model,
            "d_router" => self.d_router,
            _ => return None,
        })
    }

    /// What all events decide by.
    fn layer_types(&self, _: usize) -> Vec<&'static str> {
        let form = match self.router {
            RouterForm::Folded => "folded",
            RouterForm::Unfolded => "unfolded",
        };
        let decision = match self.decision {
            DecisionRule::Logits => "logits",
            DecisionRule::Probabilities => "probabilities",
        };
        vec![form, decision]
    }

    fn tensors(&self) -> Vec<TensorSpec> {
        Config::tensors(self)
    }

    /// The banks.
    fn start(&self, sequences: usize) -> Vec<TensorSpec> {
        let ram = TensorSpec {
            name: "ram".into(),
            shape: vec![sequences, self.core_count, BANKS, self.d_model],
            integer: false,
        };
        vec![ram]
    }

    fn load_f32(
        &self,
        weights: &mut dyn Weights<Error = LoadError>,
        numerics: &mut dyn Numerics<f32>,
    ) -> Result<Box<dyn paths::Model<f32>>, LoadError> {
        Ok(Box::new(load(*self, weights, numerics)?))
    }

    fn load_f64(
        &self,
        weights: &mut dyn Weights<Error = LoadError>,
        numerics: &mut dyn Numerics<f64>,
    ) -> Result<Box<dyn paths::Model<f64>>, LoadError> {
        Ok(Box::new(load(*self, weights, numerics)?))
    }

    fn boxed(&self) -> Box<dyn paths::Config> {
        Box::new(*self)
    }
}

impl<T: paths::Scalar> paths::Model<T> for Model<T> {
    fn config(&self) -> &dyn paths::Config {
        Model::config(self)
    }

    fn state(&self, start: Vec<Tensor<T>>) -> Result<Box<dyn paths::State<T>>, String> {
        match <[Tensor<T>; 1]>::try_from(start) {
            Ok([ram]) => Ok(Box::new(State::new(Model::config(self), ram)?)),
            Err(other) => Err(format!("{} tensors to begin with, expected one, 'ram'", other.len())),
        }
    }

    fn run(
        &self,
        state: &mut dyn paths::State<T>,
        input: Input<'_, T>,
        numerics: &mut dyn Numerics<T>,
    ) -> Result<Tensor<T>, String> {
        match input {
            Input::Vectors(x_in) => Ok(self.step(x_in, state.of_mut()?, numerics)?.delta),
            Input::Ids(_) => Err(format!("the model takes vectors, not {}", input.kind())),
        }
    }
}

impl<T: paths::Scalar> paths::State<T> for State<T> {
    fn tokens(&self) -> usize {
        self.tokens
    }

    fn boxed(&self) -> Box<dyn paths::State<T>> {
        Box::new(self.clone())
    }
}
