//! Functions that compute inputs of the delta rule: log decays from raw gates, β from logits, normalised q and k.

use rayon::prelude::*;

use crate::ops::BLOCK;
use crate::ops::linear::dot;
use crate::real::vectorized;
use crate::{Real, Tensor};

/// Raw gate x, `[tokens, HV]` or `[tokens, HV, K]`, with the parameters of the formula that maps x to the log decay g.
#[derive(Clone, Copy, Debug)]
pub enum Gate<'a, T> {
    /// Log decay g = −exp(a_log) · softplus(x + dt_bias), where softplus(x) is ln(1 + eˣ) up to x = 20, and x above.
    Softplus {
        /// The raw gate.
        x: &'a Tensor<T>,
        /// Logarithm of the factor exp(a_log) of each value head, `[HV]`.
        a_log: &'a [T],
        /// Bias of the raw gate: one per value head, `[HV]`, or one per channel of each value head, `[HV, K]`.
        dt_bias: Option<&'a [T]>,
    },
    /// Log decay g = bound · sigmoid(exp(a_log) · (x + dt_bias)), between `bound` < 0 and 0. Without `a_log`, exp(a_log) is 1.
    LowerBound {
        /// The raw gate.
        x: &'a Tensor<T>,
        /// Logarithm of the factor exp(a_log) of each value head, `[HV]`.
        a_log: Option<&'a [T]>,
        /// Bias of the raw gate: one per value head, `[HV]`, or one per channel of each value head, `[HV, K]`.
        dt_bias: Option<&'a [T]>,
        /// Lower bound of log decays.
        bound: T,
    },
}

impl<T: Real> Gate<'_, T> {
    /// Returns the log decays, in the shape of x.
    ///
    /// # Errors
    /// Returns an error if the shapes do not match, or if `bound` is not finite and negative.
    pub fn log_decay(&self) -> Result<Tensor<T>, String> {
        match *self {
            Self::Softplus { x, a_log, dt_bias } => map(x, Some(a_log), dt_bias, |x, factor| -(factor * softplus(x))),
            Self::LowerBound { bound, .. } if !(bound < T::ZERO && bound > T::NEG_INFINITY) => Err(format!(
                "the lower bound of gates is {bound:?}, expected below 0 and finite"
            )),
            Self::LowerBound {
                x,
                a_log,
                dt_bias,
                bound,
            } => map(x, a_log, dt_bias, |x, factor| bound * (factor * x).sigmoid()),
        }
    }
}

/// Returns `gate(x + dt_bias, exp(a_log))` for every element of x.
fn map<T: Real>(
    x: &Tensor<T>,
    a_log: Option<&[T]>,
    dt_bias: Option<&[T]>,
    gate: impl Fn(T, T) -> T + Sync,
) -> Result<Tensor<T>, String> {
    let (heads, channels) = match x.shape[..] {
        [_, heads] if heads > 0 => (heads, 1),
        [_, heads, channels] if heads * channels > 0 => (heads, channels),
        _ => {
            return Err(format!(
                "the raw gate has shape {:?}, expected [tokens, HV] or [tokens, HV, K]",
                x.shape
            ));
        }
    };
    let factors: Vec<T> = match a_log {
        Some(a_log) if a_log.len() != heads => return Err(format!("{} a_log for {heads} value heads", a_log.len())),
        Some(a_log) => a_log.iter().map(|a| a.exp()).collect(),
        None => vec![T::ONE; heads],
    };
    let width = heads * channels;
    if let Some(bias) = dt_bias.filter(|bias| bias.len() != width) {
        return Err(format!(
            "{} dt_bias for {heads} value heads of {channels} gates",
            bias.len()
        ));
    }
    let mut g = x.clone();
    g.data.par_chunks_mut(width).for_each(|token| {
        for (i, g) in token.iter_mut().enumerate() {
            let x = dt_bias.map_or(*g, |bias| *g + bias[i]);
            *g = gate(x, factors[i / channels]);
        }
    });
    Ok(g)
}

/// Returns softplus(x) = ln(1 + eˣ). Above 20 the result is x, as in PyTorch; it is then too small by at most 2.1·10⁻⁹.
pub(crate) fn softplus<T: Real>(x: T) -> T {
    if x > T::from_f64(20.0) { x } else { x.exp().ln_1p() }
}

/// Returns β = sigmoid(logit), or 2 · sigmoid(logit) to allow negative eigenvalues of the state transition I − β k kᵀ.
pub fn beta<T: Real>(logits: &Tensor<T>, negative_eigenvalues: bool) -> Tensor<T> {
    let most = T::from_f64(if negative_eigenvalues { 2.0 } else { 1.0 });
    Tensor::new(
        logits.shape.clone(),
        logits.data.iter().map(|x| most * x.sigmoid()).collect(),
    )
}

/// Default ε of [`l2_normalize`], used by every published kernel.
pub const L2_EPS: f64 = 1e-6;

/// Normalises every row to x / √(Σ x² + ε). Models apply this to q and k before the scale. Rows of zeros remain zeros.
pub fn l2_normalize<T: Real>(x: &mut Tensor<T>, eps: T) {
    let cols = x.cols();
    x.data.par_chunks_mut(BLOCK * cols).for_each(|block| {
        vectorized!({
            for row in block.chunks_exact_mut(cols) {
                let norm = (dot(row, row) + eps).sqrt();
                row.iter_mut().for_each(|x| *x = *x / norm);
            }
        });
    });
}
