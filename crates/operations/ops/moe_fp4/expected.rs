//! Values between the products and after them, with their errors.

use std::sync::Arc;

use rayon::prelude::*;
use safetensors::Dtype;

use super::super::Outputs;
use super::super::data::f32_values;
use super::super::judge::{Judge, Part};
use super::super::routed::Routed;
use super::super::sums::{Summed, Sums, bf16_factors};
use super::super::swiglu::{activated, error};
use super::{Matrices, WHY};
use ulplab_core::accumulator::Factor;

/// Numbers between the products, `[B, K + 1, I]`: what `each` makes of the products of a gate and an up and of the router's weight. They
/// are 0 where no expert is.
pub(super) fn hidden<N: Summed, T: Clone + Default>(
    sums: Sums,
    routed: &Routed,
    gate_up: &Matrices,
    x: &[f32],
    each: impl Fn([N; 2], f32) -> T,
) -> Vec<T> {
    let ([halves, dim], slots) = (gate_up.shape, routed.k + 1);
    let (x, inner) = (bf16_factors(x), halves / 2);
    let mut all = vec![T::default(); x.len() / dim * slots * inner];
    for (expert, places) in routed.places.iter().enumerate() {
        let tokens = places.iter().map(|place| &x[place / slots * dim..][..dim]);
        let products: Vec<N> = gate_up.products(sums, expert, &tokens.collect::<Vec<_>>());
        for (token, place) in places.iter().enumerate() {
            let weight = routed.weight(*place);
            let product = |row: usize| products[row * places.len() + token];
            for unit in 0..inner {
                all[place * inner + unit] = each([product(unit), product(inner + unit)], weight);
            }
        }
    }
    all
}

/// The number between the products of a gate and an up, and the error of f32 arithmetic before rounding to bfloat16. The error is that of
/// [`swiglu`](super::super::swiglu) and of the product with the weight.
pub fn between(products: [f64; 2], weight: f64, limit: f64) -> (f64, f64) {
    let (y, lost) = activated(products, limit);
    let y = y * weight;
    let least = (2f64.powi(-146) + lost) * (weight.abs() + 1.0);
    (y, error(13.0, products[0], y) + least)
}

/// Judges y given the kernel's own numbers between the products.
pub(super) fn parts(
    sums: Sums,
    routed: &Arc<Routed>,
    down: &Arc<Matrices>,
    [rows, dim]: [usize; 2],
    out: Dtype,
) -> impl Fn(&Outputs) -> Vec<Part> + Send + Sync + 'static {
    let (routed, down) = (Arc::clone(routed), Arc::clone(down));
    move |outputs| {
        let hidden = bf16_factors(&f32_values(outputs.get("hidden"), 2));
        let defined = combined(Sums::Defined, &routed, &down, &hidden, [rows, dim]);
        let numbers = || combined(sums, &routed, &down, &hidden, [rows, dim]);
        let judges = sums.judges(("y", out, [rows, dim]), &defined, numbers, WHY);
        let judges = judges.unwrap_or_else(|why| {
            // A right kernel cannot have these numbers between the products, so no y is right.
            let nan = vec![f64::NAN; rows * dim];
            vec![Judge::within("y", out, &[rows, dim], nan, |_, _| 0.0, why)]
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
