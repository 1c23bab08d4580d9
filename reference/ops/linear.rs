//! Matrix products y = x·Wᵀ.

use std::array::from_fn;

use gemm_common::Parallelism;
use rayon::prelude::*;

use super::BLOCK;
use crate::real::vectorized;
use crate::{Real, Tensor};

/// Number of rows of x that are multiplied at a time. Each time, `gemm` transposes (packs) the whole weight.
const ROWS: usize = 2 * BLOCK;

/// Number of rows, columns or terms up to which a product is computed without `gemm`: packing the weight would take longer than
/// the product, and `gemm` adds up the terms of such small products in another order than the terms of large products.
pub const FEW: usize = 2;
/// Number of elements of y up to which a product is computed without `gemm`: in small products, the number of partial sums of
/// `gemm` depends on the vector width of the machine.
pub const SMALL: usize = 256;
/// Longest sum that `gemm` adds up sequentially on every machine. The block size of `gemm` along k depends on the L1 cache, but
/// is never below this number.
pub const PIECE: usize = 512;

/// Methods of a linear layer without bias; the tensor holds the weights `[outputs, inputs]`.
impl<T: Real> Tensor<T> {
    /// Multiplies x `[.., inputs]` by these weights; returns `[rows, outputs]`.
    pub fn apply(&self, x: &Tensor<T>) -> Tensor<T> {
        let (inputs, outputs) = (self.cols(), self.rows());
        let rows = x.data.len() / inputs;
        let mut y = Tensor::full([rows, outputs], T::ZERO);
        if rows <= ROWS {
            self.apply_rows(&x.data, &mut y.data);
        } else {
            let x = x.data.par_chunks(ROWS * inputs);
            x.zip(y.data.par_chunks_mut(ROWS * outputs))
                .for_each(|(x, y)| self.apply_rows(x, y));
        }
        y
    }

    /// Same as [`Tensor::apply`] for the rows `x`, but on this thread only; writes the result to `y`.
    pub fn apply_rows(&self, x: &[T], y: &mut [T]) {
        multiply(x, &self.data, self.cols(), y);
    }
}

/// Computes y `[m, n]` = x `[m, k]` · wᵀ on this thread; w is `[n, k]`.
pub fn multiply<T: Real>(x: &[T], w: &[T], k: usize, y: &mut [T]) {
    Product::new([x.len() / k, w.len() / k, k], x, w).run(y);
}

/// Number of partial sums of a dot product: the number of elements in one or two vector registers.
const LANES: usize = 16;

/// Returns the dot product ⟨a, b⟩, computed as interleaved partial sums that are added pairwise.
#[inline(always)]
pub fn dot<T: Real>(a: &[T], b: &[T]) -> T {
    let (a_blocks, a_rest) = a.as_chunks::<LANES>();
    let (b_blocks, b_rest) = b.as_chunks::<LANES>();
    let mut sums = [T::ZERO; LANES];
    for (a, b) in a_blocks.iter().zip(b_blocks) {
        sums = from_fn(|lane| sums[lane] + a[lane] * b[lane]);
    }
    for (sum, (&a, &b)) in sums.iter_mut().zip(a_rest.iter().zip(b_rest)) {
        *sum += a * b;
    }
    pairwise(sums, T::add)
}

/// Reduces x by `join` (a sum or a maximum), in the same order as [`dot`]. Every SIMD lane begins with `start`, so joining
/// `start` several times must be the same as joining it once: 0 in a sum, any number in a maximum.
#[inline(always)]
pub fn reduce<T: Real>(x: &[T], start: T, join: impl Fn(T, T) -> T) -> T {
    let (blocks, rest) = x.as_chunks::<LANES>();
    let mut lanes = [start; LANES];
    for x in blocks {
        lanes = from_fn(|lane| join(lanes[lane], x[lane]));
    }
    for (lane, &x) in lanes.iter_mut().zip(rest) {
        *lane = join(*lane, x);
    }
    pairwise(lanes, join)
}

#[inline(always)]
fn pairwise<T: Real>(mut lanes: [T; LANES], join: impl Fn(T, T) -> T) -> T {
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            lanes[lane] = join(lanes[lane], lanes[lane + width]);
        }
        width /= 2;
    }
    lanes[0]
}

/// Kernel of the `gemm` crates for one scalar type: dst `[m, n]` = α·dst + β·lhs `[m, k]` · rhs `[k, n]`. The arguments are, in
/// this order: m, n and k; dst, its column stride, its row stride, and true to read dst; lhs with its two strides; rhs with its
/// two strides; α and β; three flags for complex scalars; the number of threads. The crate `gemm` itself is not used, since it
/// also compiles the kernels of three other scalar types, which takes 31 CPU-seconds.
pub(crate) type Gemm<T> = unsafe fn(
    usize,
    usize,
    usize,
    *mut T,
    isize,
    isize,
    bool,
    *const T,
    isize,
    isize,
    *const T,
    isize,
    isize,
    T,
    T,
    bool,
    bool,
    bool,
    Parallelism,
);

