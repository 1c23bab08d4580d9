//! Sources of a model's tensors.

use std::fmt;

/// A tensor a model is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// Name, as passed to [`Weights`].
    pub name: String,
    /// Sizes of the dimensions, outermost first.
    pub shape: Vec<usize>,
    /// Whole numbers (a table of indices) rather than weights.
    pub integer: bool,
}

/// Source of a model's tensors: `weights::Safetensors` (feature `safetensors`), or any type that has them by name.
pub trait Weights {
    /// Why a tensor cannot be had.
    type Error;

    /// The tensor called `name`, row-major, of exactly this shape.
    fn floats(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, Self::Error>;

    /// The same for a table of indices.
    fn integers(&mut self, name: &str, shape: &[usize]) -> Result<Vec<u32>, Self::Error>;
}

/// Why a model cannot be made, although its tensors can be had. It turns into the error of [`Weights`]: into a `String`, a boxed
/// error or that of the module `weights` it does so already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Invalid {
    /// Message of the configuration's `check`.
    Config(String),
    /// A tensor has an unexpected number of elements, or an index that is out of range.
    Tensor(String),
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(message) => write!(f, "the configuration: {message}"),
            Self::Tensor(message) => f.write_str(message),
        }
    }
}

impl std::error::Error for Invalid {}

impl From<Invalid> for String {
    fn from(invalid: Invalid) -> Self {
        invalid.to_string()
    }
}

/// Why a [`Config`](super::Config) cannot be loaded from [`Weights`] that are an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadError {
    /// The weights have given an error, which [`load`](super::load) keeps and gives.
    Weights,
    /// No model can be made of what they have given.
    Model(Invalid),
}

impl From<Invalid> for LoadError {
    fn from(invalid: Invalid) -> Self {
        Self::Model(invalid)
    }
}

/// Weights as an object.
pub type Source<'a> = dyn Weights<Error = LoadError> + 'a;

/// Weights as an object: their error stays here.
pub(super) struct Kept<'a, W: Weights + ?Sized> {
    pub weights: &'a mut W,
    pub error: Option<W::Error>,
}

impl<W: Weights + ?Sized> Kept<'_, W> {
    fn keep<R>(&mut self, result: Result<R, W::Error>) -> Result<R, LoadError> {
        result.map_err(|error| {
            self.error = Some(error);
            LoadError::Weights
        })
    }
}

impl<W: Weights + ?Sized> Weights for Kept<'_, W> {
    type Error = LoadError;

    fn floats(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, LoadError> {
        let result = self.weights.floats(name, shape);
        self.keep(result)
    }

    fn integers(&mut self, name: &str, shape: &[usize]) -> Result<Vec<u32>, LoadError> {
        let result = self.weights.integers(name, shape);
        self.keep(result)
    }
}
