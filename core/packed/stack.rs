//! Tensors of three and more dimensions: matrices, each of which is quantized on its own.

/// A tensor as a stack of matrices: blocks, tiles, layouts of scales and scales of tensors belong to one matrix.
///
/// The last two dimensions are a matrix and those before them number the matrices (the experts of a layer). One dimension
/// is a matrix of one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stack {
    /// Number of matrices.
    pub experts: usize,
    /// Rows of a matrix.
    pub rows: usize,
    /// Columns of a matrix.
    pub cols: usize,
}

impl Stack {
    /// None where the sizes, of empty dimensions as of one element, have no product in memory.
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

    /// The share of one matrix in what all have as much of.
    pub fn share<'a, T>(&self, all: &'a [T], expert: usize) -> &'a [T] {
        let len = all.len() / self.experts;
        &all[expert * len..][..len]
    }
}

/// The dimensions that number matrices.
pub fn leading(shape: &[usize]) -> &[usize] {
    &shape[..shape.len().saturating_sub(2)]
}

/// The name of one matrix of a tensor: `w` where there is no other, else `w[3]`.
pub fn matrix_name(name: &str, shape: &[usize], expert: usize) -> String {
    match leading(shape) {
        [] => name.into(),
        leading => format!("{name}{:?}", crate::metrics::unravel(expert, leading)),
    }
}

/// The shape in which a file holds a part for every matrix of a tensor of that `shape`, from that for one matrix: the
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
