//! Compares the outputs of a kernel with those of a reference that takes the router decisions of this kernel.

use rayon::prelude::*;
use reference::paths::swap_ffn::{BANKS, Collapse, State, decode};
use reference::{Numerics, Site, Tensor};
use safetensors::Dtype;

use super::follow::{BF16, Follower};
use ulplab_operations::ops::Outputs;
use ulplab_operations::ops::data::{bf16_bytes, f32_bytes, round_to_bf16, widened};
use ulplab_operations::ops::judge::{Judge, Part, UNIT, numbers};

/// Number of standard deviations by which an element (`NUMBERS`), or a row in root mean square (`ROWS`), may deviate.
const NUMBERS: f64 = 8.0;
const ROWS: f64 = 2.0;

const WHY_CODES: &str = "a decision is gate · 4 + bank, at most 7";
const WHY_DECISIONS: &str = "the reference decides unless its logits are within 6 standard deviations of the propagated \
                             rounding error plus 2 (D + 80) units of 2^-24 of the magnitudes of their terms";
const WHY_NUMBERS: &str = "a number may be off by 8 standard deviations of the propagated rounding error of operands \
                           (errors are taken as independent), a row by 2 in root mean square";
const WHY_FINITE: &str = "no input is infinite or NaN";
const WHY_EXACT: &str = "without an FFN step only values written to banks are rounded: every bit is defined";
const WHY_KEPT: &str = "this case does not write it";
const WHY_MAPS: &str = "maps follow from the decisions";
const WHY_BANKS: &str = "banks that no decision names must be unchanged";
const WHY_DELTA: &str = "three sums of the kernel's own x, each rounded: 8 standard deviations";

impl Follower {
    /// Checks each output, given the kernel's decisions, and returns the results.
    pub fn parts(&self, outputs: &Outputs) -> Vec<Part> {
        let token = &self.token;
        let (rows, width) = (token.rows(), token.config.d_model);
        let codes = outputs.get("decisions");
        if codes.iter().any(|code| *code > 7) {
            let most: Vec<u8> = codes.iter().map(|code| *code.min(&7)).collect();
            let shape = [token.events, rows];
            return vec![Judge::equal("decisions", Dtype::U8, &shape, most, WHY_CODES).on(codes.to_vec())];
        }
        if token.config.k_ffn == 0 && !token.begin && !token.end {
            return self.exactly(outputs);
        }
        let followed = match self.follow(codes) {
            Ok(followed) => followed,
            Err(why) => unreachable!("the reference refuses: {why}"),
        };
        let own_rows = self.rows();
        let x = outputs.get("x");
        let own_codes: Vec<u8> = codes
            .chunks_exact(rows)
            .flat_map(|codes| own_rows.iter().map(|row| codes[*row]))
            .collect();
        let shape = [token.events, own_rows.len()];
        let decisions = Judge::equal("decisions", Dtype::U8, &shape, followed.decisions, WHY_DECISIONS);
        let gather = |bytes: &[u8], len: usize| -> Vec<u8> {
            let of = |row: &usize| &bytes[row * len..][..len];
            own_rows.iter().flat_map(of).copied().collect()
        };
        let own_x = gather(x, 4 * width);
        let near_x = near("x", &followed.x, followed.x_variance, &numbers(Dtype::F32, &own_x), 0.0);
        let own_ram = gather(outputs.get("ram"), 2 * BANKS * width);
        let own_banks = own_rows
            .iter()
            .flat_map(|row| (0..BANKS).map(move |bank| row * BANKS + bank));
        // A small error may change the direction in which a number is rounded to bf16, so allow one more step of bf16.
        let ram = Tensor::new([own_rows.len() * BANKS, width], followed.state.ram.data);
        let found = numbers(Dtype::BF16, &own_ram);
        let near_ram = near("ram", &ram, followed.ram_variance, &found, 2.0 * BF16);
        let mut all = vec![
            decisions.on(own_codes),
            near_x.of_rows(own_rows.clone()).on(own_x),
            near_ram.of_rows(own_banks.collect()).on(own_ram),
        ];
        all.extend(self.maps(outputs));
        let delta = match token.end {
            true => self.delta(&numbers(Dtype::F32, x)),
            false => {
                let before = f32_bytes(&token.delta.data);
                Judge::equal("delta", Dtype::F32, &token.delta.shape, before, WHY_KEPT)
            }
        };
        all.push(delta.of(outputs));
        all.push(Judge::finite("x", Dtype::F32, &[rows, width], WHY_FINITE).on(x.to_vec()));
        all
    }

    /// Checks a case without FFN steps: every output must equal the reference's bit for bit.
    fn exactly(&self, outputs: &Outputs) -> Vec<Part> {
        let token = &self.token;
        let mut state = State {
            ram: token.ram.clone(),
            map: token.map.clone(),
            tokens: 0,
        };
        let mut x = token.x.clone();
        let mut codes = Vec::new();
        for event in 0..token.events {
            let mut rounded = Rounded;
            let decisions = self.model().exchange(&mut x, &mut state, event, &mut rounded);
            let decisions = decisions.unwrap_or_else(|why| unreachable!("the reference refuses: {why}"));
            codes.extend((0..token.rows()).map(|row| decisions.code(row)));
        }
        let delta = f32_bytes(&token.delta.data);
        let (x_bytes, ram) = (f32_bytes(&x.data), bf16_bytes(&state.ram.data));
        let (maps, decisions) = ([token.rows()], [token.events, token.rows()]);
        vec![
            Judge::equal("decisions", Dtype::U8, &decisions, codes, WHY_EXACT).of(outputs),
            Judge::equal("x", Dtype::F32, &x.shape, x_bytes, WHY_EXACT).of(outputs),
            Judge::equal("ram", Dtype::BF16, &state.ram.shape, ram, WHY_EXACT).of(outputs),
            Judge::equal("map", Dtype::U8, &maps, state.map, WHY_EXACT).of(outputs),
            Judge::equal("delta", Dtype::F32, &token.delta.shape, delta, WHY_KEPT).of(outputs),
        ]
    }

