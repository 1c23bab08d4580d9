//! Interface of the sources of a model's tensors, such as files: [`Weights`] returns tensors by name.

/// Description of a tensor of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// Name, as passed to [`Weights`].
    pub name: String,
    /// Sizes of the dimensions, outermost first.
    pub shape: Vec<usize>,
    /// True for integers (a table of indices), false for weights.
    pub integer: bool,
}

/// Source of a model's tensors by name: `weights::Safetensors` (feature `safetensors`), or any other implementation.
pub trait Weights {
    /// Error if a tensor cannot be read.
    type Error;

    /// Returns the tensor called `name`, row-major, of exactly this shape.
    fn floats(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, Self::Error>;

    /// Same as [`Weights::floats`], for a table of indices.
    fn integers(&mut self, name: &str, shape: &[usize]) -> Result<Vec<u32>, Self::Error>;
}

/// Error if the tensors can be read, but no model can be made from them. [`load`](super::load) converts this error to
/// [`Weights::Error`], which must implement `From<Invalid>`: `String`, a boxed error and the error of the module `weights` do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// The configuration is invalid. The field is the message of the configuration's `check`.
    #[error("the configuration: {0}")]
    Config(String),
    /// A tensor has an unexpected number of elements, or an index is out of range.
    #[error("{0}")]
    Tensor(String),
}

impl From<Invalid> for String {
    fn from(invalid: Invalid) -> Self {
        invalid.to_string()
    }
}

/// Error if the model of a [`Config`](super::Config) cannot be loaded from a [`Source`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadError {
    /// A tensor could not be read. [`load`](super::load) returns the original error, [`Weights::Error`].
    Weights,
    /// No model can be made from the tensors.
    Model(Invalid),
}

impl From<Invalid> for LoadError {
    fn from(invalid: Invalid) -> Self {
        Self::Model(invalid)
    }
}

/// Weights as a trait object.
pub type Source<'a> = dyn Weights<Error = LoadError> + 'a;

/// Adapter that turns [`Weights`] into a [`Source`], which has another error type. Stores the original error, so that the caller
/// can return it.
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
