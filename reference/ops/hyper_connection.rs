//! Manifold-constrained hyper-connections (mHC): n residual streams, mixed before and after every block.
//!
//! Before a block, three sets of weights are computed from the n streams X `[n, D]` of a token. fn, scale, base and ε are
//! parameters of the model, σ is the sigmoid, and μ = (fn · vec X) / rms(vec X), where vec X are the elements of X as one vector:
//! * pre_j  = σ(μ_j·scale₀ + base_j) + ε: the block's input is u = Σ_j pre_j X_j;
//! * post_j = 2σ(μ_{n+j}·scale₁ + base_{n+j});
//! * C `[n, n]` is computed from A_jk = μ_{2n+jn+k}·scale₂ + base_{2n+jn+k}: softmax of each row, plus ε, then Sinkhorn
//!   normalisation, which ends with the columns.
//!
//! After the block with the output y, X'_k = post_k·y + Σ_j C_jk X_j: the sum is over the first index of C. The formulas are
//! those of DeepSeek's `hc_split_sinkhorn`.

use rayon::prelude::*;

use super::BLOCK;
use super::rmsnorm::inverse_rms;
use crate::real::vectorized;
use crate::{Real, Tensor};

/// Number of tokens whose n×n matrices are normalised at the same time, in SIMD lanes.
const LANES: usize = 16;

/// Parameters of the mixing before and after one block.
#[derive(Clone, Debug)]
pub struct HyperConnection<T> {
    /// Weights fn of the projection of all streams to μ, `[2n + n², n·D]`.
    pub projection: Tensor<T>,
    /// Offsets base, which are added to the logits, `[2n + n²]`.
    pub base: Vec<T>,
    /// Factors scale₀, scale₁ and scale₂.
    pub scale: [T; 3],
    /// Number of streams, n.
    pub streams: usize,
    /// Number of column normalisations. After the softmax, rows are normalised `iterations − 1` times.
    pub iterations: usize,
    /// Term added to mean(x²) under the square root of rms.
    pub norm_eps: T,
    /// Term ε, which is added to the weights pre and in the Sinkhorn normalisation.
    pub eps: T,
}

/// Factors computed by [`HyperConnection::pre`] and applied after the block by [`Mixing::mix`].
pub struct Mixing<T> {
    /// Factors post, `[tokens, n]`.
    pub post: Tensor<T>,
    /// Matrices C, `[tokens, n, n]`.
    pub comb: Tensor<T>,
}

impl<T: Real> HyperConnection<T> {
    /// Maps the streams `[tokens, n, D]` to the input of the block `[tokens, D]`, and to the [`Mixing`] to apply after the
    /// block.
    pub fn pre(&self, x: &Tensor<T>) -> (Tensor<T>, Mixing<T>) {
        let (tokens, n, dim) = (x.shape[0], self.streams, x.cols());
        let mut input = Tensor::full([tokens, dim], T::ZERO);
        let mut post = Tensor::full([tokens, n], T::ZERO);
        let mut comb = Tensor::full([tokens, n, n], T::ZERO);
        let inputs = input.data.par_chunks_mut(BLOCK * dim);
        let posts = post.data.par_chunks_mut(BLOCK * n);
        let combs = comb.data.par_chunks_mut(BLOCK * n * n);
        x.data
            .par_chunks(BLOCK * n * dim)
            .zip(inputs)
            .zip(posts.zip(combs))
            .for_each(|((x, input), (post, comb))| {
                let width = self.base.len();
                let mut mu = vec![T::ZERO; x.len() / (n * dim) * width];
                self.projection.apply_rows(x, &mut mu);
                vectorized!({
                    for (token, mu) in mu.chunks_exact_mut(width).enumerate() {
                        let x = &x[token * n * dim..(token + 1) * n * dim];
                        self.turn_to_logits(x, mu);
                        let pre: Vec<T> = mu[..n].iter().map(|&mu| mu.sigmoid() + self.eps).collect();
                        combine(x, &pre, &mut input[token * dim..(token + 1) * dim]);
                        for (post, &mu) in post[token * n..(token + 1) * n].iter_mut().zip(&mu[n..]) {
                            *post = mu.sigmoid() + mu.sigmoid();
                        }
                        comb[token * n * n..(token + 1) * n * n].copy_from_slice(&mu[2 * n..]);
                    }
                    for comb in comb.chunks_mut(LANES * n * n) {
                        sinkhorn(comb, n, self.iterations, self.eps);
                    }
                });
            });
        (input, Mixing { post, comb })
    }

    /// Returns the logits μ·scale + base, `[tokens, 2n + n²]`. [`HyperConnection::pre`] computes the weights pre, post and C
    /// from these logits.
    pub fn logits(&self, x: &Tensor<T>) -> Tensor<T> {
        let (tokens, width) = (x.shape[0], self.base.len());
        let mut mu = Tensor::full([tokens, width], T::ZERO);
        self.projection.apply_rows(&x.data, &mut mu.data);
        let each = self.streams * x.cols();
        for (x, mu) in x.data.chunks_exact(each).zip(mu.data.chunks_exact_mut(width)) {
            self.turn_to_logits(x, mu);
        }
        mu
    }

    /// Converts `mu`, the projection of the streams x of one token, to logits in place: mu·rms⁻¹·scale + base.
    #[inline(always)]
    fn turn_to_logits(&self, x: &[T], mu: &mut [T]) {
        let (n, scale) = (self.streams, inverse_rms(x, self.norm_eps));
        for (i, mu) in mu.iter_mut().enumerate() {
            let which = usize::from(i >= n) + usize::from(i >= 2 * n);
            *mu = *mu * scale * self.scale[which] + self.base[i];
        }
    }
}

