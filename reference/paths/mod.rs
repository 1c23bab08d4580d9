//! One folder per model path.

pub mod deepseek_v4;
pub mod swap_ffn;

/// A tensor a model is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// As [`Weights`] is asked for it.
    pub name: String,
    /// Sizes of the dimensions, outermost first.
    pub shape: Vec<usize>,
    /// Whole numbers (a table of indices) rather than weights.
    pub integer: bool,
}

/// Where a model's tensors come from.
pub trait Weights {
    /// Why a tensor cannot be had.
    type Error;

    /// The tensor called `name`, row-major, of exactly this shape.
    fn floats(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, Self::Error>;

    /// The same for a table of indices.
    fn integers(&mut self, name: &str, shape: &[usize]) -> Result<Vec<u32>, Self::Error>;
}
