//! Interface of models and their states, the same for all paths (a path is the implementation of one kind of model).

use std::any::Any;
use std::fmt::Debug;

use dyn_clone::{DynClone, clone_trait_object};

use super::weights::Kept;
use super::{Config, Invalid, LoadError, Loads, Source, Weights};
use crate::{Bounded, Numerics, Real, Tensor};

/// Input of a model.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a, T> {
    /// The next tokens of one sequence, processed in one call.
    Ids(&'a [u32]),
    /// The next vector of every sequence, `[B, cols]`.
    Vectors(&'a Tensor<T>),
}

impl<'a, T> Input<'a, T> {
    /// Returns the token ids.
    ///
    /// # Errors
    /// Returns an error if the input has vectors.
    pub fn ids(self) -> Result<&'a [u32], String> {
        match self {
            Self::Ids(ids) => Ok(ids),
            Self::Vectors(_) => Err("the model takes token ids, not vectors".into()),
        }
    }

    /// Returns the vectors.
    ///
    /// # Errors
    /// Returns an error if the input has token ids.
    pub fn vectors(self) -> Result<&'a Tensor<T>, String> {
        match self {
            Self::Vectors(vectors) => Ok(vectors),
            Self::Ids(_) => Err("the model takes vectors, not token ids".into()),
        }
    }
}

/// A model with its weights.
pub trait Model<T: Real>: Any + Send + Sync {
    /// Returns the configuration with which the model was loaded.
    fn config(&self) -> &dyn Config;

    /// Creates the state before the first token. `start` has one tensor for each entry of [`Config::start`], in the same order;
    /// most paths have none.
    ///
    /// # Errors
    /// Returns an error if the tensors of `start` do not match [`Config::start`].
    fn state(&self, start: Vec<Tensor<T>>) -> Result<Box<dyn State<T>>, String>;

    /// Runs the model on the input, updates the state, and returns the tensor at the path's [output](super::Path::output).
    /// Prefill is a run of many tokens, decode a run of one token. `numerics` is called at every site.
    ///
    /// # Errors
    /// Returns an error if the model cannot take the input, the state belongs to another model, or a hook overwrote a decision
    /// with an index that is out of range.
    fn run(
        &self,
        state: &mut dyn State<T>,
        input: Input<'_, T>,
        numerics: &mut dyn Numerics<T>,
    ) -> Result<Tensor<T>, String>;

    /// Runs only the layers from `layer` on, for all tokens `ids` of a sequence. `stream` is the residual stream that enters
    /// `layer`: the tensor of the previous layer at the path's [stream](super::Path::stream). `numerics` is called at the sites
    /// from `layer` on. The result is the tensor at the path's [output](super::Path::output), bit-identical to a run of the whole
    /// model with this stream. If several runs have the same first layers, a caller can therefore compute these layers once.
    /// Returns `None` if models of the path cannot start at a layer.
    ///
    /// # Errors
    /// Returns an error if the layer does not exist, or if the stream has the wrong shape.
    fn resume(
        &self,
        _layer: usize,
        _stream: Tensor<T>,
        _ids: &[u32],
        _numerics: &mut dyn Numerics<T>,
    ) -> Option<Result<Tensor<T>, String>> {
        None
    }
}

/// Returns an error if `ids` is empty, or if an id is not below `vocabulary`, the size of the vocabulary.
pub(super) fn check_ids(ids: &[u32], vocabulary: usize) -> Result<(), String> {
    if ids.is_empty() {
        return Err("no tokens to feed".into());
    }
    match ids.iter().find(|&&id| id as usize >= vocabulary) {
        Some(id) => Err(format!("token {id} is beyond the vocabulary of {vocabulary}")),
        None => Ok(()),
    }
}

/// Checks that `start` has no tensors, for models whose states begin empty.
pub(super) fn begins_empty<T>(start: &[Tensor<T>]) -> Result<(), String> {
    match start.len() {
        0 => Ok(()),
        found => Err(format!("{found} tensors to begin with, expected none")),
    }
}

