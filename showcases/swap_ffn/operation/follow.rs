//! Runs the reference with the decisions of a kernel's router (exchange x with a bank or not, and which bank), and checks that
//! the kernel's values are close to those of the reference.
//!
//! A kernel that rounds operands has random errors, so the reference tracks the variance of the error of every element of x (the
//! vectors of the cores). Rounding an operand n adds at most (u·n)²/3, where u·n is half the spacing of the format at n. Errors
//! are taken as independent. A product W·x adds the variances, weighted by W²; the gated product weights them by the squares of
//! its derivatives. No element may deviate by more than eight standard deviations. No row may deviate by more than two standard
//! deviations in root mean square: the errors of its elements average out. If nothing was rounded, variances are 0, and all
//! values must be equal bit for bit. Tensor cores sum products of E4M3 with an error of about 2^-13 of the largest product, which
//! is negligible compared to the rounding of E4M3 operands.
//!
//! A decision must equal the reference's if it is clear: the difference of the logits (for the gate, between its logit and 0)
//! exceeds six standard deviations of their errors plus the error of f32 arithmetic.
//!
//! Cores interact only at the end, when they are pooled and decoded to delta (the result of the token). So in long runs the
//! reference computes only some cores. For all cores, the maps (order of a core's banks) must follow from the decisions, and
//! banks that no decision selects must be unchanged. delta is compared with the pooling and decoding, by the reference, of the
//! kernel's own x.

use std::sync::OnceLock;

use rayon::prelude::*;
use reference::paths::swap_ffn::{BANKS, Config, Film, Model, Router, State, decode};
use reference::{Choice, Numerics, Plain, Site, Tensor};

use super::Token;
use ulplab_operations::ops::data::round_to_bf16;
use ulplab_operations::ops::judge::UNIT;

/// Half an ulp of bf16, relative to the number.
pub(super) const BF16: f64 = 1.0 / 256.0;
/// Half an ulp of E4M3, relative to the number; and half of the smallest E4M3 number, relative to the scale.
const E4M3: [f64; 2] = [1.0 / 16.0, 1.0 / 1024.0];

/// Number of standard deviations by which logits may deviate.
const LOGITS: f64 = 6.0;

/// Number of cores of a token whose values the reference computes, if there are more than [`STEPS`] FFN steps.
const FEW: usize = 48;
/// Largest number of FFN steps, over all tokens, for which the reference computes the values of all cores.
const STEPS: usize = 6;

pub(super) struct Follower {
    pub(super) token: Token,
    /// Indices of the followed cores.
    cores: Vec<usize>,
    model: OnceLock<Model<f32>>,
    squares: OnceLock<[Tensor<f32>; 4]>,
}

/// Hooks into the reference that replace its decisions by given ones, and record the intermediate values of the FFN.
#[derive(Default)]
struct Forced {
    /// Decision of each row, as the code gate · 4 + bank; a row without a code has a closed gate.
    codes: Vec<u8>,
    n: Vec<f32>,
    gate: Vec<f32>,
    up: Vec<f32>,
    h: Vec<f32>,
}

impl Numerics<f32> for Forced {
    fn site(&mut self, site: &Site, tensor: &mut Tensor<f32>) {
        match site.name {
            "ram" => round_to_bf16(&mut tensor.data),
            "ffn.n" => self.n.clone_from(&tensor.data),
            "ffn.gate" => self.gate.clone_from(&tensor.data),
            "ffn.up" => self.up.clone_from(&tensor.data),
            "ffn.h" => self.h.clone_from(&tensor.data),
            _ => {}
        }
    }

    fn choice(&mut self, site: &Site, choice: &mut Choice<f32>) {
        let code = |row: usize| self.codes.get(row).copied().unwrap_or(0);
        for (row, index) in choice.indices.iter_mut().enumerate() {
            *index = i32::from(if site.name == "router.gate" {
                code(row) >> 2
            } else {
                code(row) & 3
            });
        }
    }
}