impl<T: Real> Mixing<T> {
    /// Replaces the streams X by X'_k = post_k·y + Σ_j C_jk X_j.
    pub fn mix(&self, x: &mut Tensor<T>, y: &Tensor<T>) {
        let (n, dim) = (self.post.cols(), x.cols());
        let post = self.post.data.par_chunks(BLOCK * n);
        let comb = self.comb.data.par_chunks(BLOCK * n * n);
        let y = y.data.par_chunks(BLOCK * dim);
        x.data
            .par_chunks_mut(BLOCK * n * dim)
            .zip(y)
            .zip(post.zip(comb))
            .for_each(|((x, y), (post, comb))| {
                vectorized!({
                    let mut old = vec![T::ZERO; n * dim];
                    for (token, x) in x.chunks_exact_mut(n * dim).enumerate() {
                        old.copy_from_slice(x);
                        let y = &y[token * dim..(token + 1) * dim];
                        for (k, x) in x.chunks_exact_mut(dim).enumerate() {
                            let post = post[token * n + k];
                            x.iter_mut().zip(y).for_each(|(x, &y)| *x = post * y);
                            for (j, old) in old.chunks_exact(dim).enumerate() {
                                let weight = comb[(token * n + j) * n + k];
                                x.iter_mut().zip(old).for_each(|(x, &old)| *x += weight * old);
                            }
                        }
                    }
                });
            });
    }
}

/// Final mixing of the streams into one: h = Σ_j (σ(μ_j·scale + base_j) + ε) X_j.
#[derive(Clone, Debug)]
pub struct HyperHead<T> {
    /// Projection fn, `[n, n·D]`.
    pub projection: Tensor<T>,
    /// Offsets base, which are added to the logits, `[n]`.
    pub base: Vec<T>,
    /// Factor scale of the logits, the same for all streams.
    pub scale: T,
    /// Term added to mean(x²) under the square root of rms.
    pub norm_eps: T,
    /// Term ε of the weights.
    pub eps: T,
}

impl<T: Real> HyperHead<T> {
    /// Mixes the n streams of each token into one: `[tokens, n, D]` → `[tokens, D]`.
    pub fn apply(&self, x: &Tensor<T>) -> Tensor<T> {
        let (tokens, n, dim) = (x.shape[0], self.base.len(), x.cols());
        let flat = Tensor::new([tokens, n * dim], x.data.clone());
        let mu = self.projection.apply(&flat);
        let mut out = Tensor::full([tokens, dim], T::ZERO);
        for token in 0..tokens {
            let x = flat.row(token);
            let scale = inverse_rms(x, self.norm_eps);
            let weight = |(&mu, &base): (&T, &T)| (mu * scale * self.scale + base).sigmoid() + self.eps;
            let pre: Vec<T> = mu.row(token).iter().zip(&self.base).map(weight).collect();
            combine(x, &pre, out.row_mut(token));
        }
        out
    }
}

/// Computes out = Σ_j weight_j · x_j over the rows of x.
#[inline(always)]
pub fn combine<T: Real>(x: &[T], weights: &[T], out: &mut [T]) {
    out.fill(T::ZERO);
    for (x, &weight) in x.chunks_exact(out.len()).zip(weights) {
        out.iter_mut().zip(x).for_each(|(out, &x)| *out += weight * x);
    }
}

/// Converts up to [`LANES`] matrices A `[n, n]` to C in place: row softmax, + ε, then `iterations` column normalisations
/// alternating with `iterations − 1` row normalisations. Each normalisation divides by the sum + ε.
#[inline(always)]
fn sinkhorn<T: Real>(matrices: &mut [T], n: usize, iterations: usize, eps: T) {
    let mut c = vec![[T::ZERO; LANES]; n * n];
    for (lane, matrix) in matrices.chunks_exact(n * n).enumerate() {
        matrix.iter().zip(&mut c).for_each(|(&a, c)| c[lane] = a);
    }
    for row in c.chunks_exact_mut(n) {
        let mut top = row[0];
        for entry in &*row {
            for lane in 0..LANES {
                top[lane] = top[lane].max(entry[lane]);
            }
        }
        for entry in &mut *row {
            for lane in 0..LANES {
                entry[lane] = entry[lane] - top[lane];
            }
            T::exp_all(entry);
        }
    }
    let rows: Vec<Vec<usize>> = (0..n).map(|j| (0..n).map(|k| j * n + k).collect()).collect();
    let columns: Vec<Vec<usize>> = (0..n).map(|k| (0..n).map(|j| j * n + k).collect()).collect();
    normalize(&mut c, &rows, T::ZERO);
    c.iter_mut().flatten().for_each(|entry| *entry += eps);
    normalize(&mut c, &columns, eps);
    for _ in 1..iterations {
        normalize(&mut c, &rows, eps);
        normalize(&mut c, &columns, eps);
    }
    for (lane, matrix) in matrices.chunks_exact_mut(n * n).enumerate() {
        matrix.iter_mut().zip(&c).for_each(|(a, c)| *a = c[lane]);
    }
}

/// Divides every row, or every column, by its sum + ε. `lines` has the indices of the entries of each row or column.
#[inline(always)]
fn normalize<T: Real>(c: &mut [[T; LANES]], lines: &[Vec<usize>], eps: T) {
    for line in lines {
        let mut sum = [eps; LANES];
        for &entry in line {
            for lane in 0..LANES {
                sum[lane] += c[entry][lane];
            }
        }
        for &entry in line {
            for lane in 0..LANES {
                c[entry][lane] = c[entry][lane] / sum[lane];
            }
        }
    }
}
