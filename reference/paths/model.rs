//! A model of any path, and its state.

use std::any::Any;
use std::fmt::Debug;

use super::weights::Kept;
use super::{Config, Invalid, LoadError, Loads, Source, Weights};
use crate::{Bounded, Numerics, Real, Tensor};

/// Input of a model.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a, T> {
    /// The next tokens of a sequence, all at once.
    Ids(&'a [u32]),
    /// The next vector of every sequence, `[B, cols]`.
    Vectors(&'a Tensor<T>),
}

impl<'a, T> Input<'a, T> {
    /// Gives the token ids.
    ///
    /// # Errors
    /// It is something else.
    pub fn ids(self) -> Result<&'a [u32], String> {
        match self {
            Self::Ids(ids) => Ok(ids),
            Self::Vectors(_) => Err("the model takes token ids, not vectors".into()),
        }
    }

    /// Gives the vectors.
    ///
    /// # Errors
    /// It is something else.
    pub fn vectors(self) -> Result<&'a Tensor<T>, String> {
        match self {
            Self::Vectors(vectors) => Ok(vectors),
            Self::Ids(_) => Err("the model takes vectors, not token ids".into()),
        }
    }
}

/// A model with its weights.
pub trait Model<T: Real>: Any + Send + Sync {
    /// Gives the configuration it was loaded with.
    fn config(&self) -> &dyn Config;

    /// Makes the state before the first token. `start` has a tensor for each of [`Config::start`], in its order; that is none for
    /// most paths.
    ///
    /// # Errors
    /// Other tensors than these.
    fn state(&self, start: Vec<Tensor<T>>) -> Result<Box<dyn State<T>>, String>;

    /// Takes the input through the model and gives what passed at the path's [output](super::Path::output); the state goes
    /// on to what comes next. Prefill is a run of many tokens, decode a run of one. `numerics` is called at every site.
    ///
    /// # Errors
    /// Inputs that the model does not take, states of other models, and decisions overruled by what does not exist.
    fn run(
        &self,
        state: &mut dyn State<T>,
        input: Input<'_, T>,
        numerics: &mut dyn Numerics<T>,
    ) -> Result<Tensor<T>, String>;

    /// Takes the tokens of a sequence, from the first on, through the layers from `layer` on, of which the first is fed `stream`:
    /// what left the layer before at the path's [stream](super::Path::stream). `numerics` is called at the sites from there on, and
    /// what passes at the path's [output](super::Path::output) is the result. It has the bits of a run of the whole model in which
    /// that stream left the layer before, so what runs have in common in the first layers need be computed only once. `None` if
    /// models of the path cannot begin in the middle.
    ///
    /// # Errors
    /// No such layer, and a stream of another shape.
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

/// Refuses token ids that a model with a vocabulary of this size cannot be fed, and none.
pub(super) fn check_ids(ids: &[u32], vocabulary: usize) -> Result<(), String> {
    if ids.is_empty() {
        return Err("no tokens to feed".into());
    }
    match ids.iter().find(|&&id| id as usize >= vocabulary) {
        Some(id) => Err(format!("token {id} is beyond the vocabulary of {vocabulary}")),
        None => Ok(()),
    }
}

/// Refuses tensors to begin with, for states that begin empty.
pub(super) fn begins_empty<T>(start: &[Tensor<T>]) -> Result<(), String> {
    match start.len() {
        0 => Ok(()),
        found => Err(format!("{found} tensors to begin with, expected none")),
    }
}

/// State of a sequence between calls. The methods `of` and `of_mut` of `dyn State` give it as the type that its path has for it.
pub trait State<T: Real>: Any + Debug + Send + Sync {
    /// Counts the tokens seen.
    fn tokens(&self) -> usize;

    /// Copies it.
    fn boxed(&self) -> Box<dyn State<T>>;
}

impl<T: Real> dyn State<T> {
    /// Gives the state as the type that its path has for it.
    ///
    /// # Errors
    /// A state of another path.
    pub fn of<S: State<T>>(&self) -> Result<&S, String> {
        (self as &dyn Any).downcast_ref().ok_or_else(other)
    }

    /// Gives it to be changed.
    ///
    /// # Errors
    /// A state of another path.
    pub fn of_mut<S: State<T>>(&mut self) -> Result<&mut S, String> {
        (self as &mut dyn Any).downcast_mut().ok_or_else(other)
    }
}

pub(super) fn other() -> String {
    "the state is that of a model of another path".into()
}

impl<T: Real> Clone for Box<dyn State<T>> {
    fn clone(&self) -> Self {
        (**self).boxed()
    }
}

mod sealed {
    use super::*;
    use crate::paths::deepseek_v4;

    /// Scalars that this package compiles all paths for.
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

/// A scalar that models are run in: f32, f64 or [`Bounded`]. For these the code of a model is compiled in this package, with its
/// optimisation. A caller's own instance of generic code is compiled as the caller is, which in a development build means slow.
pub trait Scalar: sealed::Compiled {}

impl<T: sealed::Compiled> Scalar for T {}

/// Makes the model of a configuration. Sites that are passed at load are passed to `numerics`.
///
/// # Errors
/// Those of `weights`, and tensors of which no model can be made.
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

/// Runs `make` on weights as a trait object; an error of the weights keeps its own type.
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