/// x and the memory banks of the cores that the reference computes, with the variances of their errors.
pub(super) struct Followed {
    pub x: Tensor<f32>,
    pub x_variance: Vec<f32>,
    pub state: State<f32>,
    pub ram_variance: Vec<f32>,
    /// Expected decisions of every event as codes: the kernel's decision if it lies within the errors of the logits, else the
    /// reference's.
    pub decisions: Vec<u8>,
}

impl Follower {
    pub fn new(token: Token) -> Self {
        let all = token.config.core_count;
        let cores = match token.batch * token.events * token.config.k_ffn > STEPS && all > FEW {
            // The stride 37 makes the selected cores cover all positions within the tiles of kernels.
            true => (0..FEW).map(|i| i * 37 % all).collect(),
            false => (0..all).collect(),
        };
        Self {
            token,
            cores,
            model: OnceLock::new(),
            squares: OnceLock::new(),
        }
    }

    /// Returns the reference model restricted to the selected cores, with one FFN step per event.
    pub(super) fn model(&self) -> &Model<f32> {
        self.model.get_or_init(|| {
            let token = &self.token;
            let some = |x: &Tensor<f32>| {
                let rows = self.cores.iter().flat_map(|&core| x.row(core)).copied().collect();
                Tensor::new([self.cores.len(), x.cols()], rows)
            };
            let film = Film {
                scale: some(&token.film.scale),
                shift: some(&token.film.shift),
                alpha: some(&token.film.alpha),
            };
            let config = Config {
                core_count: self.cores.len(),
                k_ffn: 1,
                ..token.config
            };
            let model = Model::new(config, film, token.router(), token.ffn(), token.collapse.clone());
            model.unwrap_or_else(|why| unreachable!("the reference refuses: {why}"))
        })
    }

    /// Returns the indices, among all B · C rows, of the rows whose cores the reference computes.
    pub(super) fn rows(&self) -> Vec<usize> {
        let cores = self.token.config.core_count;
        let of = |token: usize| self.cores.iter().map(move |core| token * cores + core);
        (0..self.token.batch).flat_map(of).collect()
    }

    /// Returns x, banks and maps of the selected cores before the first event, with the variances of errors.
    fn start(&self) -> Result<Followed, String> {
        let token = &self.token;
        let width = token.config.d_model;
        let own_rows = self.rows();
        let banks = own_rows
            .iter()
            .flat_map(|row| &token.ram.data[row * BANKS * width..][..BANKS * width]);
        let ram = Tensor::new([token.batch, self.cores.len(), BANKS, width], banks.copied().collect());
        let ram_variance = vec![0.0; ram.data.len()];
        let mut state = State::new(self.model().config(), ram)?;
        state.map = own_rows.iter().map(|row| token.map[*row]).collect();
        let (x, x_variance) = if token.begin {
            let x = self.model().spread(&token.x_in, &state, &mut Plain)?;
            // A kernel may round both the product and the sum, or only the sum (fused multiply-add).
            let deviation = |x: &f32| (UNIT * (f64::from(x.abs()) + 1.0)).powi(2) as f32;
            let variance = x.data.iter().map(deviation).collect();
            (x, variance)
        } else {
            let rows = own_rows.iter().flat_map(|row| token.x.row(*row)).copied().collect();
            let x = Tensor::new([own_rows.len(), width], rows);
            let variance = vec![0.0; x.data.len()];
            (x, variance)
        };
        Ok(Followed {
            x,
            x_variance,
            state,
            ram_variance,
            decisions: Vec::new(),
        })
    }

