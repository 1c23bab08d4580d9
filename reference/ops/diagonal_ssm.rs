//! Diagonal state-space model. A head with one channel has an input u_t and an output y_t per step t, and N states x_t with the
//! elementwise parameters a, b and c:
//!
//! ```text
//! x_t = a ⊙ x_{t−1} + b u_t        y_t = Σ_n c_n x_{t,n}
//! ```
//!
//! Near |a| = 1, a state accumulates the rounding errors of 1 / (1 − |a|) steps. The chunked form multiplies the state by a^T
//! once per chunk of T steps, so that an error of a^T accumulates in the same way. Powers of a are therefore computed in f64 and
//! rounded once.

use rayon::prelude::*;

use super::linear::dot;
use super::store::{Store, Token};
use crate::real::vectorized;
use crate::{Real, Tensor};

/// Parameters, each of shape `[heads, N]`.
#[derive(Clone, Copy, Debug)]
pub struct DiagonalSsm<'a, T> {
    /// Factor of the previous state.
    pub a: &'a Tensor<T>,
    /// Factor of the input.
    pub b: &'a Tensor<T>,
    /// Factors c_n of the states in the output y.
    pub c: &'a Tensor<T>,
}

/// Rows of a, b and c of one head.
type Head<'a, T> = [&'a [T]; 3];

impl<T: Real> DiagonalSsm<'_, T> {
    /// Computes the recurrence step by step, for S steps. Reads u `[heads, S]` and the states `[heads, N]`, replaces the states
    /// by the states after the last step, and returns y `[heads, S]`. After each step, `store` may change the state, e.g. round
    /// it.
    ///
    /// # Errors
    /// Returns an error if the shapes do not match.
    pub fn recurrent(&self, u: &Tensor<T>, state: &mut Tensor<T>, store: Store<'_, T>) -> Result<Tensor<T>, String> {
        self.heads(u, state, |head, [a, b, c], u, x, y| {
            for (token, (&u, y)) in u.iter().zip(y).enumerate() {
                vectorized!({
                    for ((x, &a), &b) in x.iter_mut().zip(a).zip(b) {
                        *x = a * *x + b * u;
                    }
                    *y = dot(c, x);
                });
                keep(store, head, token, x);
            }
            Ok(())
        })
    }

    /// Same as [`Self::recurrent`], with b folded into c: x' = x / b, so that x'_t = a x'_{t−1} + u_t and y = Σ (c b) x'. The
    /// stored state is x'.
    ///
    /// # Errors
    /// Returns an error if the shapes do not match, or if a state is not 0 where b is 0: x' does not exist there.
    pub fn folded(&self, u: &Tensor<T>, state: &mut Tensor<T>, store: Store<'_, T>) -> Result<Tensor<T>, String> {
        self.heads(u, state, |head, [a, b, c], u, x, y| {
            if let Some(n) = (0..x.len()).find(|&n| b[n] == T::ZERO && x[n] != T::ZERO) {
                return Err(format!("head {head}, state {n}: b is 0 and the state {:?}", x[n]));
            }
            let weight: Vec<T> = c.iter().zip(b).map(|(&c, &b)| c * b).collect();
            let fold = |(x, &b): (&mut T, &T)| *x = if b == T::ZERO { *x } else { *x / b };
            x.iter_mut().zip(b).for_each(fold);
            for (token, (&u, y)) in u.iter().zip(y).enumerate() {
                vectorized!({
                    x.iter_mut().zip(a).for_each(|(x, &a)| *x = a * *x + u);
                    *y = dot(&weight, x);
                });
                keep(store, head, token, x);
            }
            x.iter_mut().zip(b).for_each(|(x, &b)| *x *= b);
            Ok(())
        })
    }

    /// Same as [`Self::recurrent`], in chunks of T steps. Let x be the state before the chunk, let t and s count the steps of the
    /// chunk from 0, and let K_j = Σ_n c b aʲ:
    ///
    /// ```text
    /// y_t = Σ_{s≤t} K_{t−s} u_s + Σ_n c a^{t+1} x       x ← a^T x + Σ_s b a^{T−1−s} u_s
    /// ```
    ///
    /// # Errors
    /// Returns an error if the shapes do not match, or if `chunk` is 0.
    pub fn chunked(&self, u: &Tensor<T>, state: &mut Tensor<T>, chunk: usize) -> Result<Tensor<T>, String> {
        if chunk == 0 {
            return Err("chunks of 0 steps".into());
        }
        self.heads(u, state, |_, head, u, x, y| {
            let powers = Powers::new(head, chunk);
            for (u, y) in u.chunks(chunk).zip(y.chunks_mut(chunk)) {
                powers.step(u, x, y);
            }
            Ok(())
        })
    }

    /// Checks the shapes, and calls `run` for every head with the rows of u, the state and y of that head. The states change
    /// only if all heads succeed.
    fn heads(
        &self,
        u: &Tensor<T>,
        state: &mut Tensor<T>,
        run: impl Fn(usize, Head<'_, T>, &[T], &mut [T], &mut [T]) -> Result<(), String> + Sync,
    ) -> Result<Tensor<T>, String> {
        let (&[heads, states], &[rows, steps]) = (&self.a.shape[..], &u.shape[..]) else {
            let shapes = (&self.a.shape, &u.shape);
            return Err(format!(
                "a has shape {:?}, expected [heads, N]; u has {:?}, expected [heads, S]",
                shapes.0, shapes.1
            ));
        };
        for (what, shape) in [("b", &self.b.shape), ("c", &self.c.shape), ("the state", &state.shape)] {
            if *shape != self.a.shape {
                return Err(format!("{what} has shape {shape:?}, expected {:?}", self.a.shape));
            }
        }
        if rows != heads || states == 0 {
            return Err(format!(
                "a has shape {:?} and u {:?}: one row each for every head",
                self.a.shape, u.shape
            ));
        }
        let run = |head: usize| {
            let (mut x, mut y) = (state.row(head).to_vec(), vec![T::ZERO; steps]);
            let parameters = [self.a, self.b, self.c].map(|of| of.row(head));
            run(head, parameters, u.row(head), &mut x, &mut y)?;
            Ok((x, y))
        };
        let found = (0..heads).into_par_iter().map(run);
        let (x, y): (Vec<_>, Vec<_>) = found.collect::<Result<Vec<_>, String>>()?.into_iter().unzip();
        state.data = x.concat();
        Ok(Tensor::new([heads, steps], y.concat()))
    }
}

