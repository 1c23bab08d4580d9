//! Router: the cores that exchange x, and the bank of each.

use super::config::{Config, DecisionRule, RouterForm};
use super::context::Context;
use super::lanes::BANKS;
use super::sites::*;
use crate::ops::rmsnorm::inverse_rms;
use crate::ops::softmax_router::softmax;
use crate::real::vectorized;
use crate::{Real, Tensor};

/// Decides on an exchange by five logits of x, the gate's and those of the four banks.
#[derive(Clone, Debug)]
pub enum Router<T> {
    /// One dot product with x for each logit.
    Folded {
        /// `[5, d_model]`.
        weight: Tensor<T>,
        /// Added to each logit.
        bias: [T; 1 + BANKS],
    },
    /// As the definition has it.
    Unfolded {
        /// `[d_model]`.
        norm: Vec<T>,
        /// W_r `[d_router, d_model]`.
        projection: Tensor<T>,
        /// `[5, d_router]`.
        weight: Tensor<T>,
        /// Added to each logit.
        bias: [T; 1 + BANKS],
    },
}

impl<T: Real> Router<T> {
    /// The same in one vector for each logit, weight_i = g ⊙ Σ_m w_im W_r,m, made in f64 and rounded once.
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

    /// x `[rows, d_model]` → logits `[rows, 5]`.
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

    /// Decides for every row of x.
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

/// The index of the largest, the first of equals. NaN is larger than nothing.
fn first_largest<T: Real>(x: &[T]) -> usize {
    let larger = |best: usize, at: usize| if x[at] > x[best] { at } else { best };
    (1..x.len()).fold(0, larger)
}

/// The softmax of every column.
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

/// Decisions of an event, by row.
#[derive(Clone, Debug, PartialEq)]
pub struct Decisions<T> {
    /// True if x was exchanged.
    pub gate: Vec<bool>,
    /// The lane selected, where the gate is closed too.
    pub bank: Vec<u8>,
    /// `[rows, 5]`, of the gate and of the banks.
    pub logits: Tensor<T>,
}

impl<T: Real> Decisions<T> {
    /// gate · 4 + bank.
    pub fn code(&self, row: usize) -> u8 {
        u8::from(self.gate[row]) << 2 | self.bank[row]
    }

    /// By how much the gate's logit would have to change for another decision: |l|.
    pub fn gate_margin(&self, row: usize) -> f64 {
        self.logits.row(row)[0].into().abs()
    }

    /// By how much logits of banks would have to change against each other: the lead of the largest over the next.
    pub fn bank_margin(&self, row: usize) -> f64 {
        let q = &self.logits.row(row)[1..];
        let mut q: [f64; BANKS] = std::array::from_fn(|bank| q[bank].into());
        q.sort_by(f64::total_cmp);
        q[BANKS - 1] - q[BANKS - 2]
    }
}
