//! Tensors of three and more dimensions: matrices, each of which is quantized on its own.

use ulplab_core::tensorfile::Tensor;

/// A tensor as a stack of matrices. Blocks, tiles, scale layouts and tensor scales belong to one matrix.
///
/// The last two dimensions form a matrix; those before them number the matrices (for example the experts of a layer). A
/// tensor of one dimension is a matrix with one row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stack {
    /// Number of matrices.
    pub experts: usize,
    /// Rows of a matrix.
    pub rows: usize,
    /// Columns of a matrix.
    pub cols: usize,
}

impl Stack {
    /// `None` if the number of elements overflows the address space.
    pub fn new(shape: &[usize]) -> Option<Self> {
        // No element takes more than 32 bits, and sums of padded sizes stay in range.
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

    /// The numbers of the matrices that have elements: an empty tensor may have any number of others.
    pub fn matrices(&self) -> std::ops::Range<usize> {
        0..if self.matrix() == 0 { 0 } else { self.experts }
    }

    /// Elements of one matrix.
    pub fn matrix(&self) -> usize {
        self.rows * self.cols
    }

    /// Elements of all matrices.
    pub fn elements(&self) -> usize {
        self.experts * self.matrix()
    }

    /// One matrix of a tensor of floating-point numbers, as f32.
    pub fn values(&self, tensor: &Tensor, expert: usize) -> Vec<f32> {
        let matrix = self.of_tensor(tensor, expert).to_f32();
        matrix.expect("floating-point tensors are numbers")
    }

    /// One matrix of a tensor.
    pub fn of_tensor<'a>(&self, tensor: &Tensor<'a>, expert: usize) -> Tensor<'a> {
        let bytes = self.share(tensor.bytes, expert);
        Tensor { bytes, ..*tensor }
    }

    /// The part of one matrix in a buffer that has equal parts for all matrices.
    pub fn share<'a, T>(&self, all: &'a [T], expert: usize) -> &'a [T] {
        let len = all.len() / self.experts;
        &all[expert * len..][..len]
    }
}

/// The dimensions that number matrices.
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

/// The shape in which a file stores one part per matrix of a tensor of `shape`, given the shape for one matrix: the
/// dimensions that number matrices come first, and a vector has no rows.
pub fn spread(part: &[usize], shape: &[usize]) -> Vec<usize> {
    match (leading(shape), part) {
        ([], [1, across]) if shape.len() == 1 => vec![*across],
        ([], part) => part.into(),
        // One number for each matrix.
        (leading, [_]) => leading.into(),
        (leading, part) => [leading, part].concat(),
    }
}
