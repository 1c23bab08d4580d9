//! Router: decides for each core whether to exchange its vector x with a vector in memory, and with which of the core's four
//! banks.

use super::config::{Config, DecisionRule, RouterForm};
use super::context::Context;
use super::lanes::BANKS;
use super::sites::*;
use crate::ops::rmsnorm::inverse_rms;
use crate::ops::softmax_router::softmax;
use crate::real::vectorized;
use crate::{Real, Tensor};

/// Router with five logits of x: one for the gate and one for each of the four banks.
#[derive(Clone, Debug)]
pub enum Router<T> {
    /// One dot product with x per logit.
    Folded {
        /// Folded weights, `[5, d_model]`.
        weight: Tensor<T>,
        /// Bias of each logit.
        bias: [T; 1 + BANKS],
    },
    /// Form in the definition of Swap-FFN: norm, projection W_r, then logits.
    Unfolded {
        /// Weights of the norm, `[d_model]`.
        norm: Vec<T>,
        /// Projection W_r `[d_router, d_model]`.
        projection: Tensor<T>,
        /// Weights of the logits, `[5, d_router]`.
        weight: Tensor<T>,
        /// Bias of each logit.
        bias: [T; 1 + BANKS],
    },
}

impl<T: Real> Router<T> {
    /// Converts the router to the folded form, weight_i = g ⊙ Σ_m w_im W_r,m with the norm's weights g, computed in f64 and
    /// rounded once.
    pub fn folded(self) -> Self {
        let Self::Unfolded {
            norm,
            projection,
            weight,
            bias,
        } = self
        else {
            return self;
        };
        let width = norm.len();
        let mut folded = vec![0.0f64; weight.rows() * width];
        let rows = weight.data.chunks_exact(weight.cols());
        for (to, factors) in folded.chunks_exact_mut(width).zip(rows) {
            for (factor, row) in factors.iter().zip(projection.data.chunks_exact(width)) {
                let factor: f64 = (*factor).into();
                to.iter_mut().zip(row).for_each(|(to, &w)| *to += factor * w.into());
            }
            to.iter_mut().zip(&norm).for_each(|(to, &g)| *to *= g.into());
        }
        let folded = folded.into_iter().map(T::from_f64).collect();
        Self::Folded {
            weight: Tensor::new([1 + BANKS, width], folded),
            bias,
        }
    }

    /// Returns the form of the logits.
    pub fn form(&self) -> RouterForm {
        match self {
            Self::Folded { .. } => RouterForm::Folded,
            Self::Unfolded { .. } => RouterForm::Unfolded,
        }
    }

    /// Maps x `[rows, d_model]` to logits `[rows, 5]`.
    fn logits(&self, x: &Tensor<T>, eps: T, cx: &mut Context<'_, T>) -> Tensor<T> {
        let mut n = x.clone();
        cx.pass(ROUTER_INPUT, &mut n);
        let (mut logits, bias) = match self {
            Self::Folded { weight, bias } => {
                let mut logits = weight.apply(&n);
                let rows = logits.data.chunks_exact_mut(1 + BANKS);
                for (logits, x) in rows.zip(n.data.chunks_exact(n.cols())) {
                    let scale = vectorized!(inverse_rms(x, eps));
                    logits.iter_mut().for_each(|logit| *logit *= scale);
                }
                (logits, bias)
            }
            Self::Unfolded {
                norm,
                projection,
                weight,
                bias,
            } => {
                cx.rmsnorm(&mut n, Some(norm), eps);
                cx.pass(ROUTER_NORMED, &mut n);
                let mut z = projection.apply(&n);
                cx.pass(ROUTER_Z, &mut z);
                (weight.apply(&z), bias)
            }
        };
        for logits in logits.data.chunks_exact_mut(1 + BANKS) {
            logits.iter_mut().zip(bias).for_each(|(logit, &bias)| *logit += bias);
        }
        cx.pass(LOGITS, &mut logits);
        logits
    }

    /// Decides for every row of x whether to exchange the row (gate), and with which bank.
    pub(super) fn decide(
        &self,
        x: &Tensor<T>,
        config: &Config,
        cx: &mut Context<'_, T>,
    ) -> Result<Decisions<T>, String> {
        let logits = self.logits(x, T::from_f64(config.eps), cx);
        let (scores, threshold) = match config.decision {
            DecisionRule::Logits => (logits.clone(), T::ZERO),
            DecisionRule::Probabilities => {
                let mut probabilities = logits.clone();
                for row in probabilities.data.chunks_exact_mut(1 + BANKS) {
                    row[0] = row[0].sigmoid();
                    softmax(&mut row[1..]);
                }
                cx.pass(PROBABILITIES, &mut probabilities);
                (probabilities, T::from_f64(0.5))
            }
        };
        let rows = || scores.data.chunks_exact(1 + BANKS);
        let gates = rows().map(|row| i32::from(row[0] > threshold)).collect();
        let gate_scores = rows().flat_map(|row| [threshold, row[0]]).collect();
        let gate = cx.choose(GATE, Tensor::new([x.rows(), 2], gate_scores), gates)?;
        let banks = rows().map(|row| first_largest(&row[1..]) as i32).collect();
        let bank_scores = rows().flat_map(|row| &row[1..]).copied().collect();
        let bank = cx.choose(BANK, Tensor::new([x.rows(), BANKS], bank_scores), banks)?;
        let gate = gate.into_iter().map(|gate| gate == 1).collect();
        Ok(Decisions { gate, bank, logits })
    }
}

/// Returns the index of the largest element; the lowest index if several are equal. A NaN is selected if its index is 0, and
/// never if its index is larger.
fn first_largest<T: Real>(x: &[T]) -> usize {
    let larger = |best: usize, at: usize| if x[at] > x[best] { at } else { best };
    (1..x.len()).fold(0, larger)
}

/// Computes the softmax of every column in place.
pub(super) fn softmax_of_columns<T: Real>(x: &mut Tensor<T>) {
    let (rows, cols) = (x.rows(), x.cols());
    for col in 0..cols {
        let mut column: Vec<T> = (0..rows).map(|row| x.data[row * cols + col]).collect();
        softmax(&mut column);
        for (row, value) in column.into_iter().enumerate() {
            x.data[row * cols + col] = value;
        }
    }
}

/// Decisions of the router in one event, for each row of x.
#[derive(Clone, Debug, PartialEq)]
pub struct Decisions<T> {
    /// True if x was exchanged.
    pub gate: Vec<bool>,
    /// Index of the selected lane; the lane holds the number of the bank. Also given for rows whose gate is closed.
    pub bank: Vec<u8>,
    /// Logits of the gate and of the banks, `[rows, 5]`.
    pub logits: Tensor<T>,
}

impl<T: Real> Decisions<T> {
    /// Returns the decision for a row as one number: 4 · gate + index of the selected lane.
    pub fn code(&self, row: usize) -> u8 {
        u8::from(self.gate[row]) << 2 | self.bank[row]
    }

    /// Returns the smallest change of the gate's logit that changes the decision: |l|.
    pub fn gate_margin(&self, row: usize) -> f64 {
        self.logits.row(row)[0].into().abs()
    }

    /// Returns the margin of the decision, the largest minus the second largest bank logit. To select another bank, an error must
    /// change the difference of two logits by at least the margin.
    pub fn bank_margin(&self, row: usize) -> f64 {
        let q = &self.logits.row(row)[1..];
        let mut q: [f64; BANKS] = std::array::from_fn(|bank| q[bank].into());
        q.sort_by(f64::total_cmp);
        q[BANKS - 1] - q[BANKS - 2]
    }
}
