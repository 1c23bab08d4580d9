//! Error bounds for f32 kernels.

use super::Prefill;
use crate::ops::Case;
use crate::ops::judge::UNIT;

/// Bounds of every element of o, and of the columns `[N, HV, V]` of the final states.
///
/// A step multiplies a column s of the state by exp(g) ≤ 1 and by 1 − β k kᵀ, and adds β v k. Neither factor makes a vector
/// longer, so existing errors do not grow. Let m ≥ |s| be tracked from step to step: the sums of K products, in the step
/// and in the two norms, and a few single operations err by at most (3 K + 40) units of m + |v|.
pub struct Bounds {
    pub o: Vec<f64>,
    pub state: Vec<f64>,
}

impl Bounds {
    pub fn new(prefill: &Prefill, case: &Case) -> Self {
        let [n, heads, k, v, decays] = case.sizes(["N", "HV", "K", "V", "G"]);
        let vk = case.dim("in_vk") == 1;
        let unit = (3 * k + 40) as f64 * UNIT;
        let scale = f64::from(prefill.scale());
        let mut bounds = Self {
            o: vec![0.0; prefill.v.data.len()],
            state: vec![0.0; n * heads * v],
        };
        for (column, state) in bounds.state.iter_mut().enumerate() {
            let (sequence, head, channel) = (column / heads / v, column / v % heads, column % v);
            let matrix = &prefill.initial.data[(sequence * heads + head) * k * v..][..k * v];
            let element = |key: usize| matrix[if vk { channel * k + key } else { key * v + channel }];
            let mut most = (0..k).map(|key| f64::from(element(key)).powi(2)).sum::<f64>().sqrt();
            let mut error = 0.0;
            for token in prefill.starts[sequence]..prefill.starts[sequence + 1] {
                let row = token * heads + head;
                let slowest = prefill.g.data[row * decays..][..decays]
                    .iter()
                    .fold(f32::MIN, |a, b| a.max(*b));
                let value = f64::from(prefill.v.data[row * v + channel]).abs();
                let decay = f64::from(slowest).exp();
                // Subnormal numbers have no relative error bound, so an absolute one is added.
                error = decay * error + unit * (decay * most + value) + 1e-37 * (1.0 + most);
                most = decay * most + f64::from(prefill.beta.data[row]) * value;
                bounds.o[row * v + channel] = 1.01 * scale * (error + unit * most) + 1e-37;
            }
            *state = 1.01 * error;
        }
        bounds
    }
}
