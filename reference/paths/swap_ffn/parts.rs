//! Parts of Swap-FFN other than the router, each with its weights: expansion of a token to cores, FFN, and pooling of the cores.

use rayon::prelude::*;

use super::config::Config;
use super::context::Context;
use super::sites::*;
use crate::ops::BLOCK;
use crate::ops::linear::Product;
use crate::real::vectorized;
use crate::{Real, Tensor};

/// Replaces every element x_i by `work(x_i, y_i)`, vectorised.
fn zip<T: Real>(x: &mut Tensor<T>, y: &Tensor<T>, work: impl Fn(T, T) -> T + Sync) {
    let len = BLOCK * y.cols();
    let blocks = x.data.par_chunks_mut(len).zip(y.data.par_chunks(len));
    blocks.for_each(|(x, y)| vectorized!(x.iter_mut().zip(y).for_each(|(x, &y)| *x = work(*x, y))));
}

fn silu<T: Real>(x: &mut Tensor<T>) {
    let len = BLOCK * x.cols();
    let blocks = x.data.par_chunks_mut(len);
    blocks.for_each(|x| vectorized!(x.iter_mut().for_each(|x| *x *= x.sigmoid())));
}

/// Scale and shift that expand a token to its cores (FiLM), and the pooling weights of the cores. Computed from the embeddings of
/// the cores when the model is loaded: they do not depend on the token.
#[derive(Clone, Debug)]
pub struct Film<T> {
    /// Scale S `[core_count, d_model]`, already including the added 1.
    pub scale: Tensor<T>,
    /// Shift T `[core_count, d_model]`.
    pub shift: Tensor<T>,
    /// Pooling weights A `[core_count, collapse_k]`.
    pub alpha: Tensor<T>,
}

impl<T: Real> Film<T> {
    /// Maps tokens `[B, d_model]` to x = x_in ⊙ S + T, `[B · core_count, d_model]`.
    pub(super) fn spread(&self, x_in: &Tensor<T>) -> Tensor<T> {
        let (cores, width) = (self.scale.rows(), self.scale.cols());
        let mut x = Tensor::full([x_in.rows() * cores, width], T::ZERO);
        for (row, x) in x.data.chunks_exact_mut(width).enumerate() {
            let (x_in, core) = (x_in.row(row / cores), row % cores);
            let film = self.scale.row(core).iter().zip(self.shift.row(core));
            for ((x, &x_in), (&scale, &shift)) in x.iter_mut().zip(x_in).zip(film) {
                *x = x_in * scale + shift;
            }
        }
        x
    }
}

/// Shared FFN: f = W2 (silu(W1 n) ⊙ W3 n) with n = norm(x). The result is x + f if [`Config::residual`] is true, else f.
#[derive(Clone, Debug)]
pub struct Ffn<T> {
    /// Weights of the norm, `[d_model]`.
    pub norm: Vec<T>,
    /// Gate projection, `[d_ff, d_model]`.
    pub w1: Tensor<T>,
    /// Up projection, `[d_ff, d_model]`.
    pub w3: Tensor<T>,
    /// Down projection, `[d_model, d_ff]`.
    pub w2: Tensor<T>,
}

impl<T: Real> Ffn<T> {
    pub(super) fn step(&self, x: &mut Tensor<T>, config: &Config, cx: &mut Context<'_, T>) {
        let mut n = x.clone();
        cx.rmsnorm(&mut n, Some(&self.norm), T::from_f64(config.eps));
        cx.pass(FFN_INPUT, &mut n);
        let mut h = self.w1.apply(&n);
        cx.pass(FFN_GATE, &mut h);
        let mut up = self.w3.apply(&n);
        cx.pass(FFN_UP, &mut up);
        silu(&mut h);
        cx.pass(FFN_SILU, &mut h);
        zip(&mut h, &up, |silu, up| silu * up);
        cx.pass(FFN_HIDDEN, &mut h);
        let mut down = self.w2.apply(&h);
        cx.pass(FFN_DOWN, &mut down);
        match config.residual {
            true => zip(x, &down, |x, down| x + down),
            false => *x = down,
        }
        cx.pass(X, x);
    }
}

/// Weights that compute a token's delta (the change to add to it). The basis reduces the pooled vectors of the cores to one
/// vector, and the decoder maps this vector to the delta.
#[derive(Clone, Debug)]
pub struct Collapse<T> {
    /// Basis `[collapse_k, collapse_r, d_model]`.
    pub basis: Tensor<T>,
    /// Decoder `[d_model, collapse_r]`.
    pub decoder: Tensor<T>,
}

impl<T: Real> Collapse<T> {
    /// Maps x `[B · core_count, d_model]` to delta `[B, d_model]`.
    pub(super) fn apply(
        &self,
        x: &Tensor<T>,
        alpha: &Tensor<T>,
        config: &Config,
        cx: &mut Context<'_, T>,
    ) -> Tensor<T> {
        let (cores, ways, width) = (alpha.rows(), alpha.cols(), x.cols());
        let rank = config.collapse_r;
        let batch = x.rows() / cores;
        let turned: Vec<T> = (0..ways)
            .flat_map(|k| (0..cores).map(move |c| alpha.data[c * ways + k]))
            .collect();
        let mut pooled = Tensor::full([batch, ways * width], T::ZERO);
        let rows = pooled.data.chunks_exact_mut(ways * width);
        for (x, pooled) in x.data.chunks_exact(cores * width).zip(rows) {
            let product = Product {
                w_strides: (1, width),
                ..Product::new([ways, width, cores], &turned, x)
            };
            product.run(pooled);
        }
        cx.pass(POOLED, &mut pooled);
        let mut z = Tensor::full([batch, rank], T::ZERO);
        for (k, basis) in self.basis.data.chunks_exact(rank * width).enumerate() {
            let product = Product {
                x_stride: ways * width,
                add: true,
                ..Product::new([batch, rank, width], &pooled.data[k * width..], basis)
            };
            product.run(&mut z.data);
        }
        if config.collapse_silu {
            silu(&mut z);
        }
        cx.pass(COLLAPSED, &mut z);
        let mut delta = self.decoder.apply(&z);
        cx.pass(DELTA, &mut delta);
        delta
    }
}
