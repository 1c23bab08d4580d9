//! The reference with the decisions that a kernel took, and how far a kernel may be from it.
//!
//! What a kernel rounds errs by about as much as may be said of it beforehand. The variance of every number of x is kept
//! along: an operand that is rounded brings at most u² n² / 3 with it, u being half a step relative to the number, and sums
//! carry errors on as if they were independent, W² of the variances, the gated product by its derivatives. No number may be
//! beyond eight deviations, and no row, whose errors average out, beyond two in root mean square. A decision must be the
//! reference's where the logits that make it are further apart than six of their deviations and what f32 leaves open.
//! Where nothing was rounded, variances are 0 and all is equal bit for bit.
//!
//! Rows meet only in the end. So of a long stretch some cores are followed; all maps must be what comes of the decisions, all
//! banks that no decision names must be as they were, and delta is judged as what comes of the kernel's own x.

use std::sync::{Arc, OnceLock};

use rayon::prelude::*;
use reference::ops::linear::Linear;
use reference::paths::swap_ffn::{BANKS, Collapse, Config, Film, Model, State, decode};
use reference::{Choice, Numerics, Plain, Site, Tensor};

use super::Token;
use crate::kernels::Outputs;
use crate::kernels::data::{bf16_bytes, f32_bytes, floats, round_to_bf16};
use crate::kernels::judge::{Measured, equal, within};

/// Half an ulp of f32, relative; that of bf16, and of E4M3, and half of E4M3's least number under a scale.
const UNIT: f64 = 1.0 / (1 << 24) as f64;
const BF16: f64 = 1.0 / 256.0;
const E4M3: [f64; 2] = [1.0 / 16.0, 1.0 / 1024.0];

/// Deviations that numbers, rows and logits may be off.
const NUMBERS: f64 = 8.0;
const ROWS: f64 = 2.0;
const LOGITS: f64 = 6.0;

/// Cores that are followed where there are many steps.
const FEW: usize = 48;

pub(super) struct Follower {
    token: Arc<Token>,
    /// The cores that are followed.
    cores: Vec<usize>,
    /// Of these cores, with one step of the FFN an event.
    model: Model<f32>,
    squares: OnceLock<Squares>,
}

/// What variances are multiplied by.
struct Squares {
    w1: Linear<f32>,
    w3: Linear<f32>,
    both: Linear<f32>,
    w2: Linear<f32>,
}

/// Takes decisions, and remembers what the FFN computes.
#[derive(Default)]
struct Forced {
    /// gate · 4 + bank; gates are closed without.
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

/// Numbers with their variances.
struct Followed {
    x: Tensor<f32>,
    x_variance: Vec<f32>,
    state: State<f32>,
    ram_variance: Vec<f32>,
    /// Decisions that may not be, and how many there are.
    wrong: u64,
    decided: u64,
}

impl Follower {
    pub fn new(token: Arc<Token>) -> Result<Self, String> {
        let config = token.config;
        let all = config.core_count;
        let cores: Vec<usize> = match token.events * config.k_ffn > 4 && all > FEW {
            // Of all kinds of places in tiles.
            true => (0..FEW).map(|i| i * 37 % all).collect(),
            false => (0..all).collect(),
        };
        let some = |x: &Tensor<f32>| {
            let rows = cores.iter().flat_map(|&core| x.row(core)).copied().collect();
            Tensor::new([cores.len(), x.cols()], rows)
        };
        let film = Film {
            scale: some(&token.film.scale),
            shift: some(&token.film.shift),
            alpha: some(&token.film.alpha),
        };
        let config = Config {
            core_count: cores.len(),
            k_ffn: 1,
            ..config
        };
        let model = Model::new(config, film, token.router(), token.ffn(), token.collapse.clone())?;
        Ok(Self {
            token,
            cores,
            model,
            squares: OnceLock::new(),
        })
    }

