//! y = w·x·(mean(x²) + ε)^−½, plain, zero-centred (1 + w) or gated.
//!
//! Error: the mean of squares has the relative error of its sum, of which the root halves what ε leaves of it; the root, its
//! reciprocal and the products round with 8u in all. With `cast = "before_weight"` (transformers' Llama and Qwen) the normalised
//! row is rounded to the output's type before the weight.

use rayon::prelude::*;

use super::silu::silu;
use super::sum::Terms;
use super::{Call, Operation, Output, Rows, faults, half_spacing, takes};

pub(super) const RMSNORM: Operation = Operation {
    name: "rmsnorm",
    doc: "rows divided by their root mean square, times a weight",
    takes: takes! {
        x Tensor: "[..., C]";
        weight Optional: "[C]";
        gate Optional: "[..., C]; the normalised row is multiplied by SiLU of it";
        eps Number(1e-6): "added to the mean of squares";
        zero_centered Number(0.0): "whether 1 + weight is multiplied by";
        cast Word(&["after_weight", "before_weight"]):
            "where a kernel rounds to the type of the output: once at the end, or before the weight, too";
    },
    faults: faults! {
        not_normalised: "rows are not divided by anything: x·weight";
        no_variance: "the mean of squares is left out: x·weight/√eps";
        sum_for_mean: "the sum of squares is taken for their mean";
        half_of_row: "the mean of squares is that of the first half of a row";
        neighbour_row: "the mean of squares is that of the next row";
        no_eps: "eps is left out";
        eps_tenfold: "eps is ten times as large";
        eps_outside_root: "eps is added to the root, not to the mean of squares";
        mean_subtracted: "the mean of the row is subtracted, as in LayerNorm";
        no_weight of weight: "the weight is left out";
        other_center: "weight is taken for 1 + weight, or 1 + weight for weight";
        gate_without_silu of gate: "the gate is multiplied by as it is, without SiLU";
    },
    cases: None,
    rows: Some(Rows {
        inputs: &["x", "gate"],
        first_dimension: false,
        leaning: |_| 0.0,
    }),
    compute,
};

fn compute(call: &Call) -> Result<Vec<Output>, String> {
    let x = call.tensor("x");
    let (cols, shape) = (x.cols(), x.shape.clone());
    call.expect("weight", &[cols])?;
    call.expect("gate", &shape)?;
    if call.number("eps") < 0.0 {
        return Err(format!("rmsnorm: eps = {}, expected 0 or more", call.number("eps")));
    }
    let (eps, centered) = (
        call.number("eps"),
        call.flag("zero_centered") != call.is("other_center"),
    );
    let rows = x.data.len() / cols.max(1);
    let squares = |row: usize| {
        let mut x = &x.data[row * cols..][..cols];
        if call.is("half_of_row") {
            x = &x[..cols.div_ceil(2)];
        }
        let mean = if call.is("mean_subtracted") {
            x.iter().sum::<f64>() / cols as f64
        } else {
            0.0
        };
        let terms = Terms::of(x.iter().map(|x| (x - mean) * (x - mean)), call.u);
        let count = if call.is("sum_for_mean") { 1.0 } else { terms.count };
        (terms, terms.sum / count, mean)
    };
    let row = |row: usize| {
        let from = if call.is("neighbour_row") {
            (row + 1) % rows
        } else {
            row
        };
        let (terms, mean_square, mean) = squares(from);
        let mean_square = if call.is("no_variance") { 0.0 } else { mean_square };
        let eps = match call.fault {
            Some("no_eps" | "eps_outside_root") => 0.0,
            Some("eps_tenfold") => 10.0 * eps,
            _ => eps,
        };
        let root = (mean_square + eps).sqrt();
        let root = if call.is("eps_outside_root") {
            root + call.number("eps")
        } else {
            root
        };
        let scale = if call.is("not_normalised") { 1.0 } else { 1.0 / root };
        let squared = if terms.sum > 0.0 {
            terms.error() / terms.sum
        } else {
            0.0
        };
        let relative = 0.5 * squared * mean_square / (mean_square + eps) + 8.0 * call.u;
        let element = move |col: usize| {
            let at = row * cols + col;
            let normed = (x.data[at] - mean) * scale;
            let mut error = normed.abs() * relative;
            if call.word("cast") == "before_weight" {
                error += half_spacing(call.dtype, normed.abs() + error);
            }
            let weight = call.optional("weight").map_or(1.0, |weight| weight.data[col]);
            let weight = match () {
                () if call.is("no_weight") => 1.0,
                () if centered => 1.0 + weight,
                () => weight,
            };
            let (gate, of_gate) = call.optional("gate").map_or((1.0, 0.0), |gate| {
                let gate = gate.data[at];
                match call.is("gate_without_silu") {
                    true => (gate, 0.0),
                    false => silu(gate, call.u),
                }
            });
            let factor = weight * gate;
            let error = error * factor.abs() + (normed * weight).abs() * of_gate;
            (normed * factor, error)
        };
        (0..cols).map(element)
    };
    let (value, error) = (0..rows).into_par_iter().flat_map_iter(row).unzip();
    Ok(vec![Output::new("y", shape, value, error)])
}
