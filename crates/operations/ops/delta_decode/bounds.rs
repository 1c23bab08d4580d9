//! Error bounds for the f32 arithmetic of a decode token of linear attention: first-order error terms, enlarged by one percent.

use rayon::prelude::*;
use safetensors::Dtype;

use super::Step;
use crate::ops::judge::{UNIT, bf16_error, number};

/// Absolute error of a product or an exponential whose result is subnormal. Where a kernel multiplies the result by a factor, the
/// bound multiplies this error by the same factor.
const LEAST: f64 = 1.0 / (1u128 << 126) as f64 / (1 << 22) as f64;

/// If β = sigmoid(x) is below this value, a kernel may return 0, because 1 + e⁻ˣ nearly overflows.
const LOST: f64 = 1.0 / (1u128 << 126) as f64;

/// Intermediate values and errors from which the bounds of o and of the state are computed.
pub(super) struct Bounds {
    step: Step,
    /// Decay factors α of every token with their relative errors: one per value head (GDN), or one per key channel of each value
    /// head (KDA).
    decays: Vec<[f64; 2]>,
    /// L2-normalized k, `[B, H, K]`.
    k: Vec<f64>,
    /// Error bounds for the update k dᵀ, `[B, HV, V]`: an element of the update errs by at most this number times |k_i|, where i
    /// is the key channel of the element.
    written: Vec<f64>,
    /// Error of o before rounding to bf16, `[B, HV, V]`; negative if o must be exact.
    o: Vec<f64>,
}

impl Bounds {
    pub fn new(owned: Step) -> Result<Self, String> {
        let step = &owned;
        let [q, k, g, beta] = step.prepared()?;
        let (values, channels, gates) = (step.values(), step.v.cols(), step.gates());
        let (keys, matrix) = (k.cols(), k.cols() * channels);
        let decays = (0..g.data.len()).into_par_iter();
        let decays: Vec<[f64; 2]> = decays.map(|at| step.decay(at, g.data[at])).collect();
        // A sum of K products, in any order, errs by at most K units of the sum of their magnitudes. A norm is the root of such a
        // sum: the root halves the relative error, and each of the few following operations adds one rounding.
        let norm = (keys as f64 / 2.0 + 8.0) * UNIT;
        let sum = (keys as f64 + 2.0) * UNIT;
        // For every value channel of a head: the error of k dᵀ per unit of |k|, and the error of o.
        let of_head = |head: usize| -> Vec<[f64; 2]> {
            let Ok(slot) = usize::try_from(step.indices[head / values]) else {
                return vec![[0.0, -1.0]; channels];
            };
            let (q, k) = (q.row(step.key_head(head)), k.row(step.key_head(head)));
            let (decays, beta) = (&decays[head * gates..][..gates], beta.data[head]);
            let first = (slot * values + head % values) * matrix;
            let overlap: f64 = step.scale() * k.iter().zip(q).map(|(k, q)| (k * q).abs()).sum::<f64>();
            let errors = (0..channels).map(|value| {
                let (mut read, mut k_error, mut q_error) = (0.0, 0.0, 0.0);
                for (key, (k, q)) in k.iter().zip(q).enumerate() {
                    let at = if step.vk {
                        value * keys + key
                    } else {
                        key * channels + value
                    };
                    let s = number(step.dtype, &step.state, first + at);
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
                // This bound holds for both ways to compute o: (α S)ᵀq + (k·q) d, or qᵀ times the updated state.
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

    /// Error bound of element `at` of the state pool, whose expected value is `want`. The bound is negative if no token uses the
    /// slot of the element: its bits must then stay unchanged.
    pub fn state(&self, at: usize, want: f64) -> f64 {
        let step = &self.step;
        let Some((head, [key, value])) = step.place(at) else {
            return -1.0;
        };
        let gates = step.gates();
        let [decay, relative] = self.decays[head * gates + key % gates];
        let before = number(step.dtype, &step.state, at).abs();
        // Three values are rounded: α S, k dᵀ, and their sum.
        let decayed = before * (decay * (relative + UNIT) + LEAST);
        let k = self.k[step.key_head(head) * step.q.cols() + key];
        let written = k.abs() * self.written[head * step.v.cols() + value];
        let error = 1.01 * (decayed + written + UNIT * want.abs() + LEAST);
        match step.dtype {
            Dtype::F32 => error,
            _ => bf16_error(want, error),
        }
    }

    /// Error bound of element `at` of o, whose expected value is `want`.
    pub fn o(&self, at: usize, want: f64) -> f64 {
        if self.o[at] < 0.0 {
            0.0
        } else {
            bf16_error(want, self.o[at])
        }
    }
}

impl Step {
    /// The decay exp(g) of gate `at`, where g is the log decay, and a bound of its relative error. An exponential, logarithm or
    /// quotient errs by at most 4 units of its value.
    fn decay(&self, at: usize, g: f64) -> [f64; 2] {
        let of_token = at % self.dt_bias.len();
        let x = f64::from(self.gate.data[at]) + f64::from(self.dt_bias[of_token]);
        let factor = f64::from(self.a_log[of_token / self.gates()]).exp();
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        let error = if !x.is_finite() {
            // An infinite gate adds no error: the log decay is exactly the limit of its formula, or the decay is 0.
            0.0
        } else if self.bound == 0.0 {
            // The slope of softplus is a sigmoid, by which the error of x is multiplied. The last term covers the other
            // roundings, including that of eˣ in 1 + eˣ.
            factor * sigmoid(x) * x.abs() + 16.0 * g.abs()
        } else {
            let y = factor * x;
            -self.bound * sigmoid(y) * (1.0 - sigmoid(y)) * y.abs() * 8.0 + 16.0 * g.abs()
        };
        [g.exp(), UNIT * (error + 4.0)]
    }
}
