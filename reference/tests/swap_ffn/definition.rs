//! The definition, loop by loop and core by core, with faults that can be put into it.

use std::collections::HashMap;

use reference::Tensor;
use reference::paths::swap_ffn::{BANKS, Config, LaneRule, State};

/// What may be wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    None,
    /// The other rule that keeps permutations.
    OtherLaneRule,
    /// x is read from a bank, and not stored there.
    NoWriteBack,
    /// Lanes are those of the token's beginning throughout.
    StaleMap,
    /// The gate opens above 2^-7, as where a sigmoid is stored in bf16.
    Threshold,
    /// Of equal logits the last.
    LastOfEquals,
    /// The banks are chosen on what the gate let in.
    RouterAfterExchange,
    /// The exchange is with the lane's number in the place of its bank.
    LogicalBank,
    /// The norm's weight of the FFN at the router.
    OtherNorm,
    /// silu on the other projection.
    SiluOfUp,
    /// The pooling weights are a softmax over the ways.
    SoftmaxOfRows,
}

pub const FAULTS: [Fault; 10] = [
    Fault::OtherLaneRule,
    Fault::NoWriteBack,
    Fault::StaleMap,
    Fault::Threshold,
    Fault::LastOfEquals,
    Fault::RouterAfterExchange,
    Fault::LogicalBank,
    Fault::OtherNorm,
    Fault::SiluOfUp,
    Fault::SoftmaxOfRows,
];

pub struct Definition<'a> {
    pub config: &'a Config,
    pub weights: &'a HashMap<String, Tensor<f64>>,
    pub fault: Fault,
}

/// delta `[B, d_model]`, x of every core before the collapse, and gate · 4 + bank by event and core.
pub struct Found {
    pub delta: Tensor<f64>,
    pub x: Vec<Vec<f64>>,
    pub codes: Vec<Vec<u8>>,
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

impl Definition<'_> {
    fn of(&self, name: &str) -> &Tensor<f64> {
        &self.weights[name]
    }

    fn normed(&self, x: &[f64], weight: &str) -> Vec<f64> {
        let rms = (dot(x, x) / x.len() as f64 + self.config.eps).sqrt();
        x.iter().zip(&self.of(weight).data).map(|(x, g)| x / rms * g).collect()
    }

    fn product(&self, weight: &str, x: &[f64]) -> Vec<f64> {
        let weight = self.of(weight);
        (0..weight.rows()).map(|row| dot(weight.row(row), x)).collect()
    }

    /// The logits of the gate and of the banks.
    pub fn logits(&self, x: &[f64]) -> [f64; 1 + BANKS] {
        let norm = if self.fault == Fault::OtherNorm {
            "norm"
        } else {
            "router_norm"
        };
        let z = self.product("router_w", &self.normed(x, norm));
        let bank = |bank: usize| {
            let column: Vec<f64> = (0..z.len()).map(|m| self.of("bank_w").row(m)[bank]).collect();
            dot(&column, &z) + self.of("bank_b").data[bank]
        };
        let gate = dot(&self.of("router_swap_w").data, &z) + self.of("router_swap_b").data[0];
        [gate, bank(0), bank(1), bank(2), bank(3)]
    }

    fn film(&self, core: usize, what: &str) -> Vec<f64> {
        let affine = self.product(what, self.of("core_embed").row(core));
        let bias = &self.of(&format!("{what}_bias")).data;
        affine.iter().zip(bias).map(|(y, b)| y + b).collect()
    }

    pub fn ffn(&self, x: &[f64]) -> Vec<f64> {
        let n = self.normed(x, "norm");
        let (gate, up) = (self.product("w1", &n), self.product("w3", &n));
        let hidden = |(&gate, &up): (&f64, &f64)| match self.fault {
            Fault::SiluOfUp => gate * silu(up),
            _ => silu(gate) * up,
        };
        let down = self.product("w2", &gate.iter().zip(&up).map(hidden).collect::<Vec<_>>());
        let kept = if self.config.residual { 1.0 } else { 0.0 };
        x.iter().zip(down).map(|(x, down)| kept * x + down).collect()
    }

