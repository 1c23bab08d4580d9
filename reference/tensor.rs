//! A dense row-major tensor.

use crate::Real;

/// Row-major values with their shape; the last dimension is contiguous.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor<T> {
    /// Sizes of the dimensions, outermost first.
    pub shape: Vec<usize>,
    /// The elements, row-major; their number is the product of the sizes.
    pub data: Vec<T>,
}

impl<T: Copy> Tensor<T> {
    /// Creates a tensor of this shape with these elements.
    ///
    /// # Panics
    /// If the length of `data` is not the number of elements of `shape`.
    pub fn new(shape: impl Into<Vec<usize>>, data: Vec<T>) -> Self {
        let shape = shape.into();
        assert_eq!(shape.iter().product::<usize>(), data.len(), "shape {shape:?}");
        Self { shape, data }
    }

    /// Creates a tensor with all elements equal to `value`.
    pub fn full(shape: impl Into<Vec<usize>>, value: T) -> Self {
        let shape = shape.into();
        let len = shape.iter().product();
        Self {
            shape,
            data: vec![value; len],
        }
    }

    /// Returns the size of the last dimension.
    ///
    /// # Panics
    /// If the tensor has no dimension. [`Tensor::rows`], [`Tensor::row`] and [`Tensor::row_mut`] panic as well in this case.
    pub fn cols(&self) -> usize {
        *self.shape.last().expect("a tensor has at least one dimension")
    }

    /// Returns the number of rows: the product of all dimensions but the last.
    pub fn rows(&self) -> usize {
        self.shape[..self.shape.len() - 1].iter().product()
    }

    /// Returns a row (a slice along the last dimension). `row` is the row-major index over all other dimensions.
    pub fn row(&self, row: usize) -> &[T] {
        let cols = self.cols();
        &self.data[row * cols..(row + 1) * cols]
    }

    /// Mutable form of [`Tensor::row`].
    pub fn row_mut(&mut self, row: usize) -> &mut [T] {
        let cols = self.cols();
        &mut self.data[row * cols..(row + 1) * cols]
    }

    /// Copies the slices at these indices of the first dimension, in the order of `indices`.
    ///
    /// # Panics
    /// If an index is out of range.
    #[must_use]
    pub fn pick(&self, indices: impl IntoIterator<Item = usize>) -> Self {
        let (mut picked, rest) = (0, &self.shape[1..]);
        let size = rest.iter().product::<usize>();
        let mut data = Vec::new();
        for index in indices {
            data.extend_from_slice(&self.data[index * size..(index + 1) * size]);
            picked += 1;
        }
        Self::new([&[picked], rest].concat(), data)
    }

    /// Swaps the first two dimensions: `[a, b, ..]` → `[b, a, ..]`.
    ///
    /// # Panics
    /// If there are fewer than two dimensions.
    #[must_use]
    pub fn swapped(&self) -> Self {
        let (a, b, rest) = (self.shape[0], self.shape[1], &self.shape[2..]);
        let size = rest.iter().product::<usize>();
        let pieces = (0..b).flat_map(|j| (0..a).map(move |i| i * b + j));
        let data = pieces.flat_map(|piece| self.data[piece * size..(piece + 1) * size].iter().copied());
        Self::new([&[b, a], rest].concat(), data.collect())
    }
}

impl<T: Real> Tensor<T> {
    /// Converts the values to another scalar type, rounded to nearest even.
    pub fn cast<U: Real>(&self) -> Tensor<U> {
        let data = self.data.iter().map(|&x| U::from_f64(x.into()));
        Tensor::new(self.shape.clone(), data.collect())
    }
}