    pub(super) fn follow(&self, codes: &[u8]) -> Result<Followed, String> {
        let token = &self.token;
        let (width, rows) = (token.config.d_model, self.rows());
        let mut followed = self.start()?;
        for event in 0..token.events {
            let mut forced = Forced {
                codes: rows.iter().map(|row| codes[event * token.rows() + row]).collect(),
                ..Forced::default()
            };
            let before = followed.x.clone();
            let maps = followed.state.map.clone();
            let Followed { x, state, .. } = &mut followed;
            let decisions = self.model().exchange(x, state, event, &mut forced)?;
            let admitted = self.admitted(&before, &followed.x_variance, &decisions.logits, &forced.codes);
            followed.decisions.extend(admitted);
            let Followed {
                x_variance,
                ram_variance,
                state,
                ..
            } = &mut followed;
            for (row, code) in forced.codes.iter().enumerate().filter(|(_, code)| **code > 3) {
                let bank = usize::from(decode(maps[row])[usize::from(code & 3)]);
                let at = (row * BANKS + bank) * width;
                let (own, there) = (
                    &mut x_variance[row * width..][..width],
                    &mut ram_variance[at..][..width],
                );
                own.swap_with_slice(there);
                for (variance, x) in there.iter_mut().zip(&state.ram.data[at..]) {
                    if *variance > 0.0 {
                        *variance += (BF16 * f64::from(*x)).powi(2) as f32 / 3.0;
                    }
                }
            }
            for _ in 0..token.config.k_ffn {
                self.step(&mut followed, event)?;
            }
        }
        Ok(followed)
    }

    /// Runs one FFN step of the reference, and propagates the variances of errors through this step.
    fn step(&self, followed: &mut Followed, event: usize) -> Result<(), String> {
        let token = &self.token;
        let width = token.config.d_model;
        let [w1, w3, both, w2] = self.squares.get_or_init(|| squares(token));
        let mut forced = Forced::default();
        let before = followed.x.clone();
        let Followed { x, state, .. } = followed;
        self.model().event(x, state, event, &mut forced)?;
        let mut n = vec![0f32; before.data.len()];
        let rows = n.par_chunks_mut(width).zip(before.data.par_chunks(width));
        let rows = rows.zip(followed.x_variance.par_chunks(width).zip(forced.n.par_chunks(width)));
        rows.for_each(|((to, x), (variance, n))| {
            let norm = inverse_norm(x, token.config.eps);
            let rounding = self.rounding(n);
            for (k, to) in to.iter_mut().enumerate() {
                let factor = norm * f64::from(token.ffn_g[k]);
                *to = (f64::from(variance[k]) * factor * factor + rounding(n[k])) as f32;
            }
        });
        let n = Tensor::new(before.shape.clone(), n);
        let [gate, up, both] = [w1, w3, both].map(|weight| weight.apply(&n).data);
        let inner = token.config.d_ff;
        let mut h = vec![0f32; gate.len()];
        h.par_chunks_mut(inner).enumerate().for_each(|(row, to)| {
            let of = |values: &[f32], at: usize| f64::from(values[row * inner + at]);
            let rounding = self.rounding(&forced.h[row * inner..][..inner]);
            for (at, to) in to.iter_mut().enumerate() {
                let (x, y) = (of(&forced.gate, at), of(&forced.up, at));
                let sigmoid = 1.0 / (1.0 + (-x).exp());
                let (by_gate, by_up) = (sigmoid * (1.0 + x * (1.0 - sigmoid)) * y, x * sigmoid);
                let carried = by_gate * by_gate * of(&gate, at)
                    + by_up * by_up * of(&up, at)
                    + 2.0 * by_gate * by_up * of(&both, at);
                *to = (carried.max(0.0) + rounding(forced.h[row * inner + at])) as f32;
            }
        });
        let h = Tensor::new([before.rows(), inner], h);
        let down = w2.apply(&h).data;
        for (variance, down) in followed.x_variance.iter_mut().zip(down) {
            *variance = match token.config.residual {
                // The errors of x and of the down product may be correlated, so standard deviations are added instead of
                // variances.
                true => (variance.sqrt() + down.sqrt()).powi(2),
                false => down,
            };
        }
        Ok(())
    }

    /// Returns a function that maps an element of `row` to the variance that rounding adds to this element.
    fn rounding(&self, row: &[f32]) -> impl Fn(f32) -> f64 + use<> {
        let e4m3 = self.token.e4m3;
        let scale = row.iter().fold(0f64, |amax, x| amax.max(f64::from(x.abs()))) / 448.0;
        move |x| {
            let x = f64::from(x.abs());
            let most = match e4m3 {
                true => (E4M3[0] * x).max(E4M3[1] * scale),
                false => BF16 * x,
            };
            most * most / 3.0
        }
    }

