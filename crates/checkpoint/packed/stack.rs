//! Tensors with three or more dimensions, as stacks of matrices that are quantized one by one.

use ulplab_core::tensorfile::Tensor;

/// A tensor as a stack of matrices. Each matrix has its own blocks, tiles, scale layout and tensor scale.
///
/// The last two dimensions form a matrix. The dimensions before them number the matrices, e.g. the experts of a layer. A tensor
/// of one dimension is a matrix with one row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stack {
    /// Number of matrices.
    pub experts: usize,
    /// Number of rows of a matrix.
    pub rows: usize,
    /// Number of columns of a matrix.
    pub cols: usize,
}

impl Stack {
    /// Splits a shape into a stack; `None` if the number of elements overflows the address space.
    pub fn new(shape: &[usize]) -> Option<Self> {
        // Count 32 bits per element in the check for overflow, so that sizes in bytes and padded sizes do not overflow either.
        shape
            .iter()
            .try_fold(32usize, |bits, size| bits.checked_mul((*size).max(1)))?;
        let (rows, cols) = match *shape {
            [] => (1, 1),
            [cols] => (1, cols),
            [.., rows, cols] => (rows, cols),
        };
        let experts = leading(shape).iter().product();
        Some(Self { experts, rows, cols })
    }

    /// Indices of the matrices; empty if a matrix has no elements.
    pub fn matrices(&self) -> std::ops::Range<usize> {
        0..if self.matrix() == 0 { 0 } else { self.experts }
    }

    /// Number of elements of one matrix.
    pub fn matrix(&self) -> usize {
        self.rows * self.cols
    }

    /// Number of elements of all matrices.
    pub fn elements(&self) -> usize {
        self.experts * self.matrix()
    }

    /// Values of one matrix of a floating-point tensor, as f32.
    pub fn values(&self, tensor: &Tensor, expert: usize) -> Vec<f32> {
        let matrix = self.of_tensor(tensor, expert).to_f32();
        matrix.expect("floating-point tensors are numbers")
    }

    /// One matrix of a tensor, as a tensor with the bytes of this matrix.
    pub fn of_tensor<'a>(&self, tensor: &Tensor<'a>, expert: usize) -> Tensor<'a> {
        let bytes = self.share(tensor.bytes, expert);
        Tensor { bytes, ..*tensor }
    }

    /// Returns the items of one matrix. `all` holds the same number of consecutive items for each matrix.
    pub fn share<'a, T>(&self, all: &'a [T], expert: usize) -> &'a [T] {
        let len = all.len() / self.experts;
        &all[expert * len..][..len]
    }
}

/// The leading dimensions of a shape, which number the matrices.
pub fn leading(shape: &[usize]) -> &[usize] {
    &shape[..shape.len().saturating_sub(2)]
}

/// The name of one matrix of a tensor: `w` if it is the only one, else `w[3]`.
pub fn matrix_name(name: &str, shape: &[usize], expert: usize) -> String {
    match leading(shape) {
        [] => name.into(),
        leading => format!("{name}{:?}", ulplab_core::metrics::unravel(expert, leading)),
    }
}

/// Shape of a tensor that holds one array (e.g. the scales) for each matrix of a tensor of shape `shape`; `part` is the shape of
/// one array. The result begins with the leading dimensions of `shape`. If `shape` is a vector, the result has no dimension for
/// rows.
pub fn spread(part: &[usize], shape: &[usize]) -> Vec<usize> {
    match (leading(shape), part) {
        ([], [1, across]) if shape.len() == 1 => vec![*across],
        ([], part) => part.into(),
        // One number for each matrix.
        (leading, [_]) => leading.into(),
        (leading, part) => [leading, part].concat(),
    }
}
