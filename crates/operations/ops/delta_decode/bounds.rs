//! Error bounds of one token's outputs in f32, to first order plus one percent.

use rayon::prelude::*;

use super::Step;
use crate::ops::data::element;
use crate::ops::judge::{UNIT, bf16_error};

/// Absolute error of products and exponentials below the normal numbers, per unit of the factor that they multiply.
const LEAST: f64 = 1.0 / (1u128 << 126) as f64 / (1 << 22) as f64;

/// A sigmoid β below this may come out as 0, because its reciprocal is nearly infinite.
const LOST: f64 = 1.0 / (1u128 << 126) as f64;

/// The quantities from which the bounds are computed.
pub(super) struct Bounds {
    step: Step,
    /// The decays α of every value head of every token, with their relative errors: one per head, or K.
    decays: Vec<[f64; 2]>,
    /// k normalised, `[B, H, K]`.
    k: Vec<f64>,
    /// The error of k dᵀ per unit of k, `[B, HV, V]`.
    written: Vec<f64>,
    /// The error of o before it is rounded, `[B, HV, V]`; negative if it must be exact.
    o: Vec<f64>,
}

impl Bounds {
    pub fn new(owned: Step) -> Result<Self, String> {
        let step = &owned;
        let [q, k, g, beta] = step.prepared()?;
        let (values, channels, gates) = (step.values(), step.v.cols(), step.gates());
        let (keys, matrix) = (k.cols(), k.cols() * channels * step.size);
        let decays = (0..g.data.len()).into_par_iter();
        let decays: Vec<[f64; 2]> = decays.map(|at| step.decay(at, g.data[at])).collect();
        // A sum of K products in any order errs by at most K units of the sum of their magnitudes. A norm is a sum of
        // squares, the root halves its error, and a few operations follow that round once each.
        let norm = (keys as f64 / 2.0 + 8.0) * UNIT;
        let sum = (keys as f64 + 2.0) * UNIT;
        // For every value channel of a head, the error of k dᵀ per unit of k, and the error of o.
        let of_head = |head: usize| -> Vec<[f64; 2]> {
            let Ok(slot) = usize::try_from(step.indices[head / values]) else {
                return vec![[0.0, -1.0]; channels];
            };
            let (q, k) = (q.row(step.key_head(head)), k.row(step.key_head(head)));
            let (decays, beta) = (&decays[head * gates..][..gates], beta.data[head]);
            let state = &step.state[(slot * values + head % values) * matrix..][..matrix];
            let overlap: f64 = step.scale() * k.iter().zip(q).map(|(k, q)| (k * q).abs()).sum::<f64>();
            let errors = (0..channels).map(|value| {
                let (mut read, mut k_error, mut q_error) = (0.0, 0.0, 0.0);
                for (key, (k, q)) in k.iter().zip(q).enumerate() {
                    let at = if step.vk {
                        value * keys + key
                    } else {
                        key * channels + value
                    };
                    let s = element(state, step.size, at);
                    let [decay, relative] = decays[key % gates];
                    read += decay * s * k;
                    let error = s.abs() * (decay * (relative + norm + sum + 2.0 * UNIT) + LEAST) + LEAST;
                    k_error += error * k.abs();
                    q_error += error * q.abs();
                }
                let v = f64::from(step.v.row(head)[value]);
                let d = beta * (v - read);
                let off = k_error + UNIT * (v.abs() + read.abs());
                let d_error = beta * off + 10.0 * UNIT * d.abs() + LOST * (v - read).abs();
                let written = d_error + (norm + 2.0 * UNIT) * d.abs();
                // This bound holds both for (α S)ᵀq + (k·q) d and for the sum over the updated state.
                let o = step.scale() * (q_error * (1.0 + UNIT))
                    + overlap * (d_error + (2.0 * norm + sum + 8.0 * UNIT) * d.abs());
                [written, 1.01 * o]
            });
            errors.collect()
        };
        let errors = (0..step.v.rows()).into_par_iter().flat_map_iter(of_head);
        let (written, o) = errors.map(|[written, o]| (written, o)).unzip();
        Ok(Self {
            decays,
            k: k.data,
            written,
            o,
            step: owned,
        })
    }

    /// The bound of element `at` of the pool, whose expected value is `want`. It is negative if no token uses the element's
    /// slot, because its bits must then be unchanged.
    pub fn state(&self, at: usize, want: f64) -> f64 {
        let step = &self.step;
        let Some((head, [key, value])) = step.place(at) else {
            return -1.0;
        };
        let gates = step.gates();
        let [decay, relative] = self.decays[head * gates + key % gates];
        let before = element(&step.state, step.size, at).abs();
        // α S, k dᵀ and their sum are rounded.
        let decayed = before * (decay * (relative + UNIT) + LEAST);
        let k = self.k[step.key_head(head) * step.q.cols() + key];
        let written = k.abs() * self.written[head * step.v.cols() + value];
        let error = 1.01 * (decayed + written + UNIT * want.abs() + LEAST);
        if step.size == 4 { error } else { bf16_error(want, error) }
    }

    /// The bound of element `at` of o, whose expected value is `want`.
    pub fn o(&self, at: usize, want: f64) -> f64 {
        if self.o[at] < 0.0 {
            0.0
        } else {
            bf16_error(want, self.o[at])
        }
    }
}

impl Step {
    /// exp(g) of gate `at`, whose log decay is g, and its relative error bound. An exponential, logarithm or quotient errs
    /// by at most 4 units of its value.
    fn decay(&self, at: usize, g: f64) -> [f64; 2] {
        let of_token = at % self.dt_bias.len();
        let x = f64::from(self.gate.data[at]) + f64::from(self.dt_bias[of_token]);
        let factor = f64::from(self.a_log[of_token / self.gates()]).exp();
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        let error = if !x.is_finite() {
            // The gate is at its limit, which is exact, or the decay is 0.
            0.0
        } else if self.bound == 0.0 {
            // The slope of softplus is a sigmoid; 1 + eˣ inherits the error of eˣ.
            factor * sigmoid(x) * x.abs() + 16.0 * g.abs()
        } else {
            let y = factor * x;
            -self.bound * sigmoid(y) * (1.0 - sigmoid(y)) * y.abs() * 8.0 + 16.0 * g.abs()
        };
        [g.exp(), UNIT * (error + 4.0)]
    }
}