/// Strided matrix product y `[m, n]` = x `[m, k]` · w `[k, n]` on this thread. The order of the sums is the same on every
/// machine.
pub struct Product<'a, T> {
    /// Number of rows of x and of y.
    pub m: usize,
    /// Number of columns of w and of y.
    pub n: usize,
    /// Number of columns of x and of rows of w.
    pub k: usize,
    /// Matrix x; the elements of a row are contiguous.
    pub x: &'a [T],
    /// Stride between rows of x, in elements.
    pub x_stride: usize,
    /// Matrix w; its strides are `w_strides`.
    pub w: &'a [T],
    /// Strides of w, in elements: between columns, and between rows.
    pub w_strides: (usize, usize),
    /// Stride between rows of y, in elements.
    pub y_stride: usize,
    /// True to add the product to y; false to overwrite y.
    pub add: bool,
}

impl<'a, T: Real> Product<'a, T> {
    /// Creates the product x `[m, k]` · wᵀ with w `[n, k]`; all rows are contiguous.
    pub fn new([m, n, k]: [usize; 3], x: &'a [T], w: &'a [T]) -> Self {
        Self {
            m,
            n,
            k,
            x,
            x_stride: k,
            w,
            w_strides: (k, 1),
            y_stride: n,
            add: false,
        }
    }

    /// Writes the product to y, or adds the product to y if [`Self::add`] is true.
    ///
    /// # Panics
    /// If a slice is too short for its shape, or k is 0.
    pub fn run(&self, y: &mut [T]) {
        if self.m == 0 || self.n == 0 {
            return;
        }
        self.check(y);
        T::product(self, y);
    }

    /// Computes y, for f32 and f64. The order of the sums depends on the sizes only, not on the machine:
    ///
    /// * small products are computed by [`dot`] if the columns of w are contiguous, otherwise in the order of k;
    /// * other products are split along k into equal pieces of at most [`PIECE`] terms. For each piece, `gemm` adds up the
    ///   terms in the order of k with fused multiply-adds, and adds the sum to y.
    ///
    /// The argument `gemm` is the kernel for the scalar type.
    pub(crate) fn by_dots_or_gemm(&self, gemm: Gemm<T>, y: &mut [T]) {
        let Self { m, n, k, .. } = *self;
        if m.min(n).min(k) <= FEW || m * n <= SMALL {
            vectorized!(self.by_rows(y));
            return;
        }
        let piece = k.div_ceil(k.div_ceil(PIECE));
        for start in (0..k).step_by(piece) {
            let part = Self {
                k: piece.min(k - start),
                x: &self.x[start..],
                w: &self.w[start * self.w_strides.1..],
                add: self.add || start > 0,
                ..*self
            };
            part.by_gemm(gemm, y);
        }
    }

    #[inline(always)]
    fn by_rows(&self, y: &mut [T]) {
        let Self { n, k, w, .. } = *self;
        let (column_stride, row_stride) = self.w_strides;
        for (row, y) in y.chunks_mut(self.y_stride).take(self.m).enumerate() {
            let (x, y) = (&self.x[row * self.x_stride..][..k], &mut y[..n]);
            if row_stride == 1 {
                for (column, y) in y.iter_mut().enumerate() {
                    let sum = dot(x, &w[column * column_stride..][..k]);
                    *y = if self.add { *y + sum } else { sum };
                }
                continue;
            }
            if !self.add {
                y.fill(T::ZERO);
            }
            for (i, &x) in x.iter().enumerate() {
                let w = &w[i * row_stride..];
                if column_stride == 1 {
                    for (y, &w) in y.iter_mut().zip(w) {
                        *y += x * w;
                    }
                } else {
                    for (column, y) in y.iter_mut().enumerate() {
                        *y += x * w[column * column_stride];
                    }
                }
            }
        }
    }

    fn check(&self, y: &[T]) {
        let last = |rows: usize, stride: usize| (rows.max(1) - 1) * stride;
        let Self { m, n, k, .. } = *self;
        assert!(k > 0 && last(m, self.x_stride) + k <= self.x.len());
        assert!(last(n, self.w_strides.0) + last(k, self.w_strides.1) < self.w.len());
        assert!(last(m, self.y_stride) + n <= y.len());
    }

    fn by_gemm(&self, gemm: Gemm<T>, y: &mut [T]) {
        let Self { m, n, k, x_stride, .. } = *self;
        let (column_stride, row_stride) = self.w_strides;
        // SAFETY: `run` has called `check`, so every access is within the three slices. y is borrowed mutably.
        unsafe {
            // Compute yᵀ = wᵀ · xᵀ, since `gemm` needs contiguous columns of the result.
            gemm(
                n,
                m,
                k,
                y.as_mut_ptr(),
                self.y_stride as isize,
                1,
                self.add,
                self.w.as_ptr(),
                row_stride as isize,
                column_stride as isize,
                self.x.as_ptr(),
                x_stride as isize,
                1,
                T::ONE,
                T::ONE,
                false,
                false,
                false,
                Parallelism::None,
            );
        }
    }
}