    /// Returns the kernel's decisions `codes`. A decision that differs from the reference's is replaced by the reference's
    /// decision, unless the errors of the logits explain the difference.
    fn admitted(&self, x: &Tensor<f32>, variance: &[f32], logits: &Tensor<f32>, codes: &[u8]) -> Vec<u8> {
        let token = &self.token;
        let width = x.cols();
        let (folded, sizes) = &folded(token);
        let row = |(row, code): (usize, &u8)| {
            let (x, variance) = (x.row(row), &variance[row * width..][..width]);
            let norm = inverse_norm(x, token.config.eps);
            let squares: f64 = x.iter().map(|x| f64::from(*x).powi(2)).sum();
            let of_norm: f64 = x
                .iter()
                .zip(variance)
                .map(|(x, v)| f64::from(*x).powi(2) * f64::from(*v))
                .sum();
            // Error bounds of the logits of the gate and the banks.
            let open: [f64; 1 + BANKS] = std::array::from_fn(|i| {
                let (mut carried, mut size) = (0.0, f64::from(token.bias[i].abs()));
                for k in 0..width {
                    carried += f64::from(folded.row(i)[k]).powi(2) * f64::from(variance[k]);
                    size += sizes[i * width + k] * f64::from(x[k].abs()) * norm;
                }
                let l = f64::from(logits.row(row)[i]);
                let deviation = norm * carried.sqrt() + l.abs() * of_norm.sqrt() / squares.max(f64::MIN_POSITIVE);
                LOGITS * deviation + 2.0 * (width + super::ROUTER + 16) as f64 * UNIT * size
            });
            let l = |i: usize| f64::from(logits.row(row)[i]);
            let bank = 1 + usize::from(code & 3);
            let gate = (l(0) > 0.0) != (*code > 3) && l(0).abs() > open[0];
            let clear = |other: usize| l(other) - l(bank) - open[other] - open[bank];
            let better = (1..=BANKS).filter(|other| clear(*other) > 0.0);
            let better = better.max_by(|a, b| clear(*a).total_cmp(&clear(*b)));
            let bank = better.map_or(code & 3, |better| better as u8 - 1);
            (if gate { !code & 4 } else { code & 4 }) | bank
        };
        codes.par_iter().enumerate().map(row).collect()
    }
}

/// Returns products of weights by which variances are multiplied: W1², W3², W1·W3 and W2², element by element.
fn squares(token: &Token) -> [Tensor<f32>; 4] {
    let [w1, w3, w2] = [&token.w1, &token.w3, &token.w2].map(|weight| &weight.values);
    [[w1, w1], [w3, w3], [w1, w3], [w2, w2]].map(|[a, b]| {
        let products = a.data.par_iter().zip(&b.data).map(|(a, b)| a * b).collect();
        Tensor::new(a.shape.clone(), products)
    })
}

/// Returns the folded router (one dot product with x per logit). For each element of the folded router, also returns the sum of
/// the magnitudes of its terms. The error bounds from these sums hold for kernels that fold the router and for those that do not.
fn folded(token: &Token) -> (Tensor<f32>, Vec<f64>) {
    let Router::Folded { weight, .. } = token.router() else {
        unreachable!("it was folded");
    };
    let width = token.config.d_model;
    let mut sizes = vec![0.0; (1 + BANKS) * width];
    let heads = token.heads.data.chunks_exact(super::ROUTER);
    for (to, heads) in sizes.chunks_exact_mut(width).zip(heads) {
        for (head, w) in heads.iter().zip(token.router_w.data.chunks_exact(width)) {
            let each = to.iter_mut().zip(w).zip(&token.router_g);
            each.for_each(|((to, w), g)| *to += f64::from((head * w * g).abs()));
        }
    }
    (weight, sizes)
}

fn inverse_norm(x: &[f32], eps: f64) -> f64 {
    let squares: f64 = x.iter().map(|x| f64::from(*x).powi(2)).sum();
    (squares / x.len() as f64 + eps).sqrt().recip()
}
