//! What is said of a kernel's outputs, its own decisions taken for given.

use rayon::prelude::*;
use reference::paths::swap_ffn::{BANKS, Collapse, State, decode};
use reference::{Numerics, Site, Tensor};

use super::follow::{BF16, Follower, UNIT};
use crate::kernels::Outputs;
use crate::kernels::data::{bf16_bytes, f32_bytes, floats, round_to_bf16};
use crate::kernels::judge::{Measured, equal, within};
use crate::metrics::VIOLATIONS;

/// Deviations that numbers and rows may be off.
const NUMBERS: f64 = 8.0;
const ROWS: f64 = 2.0;

impl Follower {
    pub fn judge(&self, outputs: &Outputs) -> Vec<Measured> {
        let token = &self.token;
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
            metric: &VIOLATIONS,
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
            metric: &VIOLATIONS,
            value: finite as f64,
            n: got_x.len() as u64,
            worst: None,
        });
        all
    }

    /// Without any step of the FFN all is what the reference says, bit for bit.
    fn exactly(&self, outputs: &Outputs) -> Vec<Measured> {
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
        let banks = want.len() / (2 * width);
        [
            same("map", &maps, outputs, &[token.rows()], 1),
            equal("ram", &want, &got, &[banks, width], 2),
        ]
    }

    /// delta of the kernel's x.
    ///
    /// Each of n roundings of a sum errs by no more than a unit of the sum of magnitudes: they make a variance of n / 3 units
    /// squared, which the next sums carry on; silu makes no more than 1.1 of what its argument errs by, and a few units.
    fn delta(&self, x: &[f64], got: &[f64]) -> Vec<Measured> {
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
                for ([z, z_variance], w) in reduced.iter().zip(decoder.weight.row(d)) {
                    let w = f64::from(*w);
                    *sum += w * z;
                    size += (w * z).abs();
                    *variance += w * w * z_variance;
                }
                *variance += rounding(super::REDUCED, size);
            }
        }
        let values: Vec<f64> = want.iter().map(|[value, _]| *value).collect();
        let bound = |at: usize| NUMBERS * want[at][1].sqrt() + 1e-37;
        within("delta", &values, got, bound, &token.delta.shape)
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