    pub fn judge(&self, outputs: &Outputs) -> Vec<Measured> {
        let token = &*self.token;
        let (rows, width) = (token.rows(), token.config.d_model);
        let codes = outputs.get("decisions");
        if codes.iter().any(|code| *code > 7) {
            let most: Vec<u8> = codes.iter().map(|code| *code.min(&7)).collect();
            return vec![equal("decisions", &most, codes, &[token.events, rows], 1)];
        }
        if token.config.k_ffn == 0 && !token.begin && !token.end {
            return self.exactly(outputs);
        }
        let followed = match self.follow(codes) {
            Ok(followed) => followed,
            Err(why) => unreachable!("the reference refuses: {why}"),
        };
        let got_x = floats(outputs.get("x"), 4);
        let mut all = vec![Measured {
            output: "decisions",
            metric: "violations",
            value: followed.wrong as f64,
            n: followed.decided,
            worst: None,
        }];
        let own_rows = self.rows();
        let gather = |values: &[f64], len: usize| -> Vec<f64> {
            own_rows
                .iter()
                .flat_map(|row| &values[row * len..][..len])
                .copied()
                .collect()
        };
        all.extend(near(
            "x",
            &followed.x,
            &followed.x_variance,
            &gather(&got_x, width),
            0.0,
        ));
        let ram = floats(outputs.get("ram"), 2);
        let ram = gather(&ram, BANKS * width);
        // A number that errs may be rounded the other way.
        let state = &followed.state.ram;
        let banks = Tensor::new([own_rows.len() * BANKS, width], state.data.clone());
        all.extend(near("ram", &banks, &followed.ram_variance, &ram, 2.0 * BF16));
        all.extend(self.maps(outputs));
        match token.end {
            true => all.extend(self.delta(&got_x, &floats(outputs.get("delta"), 4))),
            false => all.push(same(
                "delta",
                &f32_bytes(&token.delta.data),
                outputs,
                &token.delta.shape,
                4,
            )),
        }
        let finite = got_x.iter().filter(|x| !x.is_finite()).count();
        all.push(Measured {
            output: "x",
            metric: "violations",
            value: finite as f64,
            n: got_x.len() as u64,
            worst: None,
        });
        all
    }

    /// The rows that are followed, of all.
    fn rows(&self) -> Vec<usize> {
        let cores = self.token.config.core_count;
        let of = |token: usize| self.cores.iter().map(move |core| token * cores + core);
        (0..self.token.batch).flat_map(of).collect()
    }

    /// x before the first event, and the state of the rows that are followed.
    fn start(&self) -> Result<Followed, String> {
        let token = &*self.token;
        let width = token.config.d_model;
        let own_rows = self.rows();
        let banks = own_rows
            .iter()
            .flat_map(|row| &token.ram.data[row * BANKS * width..][..BANKS * width]);
        let ram = Tensor::new([token.batch, self.cores.len(), BANKS, width], banks.copied().collect());
        let ram_variance = vec![0.0; ram.data.len()];
        let mut state = State::new(self.model.config(), ram)?;
        state.map = own_rows.iter().map(|row| token.map[*row]).collect();
        let (x, x_variance) = if token.begin {
            let x = self.model.spread(&token.x_in, &state, &mut Plain)?;
            // Product and sum are rounded, or only the sum.
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
            wrong: 0,
            decided: 0,
        })
    }

