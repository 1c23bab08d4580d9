//! y = w·(x − mean)·(var + ε)^−½ + b over rows.
//!
//! Error: the mean has that of its sum, e_m = Terms::error/n + u·|m|, and a difference from it e_m + u·|x − m|. The sum of squares of
//! these has the error of a sum, 2u of each square, and n·e_m², as e_m itself cancels in it: Σ(x − m) = 0. A kernel that takes the mean of
//! squares less the square of the mean (`variance`) has the error of that sum, and 2|m|·e_m + e_m² + 4u·(m² + var) more, which is
//! much where rows are far from zero. The root is that of what the variance may be at least, and of no less than ε, or at most; the
//! rest rounds with 6u and, for the bias, u.

use rayon::prelude::*;

use super::draw::{Cases, FLOATS};
use super::sum::Terms;
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
        no_eps: "eps is left out";
        eps_outside_root: "eps is added to the standard deviation";
        half_of_row: "mean and variance are those of the first half of a row";
        neighbour_row: "mean and variance are those of the next row";
        no_weight of weight: "the weight is left out";
        no_bias of bias: "the bias is left out";
    },
    cases: Some(&Cases {
        sizes: &[&[("T", 5), ("C", 333)], &[("T", 3), ("C", 4096)]],
        numbers: &[],
        varied: &[("eps", 0.1)],
        fixed: &[],
        optional: &["weight", "bias"],
        types: FLOATS,
        draw: |draw| {
            let [rows, cols] = draw.sizes(["T", "C"]);
            draw.normal("x", &[rows, cols], 2.0);
            for name in ["weight", "bias"] {
                if draw.has(name) {
                    draw.normal(name, &[cols], 1.0);
                }
            }
        },
        why: "sums of C terms and of C squares in any order, a root, its reciprocal and products, in f32",
    }),
    rows: None,
    compute,
};

/// Mean and variance of a row, with their errors.
struct Moments {
    mean: (f64, f64),
    variance: (f64, f64),
}

fn moments(call: &Call, x: &[f64]) -> Moments {
    let x = if call.is("half_of_row") {
        &x[..x.len().div_ceil(2)]
    } else {
        x
    };
    let (n, u) = (x.len() as f64, call.u);
    let sum = Terms::of(x.iter().copied(), u);
    let m = sum.sum / n;
    let of_mean = sum.error() / n + u * m.abs();
    let squares = |from: f64| Terms::of(x.iter().map(|x| (x - from) * (x - from)), u);
    let differences = squares(m);
    let of_variance = if call.word("variance") == "of_squares" {
        squares(0.0).error() / n + 2.0 * m.abs() * of_mean + of_mean * of_mean + 4.0 * u * (m * m + differences.sum / n)
    } else {
        differences.error() / n + 3.0 * u * differences.sum / n + of_mean * of_mean
    };
    let variance = match call.fault {
        Some("no_mean" | "mean_in_variance") => squares(0.0).sum / n,
        Some("unbiased") if n > 1.0 => differences.sum / (n - 1.0),
        _ => differences.sum / n,
    };
    Moments {
        mean: (if call.is("no_mean") { 0.0 } else { m }, of_mean),
        variance: (variance, of_variance),
    }
}

fn compute(call: &Call) -> Result<Vec<Output>, String> {
    let x = call.tensor("x");
    let cols = x.cols();
    call.expect("weight", &[cols])?;
    call.expect("bias", &[cols])?;
    let given = call.number("eps");
    if given < 0.0 {
        return Err(format!("layernorm: eps = {given}, expected 0 or more"));
    }
    let inside = match call.fault {
        Some("no_eps" | "eps_outside_root") => 0.0,
        _ => given,
    };
    let rows = x.data.len() / cols.max(1);
    let u = call.u;
    let row = |row: usize| {
        let from = if call.is("neighbour_row") {
            (row + 1) % rows
        } else {
            row
        };
        let Moments { mean, variance } = moments(call, &x.data[from * cols..][..cols]);
        let square = variance.0 + inside;
        let root = match call.fault {
            Some("no_root") => square,
            Some("eps_outside_root") => square.sqrt() + given,
            _ => square.sqrt(),
        };
        let least = (variance.0 - variance.1).max(0.0) + inside;
        let smaller = 1.0 - (square / (square + variance.1)).sqrt();
        let relative = ((square / least).sqrt() - 1.0).max(smaller) + 6.0 * u;
        let element = move |col: usize| {
            let difference = x.data[row * cols + col] - mean.0;
            let of_difference = mean.1 + u * difference.abs();
            let weight = match call.optional("weight") {
                Some(weight) if !call.is("no_weight") => weight.data[col],
                _ => 1.0,
            };
            let bias = match call.optional("bias") {
                Some(bias) if !call.is("no_bias") => bias.data[col],
                _ => 0.0,
            };
            let scaled = difference / root * weight;
            let error = scaled.abs() * relative + of_difference / root * weight.abs() * (1.0 + relative);
            let y = scaled + bias;
            (y, error + u * y.abs())
        };
        (0..cols).map(element)
    };
    let (value, error) = (0..rows).into_par_iter().flat_map_iter(row).unzip();
    Ok(vec![Output::new("y", x.shape.clone(), value, error)])
}
