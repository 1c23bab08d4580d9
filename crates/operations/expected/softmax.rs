//! p = e^(s·x − m) / Σ e^(s·x − m) over rows.
//!
//! Error: s·x and m are off by 2u of each, the exponent by 2u·|s·x − m| more, and the exponential by (4 + 2|s·x − m|)·u. The sum
//! has the mean of these errors, weighted by p, and that of its own additions; the quotient adds 4u. (Blanchard, Higham and
//! Higham, *Accurately computing the log-sum-exp and softmax functions*, 2021.)

use rayon::prelude::*;

use super::draw::{Cases, FLOATS};
use super::sum::Terms;
use super::{Call, Operation, Output, Rows, faults, takes};

pub(super) const SOFTMAX: Operation = Operation {
    name: "softmax",
    doc: "exponentials of the elements of each row, divided by their sum",
    takes: takes! {
        x Tensor: "[..., C]";
        scale Number(1.0): "multiplied by before the exponential";
    },
    faults: faults! {
        base_two: "powers of 2 are taken in the place of powers of e";
        no_scale: "the scale is left out";
        not_divided: "the exponentials are not divided by their sum";
        last_missing: "the sum leaves out the last column";
        neighbour_row: "the sum is that of the next row";
    },
    cases: Some(&Cases {
        sizes: &[&[("T", 7), ("C", 129)], &[("T", 2), ("C", 3001)]],
        numbers: &[],
        varied: &[("scale", 0.25)],
        fixed: &[],
        optional: &[],
        types: FLOATS,
        draw: |draw| {
            let shape = draw.sizes(["T", "C"]);
            draw.normal("x", &shape, 3.0);
        },
        why: "an exponential of 2 ulp of a rounded difference, a sum of C terms in any order and a division, in f32",
    }),
    rows: Some(Rows {
        inputs: &["x"],
        first_dimension: false,
        leaning: exponents,
    }),
    compute,
};

/// Twice the magnitude of the exponents of a row by each of 2 ulp, since the mean of the exponents enters by the sum, too.
fn exponents(row: &[f64]) -> f64 {
    let magnitudes = row.iter().filter(|x| **x > 0.0).map(|x| x.ln().abs());
    4.0 * magnitudes.fold(0.0, f64::max)
}

fn compute(call: &Call) -> Result<Vec<Output>, String> {
    let x = call.tensor("x");
    let cols = x.cols();
    let scale = if call.is("no_scale") { 1.0 } else { call.number("scale") };
    let base = if call.is("base_two") {
        std::f64::consts::LN_2
    } else {
        1.0
    };
    let rows = x.data.len() / cols.max(1);
    // Exponents, exponentials, and what is known of their sum.
    let of_row = |row: usize| {
        let x = x.data[row * cols..][..cols].iter().map(|x| x * scale * base);
        let exponents: Vec<f64> = x.collect();
        let most = exponents.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let off = |x: f64| if x == f64::NEG_INFINITY { x } else { x - most };
        let exponents: Vec<f64> = exponents.into_iter().map(off).collect();
        let powers: Vec<f64> = exponents.iter().map(|x| x.exp()).collect();
        let summed = if call.is("last_missing") {
            &powers[..cols - 1]
        } else {
            &powers[..]
        };
        let terms = Terms::of(summed.iter().copied(), call.u);
        (exponents, powers, terms, most)
    };
    let row = |row: usize| {
        let (exponents, powers, mut terms, most) = of_row(row);
        if call.is("neighbour_row") {
            terms = of_row((row + 1) % rows).2;
        }
        // An element and the largest are scaled before they are subtracted.
        let scaled = move |x: f64| 2.0 * ((x + most).abs() + most.abs()).min(1e4);
        let relative = move |x: f64| (4.0 + 4.0 * x.abs().min(1e4) + scaled(x)) * call.u;
        let weighted: f64 = exponents
            .iter()
            .zip(&powers)
            .map(|(x, p)| if *p > 0.0 { relative(*x) * p } else { 0.0 })
            .sum();
        let of_sum = weighted / terms.sum + terms.error() / terms.sum;
        let divisor = if call.is("not_divided") { 1.0 } else { terms.sum };
        let elements = exponents.into_iter().zip(powers);
        elements.map(move |(x, power)| {
            let p = power / divisor;
            (
                p,
                p * (relative(x) + of_sum + 4.0 * call.u) + f64::from(f32::MIN_POSITIVE) * call.u,
            )
        })
    };
    let (value, error) = (0..rows).into_par_iter().flat_map_iter(row).unzip();
    Ok(vec![Output::new("p", x.shape.clone(), value, error)])
}
