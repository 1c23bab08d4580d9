//! Random inputs of recurrences. Inputs of many steps are made piece by piece, to limit the memory.

use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Exp1, StandardUniform};
use reference::ops::linear_attention::{L2_EPS, l2_normalize};
use reference::{Real, Tensor};

use super::{Attention, Gate, Operation, Poles};
use crate::experiment::Source;
use ulplab_core::random::{gaussian, stream};

/// Inputs of consecutive steps.
pub enum Piece<T> {
    Attention {
        /// Query, `[steps, heads, K]`; each vector of K numbers has L2 norm 1.
        q: Tensor<T>,
        /// Key, `[steps, heads, K]`; each vector of K numbers has L2 norm 1.
        k: Tensor<T>,
        /// Value, `[steps, heads, V]`.
        v: Tensor<T>,
        /// Log decays, `[steps, heads]` or `[steps, heads, K]`.
        decay: Tensor<T>,
        /// Step sizes β of the delta rule, `[steps, heads]`.
        beta: Option<Tensor<T>>,
    },
    Ssm {
        /// The parameters a, b and c, `[heads, states]` each, of the model x' = a x + b u with the output Σ c x'.
        parameters: [Tensor<T>; 3],
        /// The input u, `[heads, steps]`.
        u: Tensor<T>,
    },
}

impl Piece<f32> {
    /// Returns the piece (the inputs of several steps) with its values converted to `T`.
    pub fn cast<T: Real>(&self) -> Piece<T> {
        match self {
            Self::Attention { q, k, v, decay, beta } => Piece::Attention {
                q: q.cast(),
                k: k.cast(),
                v: v.cast(),
                decay: decay.cast(),
                beta: beta.as_ref().map(Tensor::cast),
            },
            Self::Ssm { parameters, u } => Piece::Ssm {
                parameters: parameters.each_ref().map(Tensor::cast),
                u: u.cast(),
            },
        }
    }
}

/// Generator of the random inputs of a recurrence, beginning with the first step.
pub struct Inputs<'a> {
    origin: &'a Operation,
    heads: usize,
    /// Random streams of q, k, v, decays and β, or of the parameters and u. Each tensor has its own stream, so that the numbers
    /// do not depend on how steps are split into pieces.
    rngs: [ChaCha8Rng; 5],
    parameters: Option<[Tensor<f32>; 3]>,
}

impl<'a> Inputs<'a> {
    pub fn new(heads: usize, seed: u64, source: &'a Source<Operation>, window: &str) -> Self {
        let rng = |what: &str| stream(seed, &format!("{}/{window}/{what}", source.name));
        let mut rngs = ["q", "k", "v", "decay", "beta"].map(rng);
        let parameters = match source.from {
            Operation::DiagonalSsm { poles, states } => {
                let mut of = |rng: usize| Tensor::new([heads, states], gaussian(&mut rngs[rng], heads * states));
                let (b, c) = (of(1), of(2));
                let a = draw_poles(poles, heads * states, &mut rngs[0]);
                Some([Tensor::new([heads, states], a), b, c])
            }
            Operation::LinearAttention { .. } => None,
        };
        Self {
            origin: &source.from,
            heads,
            rngs,
            parameters,
        }
    }

    /// Returns the zero state before the first step: `[1, heads, K, V]` or `[heads, states]`.
    pub fn zeros<T: Real>(&self) -> Tensor<T> {
        match *self.origin {
            Operation::LinearAttention { state: [k, v], .. } => Tensor::full([1, self.heads, k, v], T::ZERO),
            Operation::DiagonalSsm { states, .. } => Tensor::full([self.heads, states], T::ZERO),
        }
    }

    /// Makes the random inputs of the next `steps` steps.
    pub fn next(&mut self, steps: usize) -> Piece<f32> {
        let heads = self.heads;
        let [rng_q, rng_k, rng_v, rng_decay, rng_beta] = &mut self.rngs;
        if let Operation::LinearAttention { op, gate, state } = self.origin {
            let normal = |rng: &mut ChaCha8Rng, cols: usize| {
                Tensor::new([steps, heads, cols], gaussian(rng, steps * heads * cols))
            };
            let [mut q, mut k] = [(rng_q, state[0]), (rng_k, state[0])].map(|(rng, cols)| normal(rng, cols));
            l2_normalize(&mut q, L2_EPS as f32);
            l2_normalize(&mut k, L2_EPS as f32);
            let decay = match op {
                Attention::Kda => vec![steps, heads, state[0]],
                Attention::Gdn | Attention::SimpleGla => vec![steps, heads],
            };
            let numbers = decay.iter().product();
            let beta = gaussian(rng_beta, steps * heads).into_iter().map(sigmoid);
            return Piece::Attention {
                q,
                k,
                v: normal(rng_v, state[1]),
                decay: Tensor::new(decay, draw_decays(*gate, numbers, rng_decay)),
                beta: (*op != Attention::SimpleGla).then(|| Tensor::new([steps, heads], beta.collect())),
            };
        }
        // Take the random numbers step by step, so that they do not depend on how steps are split into pieces.
        let drawn = gaussian(rng_decay, steps * heads);
        let u = (0..heads).flat_map(|head| drawn[head..].iter().step_by(heads).copied());
        Piece::Ssm {
            u: Tensor::new([heads, steps], u.collect()),
            parameters: self.parameters.clone().expect("drawn at the start"),
        }
    }
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

fn draw_decays(gate: Gate, len: usize, rng: &mut ChaCha8Rng) -> Vec<f32> {
    match gate {
        Gate::None => vec![0.0; len],
        Gate::Mean(mean) => {
            let size = Exp1.sample_iter(rng).take(len);
            size.map(|size: f32| mean as f32 * size).collect()
        }
        Gate::Bound(bound) => {
            let x = gaussian(rng, len).into_iter();
            x.map(|x| bound as f32 * sigmoid(x)).collect()
        }
    }
}

fn draw_poles(poles: Poles, len: usize, rng: &mut ChaCha8Rng) -> Vec<f32> {
    let uniform = |rng: &mut ChaCha8Rng| -> Vec<f64> { StandardUniform.sample_iter(rng).take(len).collect() };
    match poles {
        Poles::Normal(size) => gaussian(rng, len).into_iter().map(|x| x * size as f32).collect(),
        Poles::Uniform(most) => uniform(rng).into_iter().map(|x| (x * most) as f32).collect(),
        Poles::BelowOne([least, most]) => {
            let below = |x: f64| (1.0 - least * (most / least).powf(x)) as f32;
            uniform(rng).into_iter().map(below).collect()
        }
    }
}
