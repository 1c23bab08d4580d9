//! A dense row-major tensor.

/// Row-major values with their shape; the last dimension is contiguous.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor<T> {
    pub shape: Vec<usize>,
    pub data: Vec<T>,
}

impl<T: Copy> Tensor<T> {
    /// # Panics
    /// When `data` does not have the number of elements `shape` tells.
    pub fn new(shape: impl Into<Vec<usize>>, data: Vec<T>) -> Self {
        let shape = shape.into();
        assert_eq!(shape.iter().product::<usize>(), data.len(), "shape {shape:?}");
        Self { shape, data }
    }

    pub fn full(shape: impl Into<Vec<usize>>, value: T) -> Self {
        let shape = shape.into();
        let len = shape.iter().product();
        Self {
            shape,
            data: vec![value; len],
        }
    }

    /// Size of the last dimension.
    pub fn cols(&self) -> usize {
        *self.shape.last().expect("a tensor has at least one dimension")
    }

    /// Product of all dimensions but the last.
    pub fn rows(&self) -> usize {
        self.shape[..self.shape.len() - 1].iter().product()
    }

    pub fn row(&self, row: usize) -> &[T] {
        let cols = self.cols();
        &self.data[row * cols..(row + 1) * cols]
    }

    pub fn row_mut(&mut self, row: usize) -> &mut [T] {
        let cols = self.cols();
        &mut self.data[row * cols..(row + 1) * cols]
    }
}