fn keep<T: Real>(store: Store<'_, T>, head: usize, token: usize, x: &mut [T]) {
    if let Some(store) = store {
        let at = Token {
            sequence: 0,
            head,
            token,
        };
        let states = x.len();
        store(at, x, states);
    }
}

/// Coefficients of a chunk of one head, computed in f64.
struct Powers<T> {
    states: usize,
    /// K_j = Σ_n c b aʲ, `[chunk]`.
    kernel: Vec<T>,
    /// b aʲ, `[chunk, N]`.
    input: Vec<T>,
    /// c a^{j+1}, `[chunk, N]`.
    output: Vec<T>,
    /// a^{j+1}, `[chunk, N]`.
    decay: Vec<T>,
}

impl<T: Real> Powers<T> {
    fn new([a, b, c]: Head<'_, T>, chunk: usize) -> Self {
        let [a, b, c] = [a, b, c].map(|of| of.iter().map(|&x| x.into()).collect::<Vec<f64>>());
        let mut power = vec![1.0; a.len()];
        let mut powers = Self {
            states: a.len(),
            kernel: Vec::new(),
            input: Vec::new(),
            output: Vec::new(),
            decay: Vec::new(),
        };
        for _ in 0..chunk {
            let kernel = (0..a.len()).map(|n| c[n] * b[n] * power[n]).sum();
            powers.kernel.push(T::from_f64(kernel));
            powers.input.extend((0..a.len()).map(|n| T::from_f64(b[n] * power[n])));
            power.iter_mut().zip(&a).for_each(|(power, a)| *power *= a);
            powers.output.extend((0..a.len()).map(|n| T::from_f64(c[n] * power[n])));
            powers.decay.extend(power.iter().map(|&power| T::from_f64(power)));
        }
        powers
    }

    /// Computes one chunk (the last chunk may be shorter). The length of u and y is the number of steps.
    fn step(&self, u: &[T], x: &mut [T], y: &mut [T]) {
        let steps = u.len();
        vectorized!({
            for (y, output) in y.iter_mut().zip(self.output.chunks_exact(self.states)) {
                *y = dot(output, x);
            }
            for (s, &u) in u.iter().enumerate() {
                y[s..].iter_mut().zip(&self.kernel).for_each(|(y, &k)| *y += k * u);
            }
            let decay = &self.decay[(steps - 1) * self.states..];
            x.iter_mut().zip(decay).for_each(|(x, &decay)| *x *= decay);
            for (&u, input) in u
                .iter()
                .zip(self.input[..steps * self.states].chunks_exact(self.states).rev())
            {
                x.iter_mut().zip(input).for_each(|(x, &input)| *x += input * u);
            }
        });
    }
}
