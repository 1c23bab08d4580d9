//! A dense row-major tensor.

/// Row-major values with their shape; the last dimension is contiguous.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor<T> {
    /// Sizes of the dimensions, outermost first.
    pub shape: Vec<usize>,
    /// The elements: as many as the product of the sizes.
    pub data: Vec<T>,
}

impl<T: Copy> Tensor<T> {
    /// A tensor of this shape and these elements.
    ///
    /// # Panics
    /// When `data` does not have the number of elements `shape` tells.
    pub fn new(shape: impl Into<Vec<usize>>, data: Vec<T>) -> Self {
        let shape = shape.into();
        assert_eq!(shape.iter().product::<usize>(), data.len(), "shape {shape:?}");
        Self { shape, data }
    }

    /// `value` everywhere.
    pub fn full(shape: impl Into<Vec<usize>>, value: T) -> Self {
        let shape = shape.into();
        let len = shape.iter().product();
        Self {
            shape,
            data: vec![value; len],
        }
    }

    /// Size of the last dimension.
    ///
    /// # Panics
    /// When there is no dimension, here and in [`Tensor::rows`], [`Tensor::row`] and [`Tensor::row_mut`].
    pub fn cols(&self) -> usize {
        *self.shape.last().expect("a tensor has at least one dimension")
    }

    /// Product of all dimensions but the last.
    pub fn rows(&self) -> usize {
        self.shape[..self.shape.len() - 1].iter().product()
    }

    /// A row: the last dimension at one index of all others together, counted row-major.
    pub fn row(&self, row: usize) -> &[T] {
        let cols = self.cols();
        &self.data[row * cols..(row + 1) * cols]
    }

    /// The same to be changed.
    pub fn row_mut(&mut self, row: usize) -> &mut [T] {
        let cols = self.cols();
        &mut self.data[row * cols..(row + 1) * cols]
    }
}
