//! The pool of states, its layout part of its type.

use std::marker::PhantomData;

use rayon::prelude::*;

use crate::{Real, Tensor};

/// The order of a state matrix in memory.
pub trait Layout: Send + Sync + 'static {
    /// The other of the two orders.
    type Other: Layout;
    /// True if a matrix is stored as `[V, K]`.
    const TURNED: bool;

    /// Dimensions as stored.
    fn stored(key_dim: usize, value_dim: usize) -> [usize; 2] {
        match Self::TURNED {
            true => [value_dim, key_dim],
            false => [key_dim, value_dim],
        }
    }

    /// Shows a stored matrix as `[K, V]` to `work`, which may change it.
    fn as_kv<T: Real>(stored: &mut [T], key_dim: usize, value_dim: usize, work: impl FnOnce(&mut [T])) {
        match Self::TURNED {
            true => transposed(stored, value_dim, key_dim, work),
            false => work(stored),
        }
    }

    /// Shows a matrix `[K, V]` to `work` as it is stored.
    fn as_stored<T: Real>(kv: &mut [T], key_dim: usize, value_dim: usize, work: impl FnOnce(&mut [T])) {
        match Self::TURNED {
            true => transposed(kv, key_dim, value_dim, work),
            false => work(kv),
        }
    }
}

/// `[K, V]`: value channels are contiguous ("V-last").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kv {}

/// `[V, K]`: key channels are contiguous ("K-last", "pretransposed").
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

/// Lets `work` change the transpose of a matrix.
fn transposed<T: Real>(matrix: &mut [T], rows: usize, cols: usize, work: impl FnOnce(&mut [T])) {
    let mut turned = transpose(matrix, rows, cols);
    work(&mut turned);
    matrix.copy_from_slice(&transpose(&turned, cols, rows));
}

/// `[rows, cols]` → `[cols, rows]`, in tiles whose rows fit the cache both ways.
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

/// States of a pool of slots, `[slots, HV]` matrices of K × V. A state of one layout does not pass for one of the other:
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
    /// A state of zeros.
    pub fn zeros(slots: usize, value_heads: usize, key_dim: usize, value_dim: usize) -> Self {
        let [rows, cols] = L::stored(key_dim, value_dim);
        Self {
            tensor: Tensor::full([slots, value_heads, rows, cols], T::ZERO),
            layout: PhantomData,
        }
    }

    /// Takes a tensor `[slots, HV, K, V]` as [`Kv`], or `[slots, HV, V, K]` as [`Vk`].
    ///
    /// # Errors
    /// A tensor that does not have four dimensions, or has none of a matrix or of heads.
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

    /// As stored.
    pub fn tensor(&self) -> &Tensor<T> {
        &self.tensor
    }

    /// As stored.
    pub fn into_tensor(self) -> Tensor<T> {
        self.tensor
    }

    /// Sizes `[slots, HV, K, V]`, in this order for every layout.
    pub fn sizes(&self) -> [usize; 4] {
        let [slots, heads, rows, cols] = self.dimensions();
        // The two layouts turn each other.
        let [key_dim, value_dim] = L::stored(rows, cols);
        [slots, heads, key_dim, value_dim]
    }

    /// The same states in the other layout.
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

    /// Matrices as stored, slot by slot, head by head.
    pub(super) fn heads_mut(&mut self) -> impl IndexedParallelIterator<Item = &mut [T]> {
        let [_, _, rows, cols] = self.dimensions();
        self.tensor.data.par_chunks_exact_mut(rows * cols)
    }
}
