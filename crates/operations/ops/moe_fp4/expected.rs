//! Values between the products and after them, with their errors.

use std::sync::Arc;

use rayon::prelude::*;
use reference::Bounded;
use reference::ops::experts::swiglu;
use safetensors::Dtype;

use super::super::Outputs;
use super::super::data::{f32_values, float_bytes};
use super::super::fp4_gemm::factor;
use super::super::judge::{Judge, Part, UNIT};
use super::super::sums::{Summed, Sums};
use super::{LIMIT, Matrices, Routed, WHY};
use ulplab_core::accumulator::Factor;

pub(super) fn factors(x: &[f32]) -> Vec<Factor> {
    x.par_iter().map(|x| factor(*x)).collect()
}

/// What lies between the products, `[B, K + 1, I]`, and the errors of f32 arithmetic, which are 0 where no expert is.
///
/// Those of [`super::swiglu`], and the weight's: one product more.
pub(super) fn hidden(routed: &Routed, gate_up: &Matrices, x: &[Factor], inner: usize) -> (Vec<f64>, Vec<f64>) {
    let dim = gate_up.shape[1];
    let rows = x.len() / dim;
    let (mut want, mut error) = (
        vec![0.0; rows * (routed.k + 1) * inner],
        vec![0.0; rows * (routed.k + 1) * inner],
    );
    for (expert, places) in routed.places.iter().enumerate() {
        let tokens: Vec<&[Factor]> = places
            .iter()
            .map(|place| &x[place / (routed.k + 1) * dim..][..dim])
            .collect();
        let sums = gate_up.products::<f32>(Sums::Defined, expert, &tokens);
        for (token, place) in places.iter().enumerate() {
            let weight = f64::from(routed.weight(*place));
            for unit in 0..inner {
                let sum = |row: usize| f64::from(sums[row * places.len() + token]);
                let (gate, up) = (sum(unit), sum(inner + unit));
                let at = place * inner + unit;
                (want[at], error[at]) = between([gate, up], weight, f64::from(LIMIT));
            }
        }
    }
    (want, error)
}

/// The same of a kernel with other sums: the reference runs on numbers with their errors.
pub(super) fn hidden_of(sums: Sums, routed: &Routed, gate_up: &Matrices, x: &[Factor], inner: usize) -> Vec<Bounded> {
    let dim = gate_up.shape[1];
    let mut all = vec![Bounded::default(); x.len() / dim * (routed.k + 1) * inner];
    for (expert, places) in routed.places.iter().enumerate() {
        let tokens: Vec<&[Factor]> = places
            .iter()
            .map(|place| &x[place / (routed.k + 1) * dim..][..dim])
            .collect();
        let products: Vec<Bounded> = gate_up.products(sums, expert, &tokens);
        for (token, place) in places.iter().enumerate() {
            let weight = Bounded::exact(routed.weight(*place));
            for unit in 0..inner {
                let sum = |row: usize| products[row * places.len() + token];
                let limit = Bounded::exact(LIMIT);
                all[place * inner + unit] = swiglu(sum(unit), sum(inner + unit), limit) * weight;
            }
        }
    }
    all
}

/// What lies between the products of a gate and an up, and the error of f32 arithmetic, before it is rounded to bfloat16.
pub fn between([gate, up]: [f64; 2], weight: f64, limit: f64) -> (f64, f64) {
    let y = swiglu(gate, up, limit) * weight;
    let lost = if gate < -87.0 {
        89.0 * 2f64.powi(-125) * limit
    } else {
        0.0
    };
    let units = 13.0 + 2.0 * gate.abs().min(200.0);
    (
        y,
        units * UNIT * y.abs() + (2f64.powi(-146) + lost) * (weight.abs() + 1.0),
    )
}

/// Judges y by the numbers between the products that were found.
pub(super) fn parts(
    sums: Sums,
    routed: &Arc<Routed>,
    down: &Arc<Matrices>,
    [rows, dim]: [usize; 2],
    out: Dtype,
) -> impl Fn(&Outputs) -> Vec<Part> + Send + Sync + 'static {
    let (routed, down) = (Arc::clone(routed), Arc::clone(down));
    move |outputs| {
        let hidden = factors(&f32_values(outputs.get("hidden"), 2));
        let y: Vec<f32> = combined(Sums::Defined, &routed, &down, &hidden, [rows, dim]);
        let equal = Judge::equal("y", out, &[rows, dim], float_bytes(out, &y), WHY).any_nan(0..dim);
        let numbers = || combined(sums, &routed, &down, &hidden, [rows, dim]);
        let judges = sums.judges(equal, numbers).unwrap_or_else(|why| {
            // Numbers between the products that a right kernel cannot have: none is right.
            vec![Judge::within(
                "y",
                out,
                &[rows, dim],
                vec![f64::NAN; rows * dim],
                |_, _| 0.0,
                why,
            )]
        });
        judges
            .into_iter()
            .map(|judge| judge.on(outputs.get("y").to_vec()))
            .collect()
    }
}

/// The sum of the experts of each row, of numbers between the products.
fn combined<N: Summed>(
    sums: Sums,
    routed: &Routed,
    down: &Matrices,
    hidden: &[Factor],
    [rows, dim]: [usize; 2],
) -> Vec<N> {
    let inner = down.shape[1];
    let mut products = vec![N::default(); rows * (routed.k + 1) * dim];
    for (expert, places) in routed.places.iter().enumerate() {
        let tokens: Vec<&[Factor]> = places.iter().map(|place| &hidden[place * inner..][..inner]).collect();
        let of_expert: Vec<N> = down.products(sums, expert, &tokens);
        for (token, place) in places.iter().enumerate() {
            for channel in 0..dim {
                products[place * dim + channel] = of_expert[channel * places.len() + token];
            }
        }
    }
    let mut y = vec![N::default(); rows * dim];
    y.par_chunks_exact_mut(dim).enumerate().for_each(|(row, y)| {
        for place in routed.added(row) {
            let product = &products[place * dim..][..dim];
            y.iter_mut().zip(product).for_each(|(y, product)| *y += *product);
        }
    });
    y
}