    fn follow(&self, codes: &[u8]) -> Result<Followed, String> {
        let token = &*self.token;
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
            let decisions = self.model.exchange(x, state, event, &mut forced)?;
            followed.wrong += self.wrong(&before, &followed.x_variance, &decisions.logits, &forced.codes);
            followed.decided += rows.len() as u64;
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

    /// A step of the FFN.
    fn step(&self, followed: &mut Followed, event: usize) -> Result<(), String> {
        let token = &*self.token;
        let width = token.config.d_model;
        let squares = self.squares.get_or_init(|| Squares::new(token));
        let mut forced = Forced::default();
        let before = followed.x.clone();
        let Followed { x, state, .. } = followed;
        self.model.event(x, state, event, &mut forced)?;
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
        let [gate, up, both] = [&squares.w1, &squares.w3, &squares.both].map(|weight| weight.apply(&n).data);
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
        let down = squares.w2.apply(&h).data;
        for (variance, down) in followed.x_variance.iter_mut().zip(down) {
            *variance = match token.config.residual {
                // Errors of both may be the same ones.
                true => (variance.sqrt() + down.sqrt()).powi(2),
                false => down,
            };
        }
        Ok(())
    }

    /// Variance of the rounding of numbers of a row.
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

    /// Decisions other than the reference's, where its logits leave no doubt.
    fn wrong(&self, x: &Tensor<f32>, variance: &[f32], logits: &Tensor<f32>, codes: &[u8]) -> u64 {
        let token = &*self.token;
        let width = x.cols();
        let Router { folded, sizes } = &Router::new(token);
        let row = |(row, code): (usize, &u8)| {
            let (x, variance) = (x.row(row), &variance[row * width..][..width]);
            let norm = inverse_norm(x, token.config.eps);
            let squares: f64 = x.iter().map(|x| f64::from(*x).powi(2)).sum();
            let of_norm: f64 = x
                .iter()
                .zip(variance)
                .map(|(x, v)| f64::from(*x).powi(2) * f64::from(*v))
                .sum();
            // By how much a logit may err.
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
            let better = (1..=BANKS).any(|other| l(other) - l(bank) > open[other] + open[bank]);
            gate || better
        };
        codes.par_iter().enumerate().filter(|pair| row(*pair)).count() as u64
    }

    /// Without any step of the FFN all is what the reference says, bit for bit.
    fn exactly(&self, outputs: &Outputs) -> Vec<Measured> {
        let token = &*self.token;
        let mut state = State {
            ram: token.ram.clone(),
            map: token.map.clone(),
            tokens: 0,
        };
        let mut x = token.x.clone();
        let mut codes = Vec::new();
        for event in 0..token.events {
            let mut rounded = Rounded;
            let decisions = self.model.exchange(&mut x, &mut state, event, &mut rounded);
            let decisions = decisions.unwrap_or_else(|why| unreachable!("the reference refuses: {why}"));
            codes.extend((0..token.rows()).map(|row| decisions.code(row)));
        }
        vec![
            same("decisions", &codes, outputs, &[token.events, token.rows()], 1),
            same("x", &f32_bytes(&x.data), outputs, &x.shape, 4),
            same("ram", &bf16_bytes(&state.ram.data), outputs, &state.ram.shape, 2),
            same("map", &state.map, outputs, &[token.rows()], 1),
            same("delta", &f32_bytes(&token.delta.data), outputs, &token.delta.shape, 4),
        ]
    }

    /// Maps are what comes of the decisions, and banks that none of them names are as they were.
    fn maps(&self, outputs: &Outputs) -> [Measured; 2] {
        let token = &*self.token;
        let (codes, width) = (outputs.get("decisions"), token.config.d_model);
        let mut maps = token.map.clone();
        let mut left = vec![[true; BANKS]; token.rows()];
        for event in codes.chunks_exact(token.rows()) {
            for ((code, map), left) in event
                .iter()
                .zip(&mut maps)
                .zip(&mut left)
                .filter(|((code, _), _)| **code > 3)
            {
                let selected = usize::from(code & 3);
                left[usize::from(decode(*map)[selected])] = false;
                *map = token.config.lane_rule.update(*map, selected);
            }
        }
        let before = bf16_bytes(&token.ram.data);
        let kept = |bytes: &[u8]| -> Vec<u8> {
            let banks = bytes.chunks_exact(2 * width).zip(left.as_flattened());
            banks
                .filter(|(_, left)| **left)
                .flat_map(|(bank, _)| bank)
                .copied()
                .collect()
        };
        let (want, got) = (kept(&before), kept(outputs.get("ram")));
        let banks = want.len() / (2 * width);
        [
            same("map", &maps, outputs, &[token.rows()], 1),
            equal("ram", &want, &got, &[banks, width], 2),
        ]
    }

    /// delta of the kernel's x.
    ///
    /// Sums of C, of POOLED·D and of REDUCED products err by no more than so many units of the sums of magnitudes, silu by 1.1
    /// times what its argument does and a few units.
    fn delta(&self, x: &[f64], got: &[f64]) -> Vec<Measured> {
        let token = &*self.token;
        let (cores, width) = (token.config.core_count, token.config.d_model);
        let Collapse { basis, decoder } = &token.collapse;
        let alpha = &token.film.alpha;
        let sums = |len: usize| (len + 8) as f64 * UNIT;
        let mut want = vec![[0.0; 2]; token.batch * width];
        for (x, want) in x.chunks_exact(cores * width).zip(want.chunks_exact_mut(width)) {
            let mut pooled = vec![[0.0; 2]; super::POOLED * width];
            for (k, pooled) in pooled.chunks_exact_mut(width).enumerate() {
                for (core, x) in x.chunks_exact(width).enumerate() {
                    let a = f64::from(alpha.row(core)[k]);
                    pooled.iter_mut().zip(x).for_each(|([sum, size], x)| {
                        *sum += a * x;
                        *size += (a * x).abs();
                    });
                }
            }
            let reduced = |r: usize| {
                let (mut sum, mut size, mut error) = (0.0, 0.0, 0.0);
                for (at, [p, p_size]) in pooled.iter().enumerate() {
                    let b = f64::from(basis.data[(at / width * super::REDUCED + r) * width + at % width]);
                    sum += b * p;
                    size += (b * p).abs();
                    error += b.abs() * p_size * sums(cores);
                }
                let z = sum / (1.0 + (-sum).exp());
                [
                    z,
                    1.1 * (error + size * sums(super::POOLED * width)) + 16.0 * UNIT * (1.0 + sum.abs()) * z.abs(),
                ]
            };
            let reduced: Vec<[f64; 2]> = (0..super::REDUCED).into_par_iter().map(reduced).collect();
            for (d, [sum, error]) in want.iter_mut().enumerate() {
                for ([z, z_error], w) in reduced.iter().zip(decoder.weight.row(d)) {
                    let w = f64::from(*w);
                    *sum += w * z;
                    *error += w.abs() * (z_error + z.abs() * sums(super::REDUCED));
                }
            }
        }
        let values: Vec<f64> = want.iter().map(|[value, _]| *value).collect();
        within("delta", &values, got, |at| want[at][1] + 1e-37, &token.delta.shape)
    }
}

/// Rounds what goes into banks.
struct Rounded;

impl Numerics<f32> for Rounded {
    fn site(&mut self, site: &Site, tensor: &mut Tensor<f32>) {
        if site.name == "ram" {
            round_to_bf16(&mut tensor.data);
        }
    }
}

impl Squares {
    fn new(token: &Token) -> Self {
        let product = |a: &Tensor<f32>, b: &Tensor<f32>| {
            let products = a.data.par_iter().zip(&b.data).map(|(a, b)| a * b).collect();
            Linear {
                weight: Tensor::new(a.shape.clone(), products),
            }
        };
        let [w1, w3, w2] = [&token.w1, &token.w3, &token.w2].map(|weight| &weight.values);
        Self {
            w1: product(w1, w1),
            w3: product(w3, w3),
            both: product(w1, w3),
            w2: product(w2, w2),
        }
    }
}

/// The router as it is folded, and the sums of magnitudes that its products are made of, folded or not.
struct Router {
    folded: Tensor<f32>,
    sizes: Vec<f64>,
}

impl Router {
    fn new(token: &Token) -> Self {
        let reference::paths::swap_ffn::Router::Folded { weight, .. } = token.router() else {
            unreachable!("it was folded");
        };
        let width = token.config.d_model;
        let mut sizes = vec![0.0; (1 + BANKS) * width];
        for (to, heads) in sizes
            .chunks_exact_mut(width)
            .zip(token.heads.data.chunks_exact(super::ROUTER))
        {
            for (head, w) in heads.iter().zip(token.router_w.data.chunks_exact(width)) {
                let each = to.iter_mut().zip(w).zip(&token.router_g);
                each.for_each(|((to, w), g)| *to += f64::from((head * w * g).abs()));
            }
        }
        Self {
            folded: weight.weight,
            sizes,
        }
    }
}

fn inverse_norm(x: &[f32], eps: f64) -> f64 {
    let squares: f64 = x.iter().map(|x| f64::from(*x).powi(2)).sum();
    (squares / x.len() as f64 + eps).sqrt().recip()
}

fn same(output: &'static str, want: &[u8], outputs: &Outputs, shape: &[usize], size: usize) -> Measured {
    equal(output, want, outputs.get(output), shape, size)
}

/// Numbers and rows within so many of their deviations, and what f32 rounds. Where there is a variance, `also` is to be
/// added, relative.
fn near(output: &'static str, want: &Tensor<f32>, variance: &[f32], got: &[f64], also: f64) -> Vec<Measured> {
    let width = want.cols();
    let values: Vec<f64> = want.data.iter().map(|x| f64::from(*x)).collect();
    let open = |at: usize| match variance[at] {
        0.0 => 0.0,
        some => also * values[at].abs() + NUMBERS * f64::from(some).sqrt() + 1e-6 * values[at].abs(),
    };
    let rows = values.par_chunks(width).zip(got.par_chunks(width)).enumerate();
    let ratios: Vec<f64> = rows
        .map(|(row, (want, got))| {
            let error: f64 = want.iter().zip(got).map(|(want, got)| (want - got).powi(2)).sum();
            let size: f64 = want.iter().map(|x| x * x).sum();
            let most: f64 = variance[row * width..][..width].iter().map(|v| f64::from(*v)).sum();
            error.sqrt() / (ROWS * most.sqrt() + (1e-5 + also) * size.sqrt())
        })
        .collect();
    let bound = |at: usize| match ratios[at / width] {
        // All of a row that is too far off as a whole.
        ratio if ratio > 1.0 => (got[at] - values[at]).abs() / ratio,
        _ => open(at),
    };
    within(output, &values, got, bound, &want.shape)
}