/// State of a sequence between calls. The methods `of` and `of_mut` of `dyn State` downcast the state to the path's own type.
pub trait State<T: Real>: Any + Debug + DynClone + Send + Sync {
    /// Returns the number of tokens processed.
    fn tokens(&self) -> usize;
}

impl<T: Real> dyn State<T> {
    /// Downcasts the state to the path's own type.
    ///
    /// # Errors
    /// Returns an error if the state belongs to another path.
    pub fn of<S: State<T>>(&self) -> Result<&S, String> {
        (self as &dyn Any).downcast_ref().ok_or_else(other)
    }

    /// Mutable form of `of`.
    ///
    /// # Errors
    /// Returns an error if the state belongs to another path.
    pub fn of_mut<S: State<T>>(&mut self) -> Result<&mut S, String> {
        (self as &mut dyn Any).downcast_mut().ok_or_else(other)
    }
}

pub(super) fn other() -> String {
    "the state is that of a model of another path".into()
}

clone_trait_object!(<T: Real> State<T>);

mod sealed {
    use super::*;
    use crate::paths::deepseek_v4;

    /// Scalars for which this package compiles all paths.
    pub trait Compiled: Real {
        fn loads(config: &dyn Config) -> &dyn Loads<Self>;

        fn deepseek_v4(
            model: &deepseek_v4::Model<Self>,
            state: &mut deepseek_v4::State<Self>,
            ids: &[u32],
            numerics: &mut dyn Numerics<Self>,
        ) -> Result<Tensor<Self>, String>;
    }

    macro_rules! compiled {
        ($($scalar:ty),*) => {$(
            impl Compiled for $scalar {
                fn loads(config: &dyn Config) -> &dyn Loads<Self> {
                    config
                }

                fn deepseek_v4(
                    model: &deepseek_v4::Model<Self>,
                    state: &mut deepseek_v4::State<Self>,
                    ids: &[u32],
                    numerics: &mut dyn Numerics<Self>,
                ) -> Result<Tensor<Self>, String> {
                    model.forward(state, ids, numerics)
                }
            }
        )*};
    }
    compiled!(f32, f64, Bounded);
}

/// Scalar in which models run: f32, f64 or [`Bounded`]. For these scalars, the generic code of the models is compiled within
/// this package, with its optimisation level. A generic instance in a caller's crate would have the caller's optimisation
/// level, which is slow in a development build.
pub trait Scalar: sealed::Compiled {}

impl<T: sealed::Compiled> Scalar for T {}

/// Loads the model of a configuration, and calls `numerics` at the sites of weights ([`When::Load`](crate::sites::When::Load)).
///
/// # Errors
/// Returns the errors of `weights`, and an error if the tensors do not fit the configuration.
pub fn load<T: Scalar, W: Weights + ?Sized>(
    config: &dyn Config,
    weights: &mut W,
    numerics: &mut dyn Numerics<T>,
) -> Result<Box<dyn Model<T>>, W::Error>
where
    Invalid: Into<W::Error>,
{
    of_weights(weights, |weights| T::loads(config).load(weights, numerics))
}

/// Calls `make` with the weights as a trait object. If reading a weight fails, returns the error with its original type.
pub(super) fn of_weights<R, W: Weights + ?Sized>(
    weights: &mut W,
    make: impl FnOnce(&mut Source<'_>) -> Result<R, LoadError>,
) -> Result<R, W::Error>
where
    Invalid: Into<W::Error>,
{
    let mut kept = Kept { weights, error: None };
    make(&mut kept).map_err(|error| match (error, kept.error) {
        (LoadError::Weights, Some(error)) => error,
        (LoadError::Weights, None) => Invalid::Tensor("an error that the weights did not give".into()).into(),
        (LoadError::Model(invalid), _) => invalid.into(),
    })
}
