//! The chunked form of linear attention: matrix products in the WY (UT) representation.
//!
//! A chunk has L tokens. Token i has the rows q_i, k_i and v_i, the factor β_i and the log decay g_i; c is a key channel. Let
//! G_i = Σ_{s≤i} g_s, D_ij = exp(G_i − G_j) for i ≥ j, and S₀ the state before the chunk. The outputs o and the next state S₁
//! are:
//!
//! ```text
//! A_ij = β_i Σ_c k_ic k_jc D_ij(c)  for i > j       P_ij = Σ_c q_ic k_jc D_ij(c)  for i ≥ j
//! X = (I + A)⁻¹                     U = X (β v)      W = X (β exp(G) k)
//! N = U − W S₀                      o = scale ((exp(G) q) S₀ + P N)
//! S₁ = exp(G_L) S₀ + (exp(G_L − G) k)ᵀ N
//! ```
//!
//! Without the delta rule, N = v. A chunk never spans two sequences. The results of a row do not depend on later rows, even if a
//! later row has NaN.

use super::Form;
use super::inputs::Head;
use super::inverse::{Inversion, inverse};
use super::policy::{Exact, Intermediate, Policy};
use super::scores::{Sums, scale, scores};
use super::state::{Layout, transpose};
use crate::Real;
use crate::ops::linear::Product;
use crate::real::vectorized;

/// Parameters of the chunked form.
#[derive(Clone, Copy, Debug)]
pub struct Chunked<P = Exact> {
    /// Number of tokens of a chunk: 64 in most kernels, 16 in some.
    pub chunk: usize,
    /// Method that inverts I + A.
    pub inversion: Inversion,
    /// Rounding of intermediates.
    pub policy: P,
}

impl Chunked {
    /// Creates the chunked form without rounding of intermediates.
    pub fn exact(chunk: usize) -> Self {
        Self {
            chunk,
            inversion: Inversion::Substitution,
            policy: Exact,
        }
    }
}

impl<T: Real, P: Policy<T>> Form<T> for Chunked<P> {
    fn check(&self) -> Result<(), String> {
        match self.chunk {
            0 => Err("chunks of 0 tokens".into()),
            _ => Ok(()),
        }
    }

    fn head<L: Layout>(&self, head: &Head<T>, state: &mut [T], out: &mut [T]) {
        for (number, out) in out.chunks_mut(self.chunk * head.value_dim).enumerate() {
            Chunk::new(head, number * self.chunk, out.len() / head.value_dim, self).run(state, out);
        }
    }
}

/// Inputs of one chunk, rounded by the [`Policy`] as a kernel would round them.
struct Chunk<'a, T, P> {
    form: &'a Chunked<P>,
    /// Number of key and value channels, K and V.
    dims: [usize; 2],
    q: Vec<T>,
    k: Vec<T>,
    v: Vec<T>,
    beta: Option<Vec<T>>,
    sums: Sums,
    factor: T,
}

impl<'a, T: Real, P: Policy<T>> Chunk<'a, T, P> {
    fn new(head: &Head<T>, first: usize, rows: usize, form: &'a Chunked<P>) -> Self {
        let take = |what, from: &[T], cols: usize| {
            let mut rows = from[first * cols..][..rows * cols].to_vec();
            form.policy.round(what, &mut rows, cols);
            rows
        };
        let width = head.decays;
        let mut sum = vec![0.0; width];
        let mut sums = Vec::with_capacity(rows * width);
        for g in head.decay[first * width..][..rows * width].chunks_exact(width) {
            for (sum, &g) in sum.iter_mut().zip(g) {
                *sum = form.policy.add_decay(*sum, g.into());
            }
            sums.extend_from_slice(&sum);
        }
        Self {
            form,
            dims: [head.key_dim, head.value_dim],
            q: take(Intermediate::Query, &head.q, head.key_dim),
            k: take(Intermediate::Key, &head.k, head.key_dim),
            v: take(Intermediate::Value, &head.v, head.value_dim),
            beta: head.beta.as_ref().map(|beta| take(Intermediate::Beta, beta, 1)),
            sums: Sums { sums, width },
            factor: head.scale,
        }
    }

    fn round(&self, what: Intermediate, mut values: Vec<T>, cols: usize) -> Vec<T> {
        self.form.policy.round(what, &mut values, cols);
        values
    }

