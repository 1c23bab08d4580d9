//! Pool of state matrices; the memory layout is part of the type.

use std::marker::PhantomData;

use rayon::prelude::*;

use crate::{Real, Tensor};

/// Memory layout of a state matrix.
pub trait Layout: Send + Sync + 'static {
    /// The transposed layout.
    type Other: Layout;
    /// True if a matrix is stored as `[V, K]`, false if as `[K, V]`.
    const TURNED: bool;

    /// Returns the number of rows and of columns of a stored matrix.
    fn stored(key_dim: usize, value_dim: usize) -> [usize; 2] {
        match Self::TURNED {
            true => [value_dim, key_dim],
            false => [key_dim, value_dim],
        }
    }

    /// Calls `work` with a stored matrix as `[K, V]`, then converts the matrix, which `work` may change, back to storage order.
    fn as_kv<T: Real>(stored: &mut [T], key_dim: usize, value_dim: usize, work: impl FnOnce(&mut [T])) {
        match Self::TURNED {
            true => transposed(stored, value_dim, key_dim, work),
            false => work(stored),
        }
    }

    /// Calls `work` with a `[K, V]` matrix in storage order, then converts the matrix, which `work` may change, back to `[K, V]`.
    fn as_stored<T: Real>(kv: &mut [T], key_dim: usize, value_dim: usize, work: impl FnOnce(&mut [T])) {
        match Self::TURNED {
            true => transposed(kv, key_dim, value_dim, work),
            false => work(kv),
        }
    }
}

/// Layout `[K, V]`: value channels are contiguous ("V-last").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kv {}

/// Layout `[V, K]`: key channels are contiguous ("K-last", "pretransposed").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vk {}

impl Layout for Kv {
    type Other = Vk;
    const TURNED: bool = false;
}

impl Layout for Vk {
    type Other = Kv;
    const TURNED: bool = true;
}

/// Calls `work` with the transpose of a matrix, and writes the result back.
fn transposed<T: Real>(matrix: &mut [T], rows: usize, cols: usize, work: impl FnOnce(&mut [T])) {
    let mut turned = transpose(matrix, rows, cols);
    work(&mut turned);
    matrix.copy_from_slice(&transpose(&turned, cols, rows));
}

/// Transposes `[rows, cols]` to `[cols, rows]`, in tiles that fit into the cache for reading and for writing.
pub(super) fn transpose<T: Real>(matrix: &[T], rows: usize, cols: usize) -> Vec<T> {
    const TILE: usize = 16;
    let mut turned = vec![T::ZERO; rows * cols];
    for first_row in (0..rows).step_by(TILE) {
        let last_row = rows.min(first_row + TILE);
        for first_col in (0..cols).step_by(TILE) {
            for col in first_col..cols.min(first_col + TILE) {
                let to = &mut turned[col * rows + first_row..col * rows + last_row];
                let from = matrix[first_row * cols + col..].iter().step_by(cols);
                to.iter_mut().zip(from).for_each(|(to, &from)| *to = from);
            }
        }
    }
    turned
}

/// States of a pool of slots: `[slots, HV]` matrices of K × V. The type checker rejects a state in the wrong layout:
///
/// ```compile_fail
/// use reference::ops::linear_attention::{Kv, State, Vk};
/// let prefilled: State<f32, Kv> = State::zeros(1, 1, 128, 128);
/// let to_decode: State<f32, Vk> = prefilled;
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct State<T, L> {
    tensor: Tensor<T>,
    layout: PhantomData<L>,
}

impl<T: Real, L: Layout> State<T, L> {
    /// Creates states of zeros.
    pub fn zeros(slots: usize, value_heads: usize, key_dim: usize, value_dim: usize) -> Self {
        let [rows, cols] = L::stored(key_dim, value_dim);
        Self {
            tensor: Tensor::full([slots, value_heads, rows, cols], T::ZERO),
            layout: PhantomData,
        }
    }

    /// Creates states from a tensor `[slots, HV, K, V]` in the layout [`Kv`], or `[slots, HV, V, K]` in the layout [`Vk`].
    ///
    /// # Errors
    /// Returns an error if the tensor does not have four dimensions, or if a dimension other than the slots is 0.
    pub fn new(tensor: Tensor<T>) -> Result<Self, String> {
        if tensor.shape.len() != 4 || tensor.shape[1..].contains(&0) {
            return Err(format!(
                "a state has shape {:?}, expected slots, value heads and a matrix",
                tensor.shape
            ));
        }
        Ok(Self {
            tensor,
            layout: PhantomData,
        })
    }

    /// Returns the states as a tensor in storage order, `[slots, HV, K, V]` or `[slots, HV, V, K]`.
    pub fn tensor(&self) -> &Tensor<T> {
        &self.tensor
    }

    /// Returns the states as a tensor in storage order, `[slots, HV, K, V]` or `[slots, HV, V, K]`.
    pub fn into_tensor(self) -> Tensor<T> {
        self.tensor
    }

    /// Returns the sizes `[slots, HV, K, V]`, in this order for every layout.
    pub fn sizes(&self) -> [usize; 4] {
        let [slots, heads, rows, cols] = self.dimensions();
        // `stored` maps K and V to storage order. It swaps two sizes or none, so it also maps the stored sizes back to K and V.
        let [key_dim, value_dim] = L::stored(rows, cols);
        [slots, heads, key_dim, value_dim]
    }

    /// Converts the states to the other layout.
    pub fn turned(&self) -> State<T, L::Other> {
        let [slots, heads, rows, cols] = self.dimensions();
        let mut tensor = Tensor::full([slots, heads, cols, rows], T::ZERO);
        let matrices = self.tensor.data.par_chunks_exact(rows * cols);
        let turned = tensor.data.par_chunks_exact_mut(rows * cols).zip(matrices);
        turned.for_each(|(to, from)| to.copy_from_slice(&transpose(from, rows, cols)));
        State {
            tensor,
            layout: PhantomData,
        }
    }

    fn dimensions(&self) -> [usize; 4] {
        std::array::from_fn(|axis| self.tensor.shape[axis])
    }

    /// Iterates over the matrices slot by slot and head by head. Each matrix is in storage order.
    pub(super) fn heads_mut(&mut self) -> impl IndexedParallelIterator<Item = &mut [T]> {
        let [_, _, rows, cols] = self.dimensions();
        self.tensor.data.par_chunks_exact_mut(rows * cols)
    }
}
