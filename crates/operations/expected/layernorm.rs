//! LayerNorm of rows, y = w·(x − mean)·(var + ε)^−½ + b, computed on numbers that carry their error bound ([`super::near`]).
//!
//! Let m be the mean of a row and e_m its error. The variance is the mean of the n squared differences from m. Their sum has
//! three errors: the error of a sum, 3u of each square (u is the unit roundoff), and n·e_m². The linear term in e_m cancels,
//! because Σ(x − m) = 0. A kernel may compute the variance as the mean of squares minus the square of the mean (the argument
//! `variance`). The variance then has the error of the sum of squares and additionally 2|m|·e_m + e_m² + 4u·(m² + var), which is
//! large if rows are far from zero. The error of the root follows from the smallest and the largest possible variance; the
//! smallest is at least 0.

use rayon::prelude::*;

use super::draw::{Cases, FLOATS};
use super::near::{Near, wider};
use super::{Call, Operation, Output, faults, takes};

pub(super) const LAYERNORM: Operation = Operation {
    name: "layernorm",
    doc: "rows less their mean, divided by their standard deviation, times a weight, and a bias",
    takes: takes! {
        x Tensor: "[..., C]";
        weight Optional: "[C]";
        bias Optional: "[C]";
        eps Number(1e-5): "added to the variance";
        variance Word(&["of_differences", "of_squares"]):
            "how a kernel computes it: of differences from the mean, or as the mean of squares less the square of the mean";
    },
    faults: faults! {
        no_mean: "the mean is not subtracted, as in RMSNorm";
        mean_in_variance: "the mean of squares is taken for the variance, and the mean subtracted above";
        unbiased: "the variance is divided by C - 1, not by C";
        no_root: "rows are divided by the variance, not by its root";
        no_eps: "eps is left out" => |call| call.set("eps", 0.0);
        eps_outside_root: "eps is added to the standard deviation";
        half_of_row: "mean and variance are those of the first half of a row";
        neighbour_row: "mean and variance are those of the next row";
        no_weight of weight: "the weight is left out" => |call| call.leave_out("weight");
        no_bias of bias: "the bias is left out" => |call| call.leave_out("bias");
    },
    cases: Some(&Cases {
        letters: &["T", "C"],
        sizes: &[&[5, 333], &[3, 4096]],
        numbers: &[],
        varied: &[("eps", 0.1)],
        fixed: &[],
        optional: &["weight", "bias"],
        types: FLOATS,
        draw: |draw| {
            let [rows, cols] = draw.sizes();
            draw.normal("x", &[rows, cols], 2.0);
            for name in ["weight", "bias"] {
                draw.normal(name, &[cols], 1.0);
            }
        },
        why: "sums of C terms and of C squares in any order, a root, its reciprocal and products, in f32",
    }),
    compute,
    ..Operation::NONE
};

/// Returns the mean of a row, and the root √(var + ε) by which differences from the mean are divided.
fn moments(call: &Call, x: &[f64]) -> [Near; 2] {
    let x = call.pick("half_of_row", &x[..x.len().div_ceil(2)], x);
    let (n, u) = (x.len() as f64, call.u);
    let sum = call.sum(x.iter().copied());
    // Divide by n instead of multiplying by 1/n: the mean of equal elements is then exact.
    let m = sum.value() / n;
    let mean = call.near(m, sum.error() / n + u * m.abs());
    let of_mean = mean.error();
    let squares = |from: f64| call.sum(x.iter().map(move |x| (x - from) * (x - from)));
    let [differences, plain] = [squares(m), squares(0.0)];
    let mut variance = differences.value() / n;
    let of_variance = of_mean * of_mean
        + match call.word("variance") {
            "of_squares" => plain.error() / n + 2.0 * m.abs() * of_mean + 4.0 * u * (m * m + variance),
            _ => differences.error() / n + 3.0 * u * variance,
        };
    match call.fault {
        Some("no_mean" | "mean_in_variance") => variance = plain.value() / n,
        Some("unbiased") if n > 1.0 => variance = differences.value() / (n - 1.0),
        _ => {}
    }
    let eps = call.number("eps");
    let inside = call.pick("eps_outside_root", 0.0, eps);
    let square = variance + inside;
    let root = match call.fault {
        Some("no_root") => square,
        Some("eps_outside_root") => square.sqrt() + eps,
        _ => square.sqrt(),
    };
    let least = (variance - of_variance).max(0.0) + inside;
    let smaller = 1.0 - (square / (square + of_variance)).sqrt();
    let relative = ((square / least).sqrt() - 1.0).max(smaller);
    let mean = call.pick("no_mean", call.near(0.0, of_mean), mean);
    [mean, call.near(root, root * (relative + 3.0 * u))]
}

fn compute(call: &Call) -> Result<Vec<Output>, String> {
    let [cols] = call.shapes()?.sizes(["C"]);
    let x = call.tensor("x");
    call.expect_not_negative("eps")?;
    let rows = x.data.len() / cols.max(1);
    let row = |row: usize| {
        let from = call.pick("neighbour_row", (row + 1) % rows, row);
        let [mean, root] = moments(call, &x.data[from * cols..][..cols]);
        (0..cols).map(move |col| {
            let difference = call.exact(x.data[row * cols + col]) - mean;
            // Add the product of the errors of both factors. It matters in nearly constant rows, where the relative error of the
            // root is large.
            let both = difference.error() * root.error() / root.value().powi(2);
            let mut y = wider(difference / root, both);
            if let Some(weight) = call.optional("weight") {
                y *= call.exact(weight.data[col]);
            }
            match call.optional("bias") {
                Some(bias) => y + call.exact(bias.data[col]),
                None => y,
            }
        })
    };
    let y: Vec<Near> = (0..rows).into_par_iter().flat_map_iter(row).collect();
    Ok(vec![Output::of("y", x.shape.clone(), y)])
}
