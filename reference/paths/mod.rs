//! One file per model path.

pub mod deepseek_v4;

/// A tensor a model needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    pub name: String,
    pub shape: Vec<usize>,
    /// Whether it holds ids rather than numbers.
    pub integer: bool,
}

/// Where a path takes its weights from.
pub trait Weights {
    type Error;
    fn floats(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, Self::Error>;
    fn integers(&mut self, name: &str, shape: &[usize]) -> Result<Vec<u32>, Self::Error>;
}
