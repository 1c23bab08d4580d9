//! Registers Swap-FFN as a path (an implementation of one kind of model): the static [`Path`], and its [`paths::Config`].

use serde_json::{Map, Value};

use super::{BANKS, Config, DecisionRule, Model, RouterForm, SITES, State, load};
use crate::paths::keys::INERT;
use crate::paths::{self, Input, LoadError, Path, Source, Takes, TensorSpec};
use crate::{Numerics, Tensor};

/// The path Swap-FFN. A run takes one vector per sequence and returns one delta per sequence. A state is initialised with the
/// content of the memory banks of all sequences.
pub static PATH: Path = Path {
    name: "swap_ffn",
    model_types: || vec!["swap_ffn"],
    sites: SITES,
    read: |json, _| read(json),
    nearest: |_| None,
};

/// Reads a `config.json`. Takes no list of keys to ignore: only accuracy measurements pass such a list, and they measure only
/// models that take token ids.
fn read(json: &str) -> Result<Box<dyn paths::Config>, String> {
    let mut keys: Map<String, Value> = serde_json::from_str(json).map_err(|error| error.to_string())?;
    keys.retain(|key, _| INERT.split(' ').all(|inert| inert != key));
    let config: Config = serde_json::from_value(keys.into()).map_err(|error| error.to_string())?;
    config.check()?;
    Ok(Box::new(config))
}

impl paths::Config for Config {
    fn path(&self) -> &'static Path {
        &PATH
    }

    fn layers(&self) -> usize {
        self.n_events
    }

    fn takes(&self) -> Takes {
        Takes::Vectors { cols: self.d_model }
    }

    sizes! {
        collapse_k, collapse_r, core_count, d_embed, d_ff, d_model, d_router
    }

    /// Returns the form and the decision rule of the router, which are the same for all events.
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

    /// Returns one tensor: the initial content of the banks of all sequences.
    fn start(&self, sequences: usize) -> Vec<TensorSpec> {
        let ram = TensorSpec {
            name: "ram".into(),
            shape: vec![sequences, self.core_count, BANKS, self.d_model],
            integer: false,
        };
        vec![ram]
    }
}

impl<T: paths::Scalar> paths::Loads<T> for Config {
    fn load(
        &self,
        weights: &mut Source<'_>,
        numerics: &mut dyn Numerics<T>,
    ) -> Result<Box<dyn paths::Model<T>>, LoadError> {
        Ok(Box::new(load(*self, weights, numerics)?))
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
        Ok(self.step(input.vectors()?, state.of_mut()?, numerics)?.delta)
    }
}

impl<T: paths::Scalar> paths::State<T> for State<T> {
    fn tokens(&self) -> usize {
        self.tokens
    }
}
