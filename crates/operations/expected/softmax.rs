//! Softmax of rows, p = e^(s·x − m) / Σ e^(s·x − m) with scale s and largest element m, computed on numbers that carry their
//! error bound ([`super::near`]). In the sum, errors of the exponentials are added up, because they share the error of the scale
//! and of the largest element. (Blanchard, Higham and Higham, *Accurately computing the log-sum-exp and softmax functions*,
//! 2021.)

use rayon::prelude::*;
use reference::Real;

use super::draw::{Cases, FLOATS};
use super::near::{Near, powers};
use super::{Call, Operation, Output, Rows, faults, takes};

pub(super) const SOFTMAX: Operation = Operation {
    name: "softmax",
    doc: "exponentials of the elements of each row, divided by their sum",
    takes: takes! {
        x Tensor: "[..., C]";
        scale Number(1.0): "multiplied by before the exponential";
    },
    faults: faults! {
        base_two: "powers of 2 are taken in the place of powers of e"
            => |call| call.set("scale", call.number("scale") * std::f64::consts::LN_2);
        no_scale: "the scale is left out" => |call| call.set("scale", 1.0);
        not_divided: "the exponentials are not divided by their sum";
        last_missing: "the sum leaves out the last column";
        neighbour_row: "the sum is that of the next row";
    },
    cases: Some(&Cases {
        letters: &["T", "C"],
        sizes: &[&[7, 129], &[2, 3001]],
        numbers: &[],
        varied: &[("scale", 0.25)],
        fixed: &[],
        optional: &[],
        types: FLOATS,
        draw: |draw| {
            let [rows, cols] = draw.sizes();
            draw.normal("x", &[rows, cols], 3.0);
        },
        why: "an exponential of 2 ulp of a rounded difference, a sum of C terms in any order and a division, in f32",
    }),
    rows: Some(Rows {
        inputs: &["x"],
        first_dimension: false,
        leaning: exponents,
    }),
    compute,
    ..Operation::NONE
};

/// Bound of the systematic error of a row, in units of roundoff. An exponential errs by up to 2 roundoffs per unit of its
/// exponent's magnitude. The sum of the exponentials has at most the relative error of the least accurate one. So the quotient
/// errs by up to 4 times the largest magnitude.
fn exponents(row: &[f64]) -> f64 {
    let magnitudes = row.iter().filter(|x| **x > 0.0).map(|x| x.ln().abs());
    4.0 * magnitudes.fold(0.0, f64::max)
}

fn compute(call: &Call) -> Result<Vec<Output>, String> {
    let [cols] = call.shapes()?.sizes(["C"]);
    let x = call.tensor("x");
    // A kernel may first multiply the scale by log₂e, and round this product.
    let scale = call.number("scale");
    let scale = call.near(scale, call.u * scale.abs());
    let rows = x.data.len() / cols.max(1);
    let of_row = |row: usize| {
        let row = x.data[row * cols..][..cols].iter();
        let scaled: Vec<Near> = row.map(|x| call.exact(*x) * scale).collect();
        powers(&scaled)
    };
    let row = |row: usize| {
        let powers_of_sum = of_row(call.pick("neighbour_row", (row + 1) % rows, row));
        let sum = match call.fault {
            Some("not_divided") => Near::ONE,
            Some("last_missing") => call.sum_near(&powers_of_sum[..cols - 1]),
            _ => call.sum_near(&powers_of_sum),
        };
        of_row(row).into_iter().map(move |power| power / sum)
    };
    let p: Vec<Near> = (0..rows).into_par_iter().flat_map_iter(row).collect();
    Ok(vec![Output::of("p", x.shape.clone(), p)])
}