    /// Checks that the maps (lane to bank) follow from the kernel's decisions, and that banks that no decision selects are
    /// unchanged.
    fn maps(&self, outputs: &Outputs) -> [Part; 2] {
        let token = &self.token;
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
        let flags = left.as_flattened().iter().enumerate();
        let banks: Vec<usize> = flags.filter(|(_, left)| **left).map(|(bank, _)| bank).collect();
        let ram = Judge::equal("ram", Dtype::BF16, &[banks.len(), width], want, WHY_BANKS);
        [
            Judge::equal("map", Dtype::U8, &[token.rows()], maps, WHY_MAPS).of(outputs),
            ram.of_rows(banks).on(got),
        ]
    }

    /// Checks delta (the result of the token). The reference computes the collapse (pooling of the cores and decoding) from the x
    /// that the kernel output.
    ///
    /// A sum of n terms has n roundings, each with an error of at most one unit (2^-24), relative to the sum of magnitudes.
    /// Together they have a variance of n / 3 squared units, which the next sums propagate. silu amplifies the error of its
    /// argument by at most 1.1, and adds an error of a few units.
    fn delta(&self, x: &[f64]) -> Judge {
        let token = &self.token;
        let (cores, width) = (token.config.core_count, token.config.d_model);
        let Collapse { basis, decoder } = &token.collapse;
        let alpha = &token.film.alpha;
        let rounding = |len: usize, size: f64| len as f64 / 3.0 * (UNIT * size).powi(2);
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
                let (mut sum, mut size, mut variance) = (0.0, 0.0, 0.0);
                for (at, [p, p_size]) in pooled.iter().enumerate() {
                    let b = f64::from(basis.data[(at / width * super::REDUCED + r) * width + at % width]);
                    sum += b * p;
                    size += (b * p).abs();
                    variance += b * b * rounding(cores, *p_size);
                }
                let z = sum / (1.0 + (-sum).exp());
                let carried = 1.1 * 1.1 * (variance + rounding(super::POOLED * width, size));
                [z, carried + (16.0 * UNIT * (1.0 + sum.abs()) * z).powi(2)]
            };
            let reduced: Vec<[f64; 2]> = (0..super::REDUCED).into_par_iter().map(reduced).collect();
            for (d, [sum, variance]) in want.iter_mut().enumerate() {
                let mut size = 0.0;
                for ([z, z_variance], w) in reduced.iter().zip(decoder.row(d)) {
                    let w = f64::from(*w);
                    *sum += w * z;
                    size += (w * z).abs();
                    *variance += w * w * z_variance;
                }
                *variance += rounding(super::REDUCED, size);
            }
        }
        let values: Vec<f64> = want.iter().map(|[value, _]| *value).collect();
        let bound = move |at: usize, _| NUMBERS * want[at][1].sqrt() + 1e-37;
        Judge::within("delta", Dtype::F32, &token.delta.shape, values, bound, WHY_DELTA)
    }
}

/// Hooks into the reference that round each vector to bf16 when it is written to a bank.
struct Rounded;

impl Numerics<f32> for Rounded {
    fn site(&mut self, site: &Site, tensor: &mut Tensor<f32>) {
        if site.name == "ram" {
            round_to_bf16(&mut tensor.data);
        }
    }
}

/// Checks that each element deviates by at most `NUMBERS` standard deviations, and each row by at most `ROWS` in root mean
/// square, plus f32 rounding. If the variance is not 0, the relative error `also` is added to the bound.
fn near(output: &'static str, want: &Tensor<f32>, variance: Vec<f32>, got: &[f64], also: f64) -> Judge {
    let width = want.cols();
    let values = widened(&want.data);
    let rows = values.par_chunks(width).zip(got.par_chunks(width)).enumerate();
    let ratios: Vec<f64> = rows
        .map(|(row, (want, got))| {
            let error: f64 = want.iter().zip(got).map(|(want, got)| (want - got).powi(2)).sum();
            let size: f64 = want.iter().map(|x| x * x).sum();
            let most: f64 = variance[row * width..][..width].iter().map(|v| f64::from(*v)).sum();
            error.sqrt() / (ROWS * most.sqrt() + (1e-5 + also) * size.sqrt())
        })
        .collect();
    let errors: Vec<f64> = values.iter().zip(got).map(|(want, got)| (got - want).abs()).collect();
    let bound = move |at: usize, want: f64| match (ratios[at / width], variance[at]) {
        // A row that deviates too much as a whole fails in all of its elements.
        (ratio, _) if ratio > 1.0 => errors[at] / ratio,
        (_, 0.0) => 0.0,
        (_, some) => also * want.abs() + NUMBERS * f64::from(some).sqrt() + 1e-6 * want.abs(),
    };
    let dtype = if output == "ram" { Dtype::BF16 } else { Dtype::F32 };
    Judge::within(output, dtype, &want.shape, values, bound, WHY_NUMBERS)
}
