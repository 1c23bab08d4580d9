//! The recurrent form of linear attention, which updates the state token by token.

use super::Form;
use super::inputs::Head;
use super::state::Layout;
use crate::Real;
use crate::ops::linear::dot;
use crate::ops::store::{Store, Token};
use crate::real::vectorized;

/// Parameters of the recurrent form, which stores the state after every token.
#[derive(Clone, Copy)]
pub struct Recurrent<'a, T> {
    /// True to compute Sᵀk and Sᵀq in one pass over S, as decode kernels do: o = scale (Sᵀq + (k·q) d), where S is decayed but
    /// not yet updated by k dᵀ. The result is the same in exact arithmetic.
    pub one_pass: bool,
    /// Rounding (or another change) of the state, which is applied after each token.
    pub store: Store<'a, T>,
}

impl<T> Recurrent<'_, T> {
    /// The recurrence as defined, without rounding.
    pub const DEFINITION: Self = Self {
        one_pass: false,
        store: None,
    };

    /// The one-pass form, without rounding.
    pub const ONE_PASS: Self = Self {
        one_pass: true,
        store: None,
    };
}

impl<T: Real> Form<T> for Recurrent<'_, T> {
    fn head<L: Layout>(&self, head: &Head<T>, state: &mut [T], out: &mut [T]) {
        let (key_dim, value_dim) = (head.key_dim, head.value_dim);
        let mut decay = vec![T::ZERO; key_dim];
        let mut d = vec![T::ZERO; value_dim];
        for (token, out) in out.chunks_exact_mut(value_dim).enumerate() {
            let q = &head.q[token * key_dim..][..key_dim];
            let k = &head.k[token * key_dim..][..key_dim];
            let v = &head.v[token * value_dim..][..value_dim];
            let g = &head.decay[token * head.decays..][..head.decays];
            let beta = head.beta.as_ref().map(|beta| beta[token]);
            vectorized!({
                match g {
                    [g] => decay.fill(g.exp()),
                    g => {
                        decay.copy_from_slice(g);
                        T::exp_all(&mut decay);
                    }
                }
                if self.one_pass {
                    one_pass(state, &decay, (q, k, v, beta), &mut d, out);
                } else {
                    two_passes(state, &decay, (q, k, v, beta), &mut d, out);
                }
                out.iter_mut().for_each(|o| *o *= head.scale);
            });
            if let Some(store) = self.store {
                let at = Token {
                    sequence: head.sequence,
                    head: head.value_head,
                    token,
                };
                let [_, cols] = L::stored(key_dim, value_dim);
                L::as_stored(state, key_dim, value_dim, |state| store(at, state, cols));
            }
        }
    }
}

/// Inputs q, k, v and β of a token.
type Step<'a, T> = (&'a [T], &'a [T], &'a [T], Option<T>);

/// Computes a token as defined: decays S and computes Sᵀk, then updates S and computes Sᵀq.
#[inline(always)]
fn two_passes<T: Real>(state: &mut [T], decay: &[T], (q, k, v, beta): Step<'_, T>, d: &mut [T], out: &mut [T]) {
    d.fill(T::ZERO);
    for ((row, &decay), &k) in state.chunks_exact_mut(v.len()).zip(decay).zip(k) {
        for (s, read) in row.iter_mut().zip(&mut *d) {
            *s *= decay;
            *read += *s * k;
        }
    }
    delta(d, v, beta);
    out.fill(T::ZERO);
    for ((row, &k), &q) in state.chunks_exact_mut(v.len()).zip(k).zip(q) {
        for ((s, &d), o) in row.iter_mut().zip(&*d).zip(&mut *out) {
            *s += k * d;
            *o += *s * q;
        }
    }
}

/// Computes Sᵀk and Sᵀq of a token in one pass over the decayed S, then updates S and corrects Sᵀq for the update.
#[inline(always)]
fn one_pass<T: Real>(state: &mut [T], decay: &[T], (q, k, v, beta): Step<'_, T>, d: &mut [T], out: &mut [T]) {
    d.fill(T::ZERO);
    out.fill(T::ZERO);
    for (((row, &decay), &k), &q) in state.chunks_exact_mut(v.len()).zip(decay).zip(k).zip(q) {
        for ((s, read), o) in row.iter_mut().zip(&mut *d).zip(&mut *out) {
            *s *= decay;
            *read += *s * k;
            *o += *s * q;
        }
    }
    delta(d, v, beta);
    let overlap = dot(k, q);
    out.iter_mut().zip(&*d).for_each(|(o, &d)| *o += overlap * d);
    for (row, &k) in state.chunks_exact_mut(v.len()).zip(k) {
        row.iter_mut().zip(&*d).for_each(|(s, &d)| *s += k * d);
    }
}

/// Replaces d, which holds r = Sᵀk, by β (v − r), or by v without β.
#[inline(always)]
fn delta<T: Real>(d: &mut [T], v: &[T], beta: Option<T>) {
    match beta {
        Some(beta) => d.iter_mut().zip(v).for_each(|(d, &v)| *d = beta * (v - *d)),
        None => d.copy_from_slice(v),
    }
}