    fn run(&self, state: &mut [T], out: &mut [T]) {
        let [key_dim, value_dim] = self.dims;
        let rows = self.v.len() / value_dim;
        let [p, a] = scores(&self.q, &self.k, key_dim, &self.sums, &self.form.policy);
        let p = self.round(Intermediate::P, p, rows);
        let operand = self.round(Intermediate::StateOperand, state.to_vec(), value_dim);
        let n = match &self.beta {
            Some(beta) => self.pseudo_values(a, beta, &operand),
            None => self.v.clone(),
        };
        let n = self.round(Intermediate::PseudoValue, n, value_dim);

        let mut queries = self.q.clone();
        self.sums.decay(&mut queries, key_dim, 0, |sum, _| sum);
        let queries = self.round(Intermediate::DecayedQuery, queries, key_dim);
        product(&queries, &operand, self.dims, false, out);
        add_lower(&p, &n, value_dim, out);
        out.iter_mut().for_each(|o| *o *= self.factor);
        self.form.policy.round(Intermediate::Output, out, value_dim);

        let last = self.sums.last();
        let mut keys = self.k.clone();
        self.sums.decay(&mut keys, key_dim, 0, |sum, c| last[c] - sum);
        let keys = self.round(Intermediate::DecayedKey, keys, key_dim);
        let decay: Vec<T> = last.iter().map(|&sum| T::from_f64(sum).exp()).collect();
        for (c, row) in state.chunks_exact_mut(value_dim).enumerate() {
            let c = if self.sums.width == 1 { 0 } else { c };
            scale(row, &decay[c..=c]);
        }
        product(&transpose(&keys, rows, key_dim), &n, [rows, value_dim], true, state);
        self.form.policy.round(Intermediate::State, state, value_dim);
    }

    /// Returns N = U − W S₀, `[rows, value_dim]`. `a` is the matrix A before its rows are multiplied by β.
    fn pseudo_values(&self, mut a: Vec<T>, beta: &[T], state: &[T]) -> Vec<T> {
        let [key_dim, value_dim] = self.dims;
        let rows = beta.len();
        let by_beta = |matrix: &mut [T], cols: usize| {
            for (row, beta) in matrix.chunks_exact_mut(cols).zip(beta) {
                scale(row, std::slice::from_ref(beta));
            }
        };
        by_beta(&mut a, rows);
        a.iter_mut().step_by(rows + 1).for_each(|a| *a = T::ZERO);
        let a = self.round(Intermediate::A, a, rows);
        let inverse = inverse(&a, rows, self.form.inversion, &self.form.policy);
        let inverse = self.round(Intermediate::Inverse, inverse, rows);

        let mut values = self.v.clone();
        by_beta(&mut values, value_dim);
        let values = self.round(Intermediate::BetaValue, values, value_dim);
        let mut u = vec![T::ZERO; rows * value_dim];
        add_lower(&inverse, &values, value_dim, &mut u);
        let mut u = self.round(Intermediate::U, u, value_dim);

        let mut keys = self.k.clone();
        self.sums.decay(&mut keys, key_dim, 0, |sum, _| sum);
        by_beta(&mut keys, key_dim);
        let keys = self.round(Intermediate::BetaKey, keys, key_dim);
        let mut w = vec![T::ZERO; rows * key_dim];
        add_lower(&inverse, &keys, key_dim, &mut w);
        let w = self.round(Intermediate::W, w, key_dim);

        let mut read = vec![T::ZERO; rows * value_dim];
        product(&w, state, self.dims, false, &mut read);
        u.iter_mut().zip(&read).for_each(|(u, &read)| *u = *u - read);
        u
    }
}

/// Computes y = x · w, or adds x · w to y if `add` is true; w is `[k, n]`.
fn product<T: Real>(x: &[T], w: &[T], [k, n]: [usize; 2], add: bool, y: &mut [T]) {
    let product = Product {
        w_strides: (1, n),
        add,
        ..Product::new([x.len() / k, n, k], x, w)
    };
    product.run(y);
}

/// Adds m · x to y for a lower triangular m; x and y have `cols` columns.
fn add_lower<T: Real>(m: &[T], x: &[T], cols: usize, y: &mut [T]) {
    let rows = y.len() / cols;
    vectorized!({
        for (i, (m, y)) in m.chunks_exact(rows).zip(y.chunks_exact_mut(cols)).enumerate() {
            for (&m, x) in m[..=i].iter().zip(x.chunks_exact(cols)) {
                y.iter_mut().zip(x).for_each(|(y, &x)| *y += m * x);
            }
        }
    });
}