    /// gate · 4 + bank.
    fn decide(&self, x: &[f64]) -> u8 {
        let logits = self.logits(x);
        let mut bank = 0;
        for other in 1..BANKS {
            let (a, b) = (logits[1 + other], logits[1 + bank]);
            if a > b || (self.fault == Fault::LastOfEquals && a == b) {
                bank = other;
            }
        }
        let threshold = if self.fault == Fault::Threshold {
            1.0 / 128.0
        } else {
            0.0
        };
        u8::from(logits[0] > threshold) * 4 + bank as u8
    }

    pub fn token(&self, x_in: &Tensor<f64>, state: &mut State<f64>) -> Found {
        let Config {
            core_count: cores,
            d_model: width,
            collapse_k: ways,
            ..
        } = *self.config;
        let mut found = Found {
            delta: Tensor::full([x_in.rows(), width], 0.0),
            x: Vec::new(),
            codes: vec![Vec::new(); self.config.n_events],
        };
        for row in 0..x_in.rows() * cores {
            let (scale, shift) = (
                self.film(row % cores, "film_scale"),
                self.film(row % cores, "film_shift"),
            );
            let x_in = x_in.row(row / cores);
            let mut x: Vec<f64> = (0..width).map(|d| x_in[d] * (1.0 + scale[d]) + shift[d]).collect();
            let first_map = state.map[row];
            for event in 0..self.config.n_events {
                self.exchange(&mut x, state, row, first_map, &mut found.codes[event]);
                for _ in 0..self.config.k_ffn {
                    x = self.ffn(&x);
                }
            }
            found.x.push(x);
        }
        // Core by core: the basis is multiplied by every x, and the results are pooled.
        let logits: Vec<Vec<f64>> = (0..cores).map(|core| self.film(core, "film_alpha")).collect();
        let alpha = |core: usize, way: usize| {
            let sum: f64 = match self.fault {
                Fault::SoftmaxOfRows => logits[core].iter().map(|x| x.exp()).sum(),
                _ => logits.iter().map(|logits| logits[way].exp()).sum(),
            };
            logits[core][way].exp() / sum
        };
        let (basis, rank) = (self.of("collapse_basis"), self.config.collapse_r);
        for batch in 0..x_in.rows() {
            let mut z = vec![0.0; rank];
            for core in 0..cores {
                for way in 0..ways {
                    for (r, z) in z.iter_mut().enumerate() {
                        *z += alpha(core, way) * dot(basis.row(way * rank + r), &found.x[batch * cores + core]);
                    }
                }
            }
            if self.config.collapse_silu {
                z.iter_mut().for_each(|z| *z = silu(*z));
            }
            found
                .delta
                .row_mut(batch)
                .copy_from_slice(&self.product("collapse_decoder", &z));
        }
        found
    }

    fn exchange(&self, x: &mut [f64], state: &mut State<f64>, row: usize, first_map: u8, codes: &mut Vec<u8>) {
        let mut code = self.decide(x);
        let map = if self.fault == Fault::StaleMap {
            first_map
        } else {
            state.map[row]
        };
        let lanes = [map & 3, map >> 2 & 3, map >> 4 & 3, map >> 6];
        let read = |code: u8| match self.fault {
            Fault::LogicalBank => usize::from(code & 3),
            _ => usize::from(lanes[usize::from(code & 3)]),
        };
        if self.fault == Fault::RouterAfterExchange && code & 4 != 0 {
            code = 4 | self.decide(state.ram.row(row * BANKS + read(code))) & 3;
        }
        codes.push(code);
        if code & 4 == 0 {
            return;
        }
        let selected = usize::from(code & 3);
        let mut next = lanes;
        let moves_to_front = match self.config.lane_rule {
            LaneRule::Literal => None,
            LaneRule::MoveToFront => Some(self.fault != Fault::OtherLaneRule),
            LaneRule::Transposition => Some(self.fault == Fault::OtherLaneRule),
        };
        match moves_to_front {
            Some(true) => (1..=selected).for_each(|lane| next[lane] = lanes[lane - 1]),
            Some(false) => next[selected] = lanes[0],
            None => {}
        }
        next[0] = lanes[selected];
        state.map[row] = next.iter().rev().fold(0, |map, lane| map * 4 + lane);
        let bank = state.ram.row_mut(row * BANKS + read(code));
        for (x, bank) in x.iter_mut().zip(bank) {
            let before = *x;
            *x = *bank;
            if self.fault != Fault::NoWriteBack {
                *bank = before;
            }
        }
    }
}
