//! RMSNorm, y = w·x·(mean(x²) + ε)^−½: plain, zero-centred (the weight is 1 + w), or gated (the result is multiplied by SiLU of a
//! gate).
//!
//! Error bound: the computation uses numbers that carry their error bound ([`super::near`]). With `cast = "before_weight"` (Llama
//! and Qwen in transformers), the normalized row is rounded to the output's type before it is multiplied by the weight.

use rayon::prelude::*;
use reference::Real;

use super::near::{Near, silu, stored};
use super::{Call, Operation, Output, Rows, faults, takes};

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
        no_eps: "eps is left out" => |call| call.set("eps", 0.0);
        eps_tenfold: "eps is ten times as large" => |call| call.set("eps", 10.0 * call.number("eps"));
        eps_outside_root: "eps is added to the root, not to the mean of squares";
        mean_subtracted: "the mean of the row is subtracted, as in LayerNorm";
        no_weight of weight: "the weight is left out" => |call| call.leave_out("weight");
        other_center of weight: "weight is taken for 1 + weight, or 1 + weight for weight" => |call| call.toggle("zero_centered");
        gate_without_silu of gate: "the gate is multiplied by as it is, without SiLU";
    },
    rows: Some(Rows {
        inputs: &["x", "gate"],
        first_dimension: false,
        leaning: |_| 0.0,
    }),
    compute,
    ..Operation::NONE
};

fn compute(call: &Call) -> Result<Vec<Output>, String> {
    let shapes = call.shapes()?;
    let (x, [cols]) = (call.tensor("x"), shapes.sizes(["C"]));
    call.expect_not_negative("eps")?;
    let eps = call.exact(call.number("eps"));
    let rows = x.data.len() / cols.max(1);
    let row = |row: usize| {
        let from = call.pick("neighbour_row", (row + 1) % rows, row);
        let read = &x.data[from * cols..][..call.pick("half_of_row", cols.div_ceil(2), cols)];
        let mean = call.pick("mean_subtracted", read.iter().sum::<f64>() / cols as f64, 0.0);
        let sum = call.sum(read.iter().map(|x| (x - mean) * (x - mean)));
        let mean_square = match call.fault {
            Some("no_variance") => Near::ZERO,
            Some("sum_for_mean") => sum,
            _ => sum / Near::exact(read.len() as f64),
        };
        let root = call.pick("eps_outside_root", mean_square.sqrt() + eps, (mean_square + eps).sqrt());
        let scale = call.pick("not_normalised", Near::ONE, Near::ONE / root);
        (0..cols).map(move |col| {
            let at = row * cols + col;
            let mut y = call.exact(x.data[at] - mean) * scale;
            if call.word("cast") == "before_weight" {
                y = stored(y, call.dtype);
            }
            if let Some(weight) = call.optional("weight") {
                let one = if call.flag("zero_centered") { 1.0 } else { 0.0 };
                y *= call.exact(one + weight.data[col]);
            }
            match call.optional("gate").map(|gate| call.exact(gate.data[at])) {
                Some(gate) if call.is("gate_without_silu") => y * gate,
                Some(gate) => y * silu(gate),
                None => y,
            }
        })
    };
    let y: Vec<Near> = (0..rows).into_par_iter().flat_map_iter(row).collect();
    Ok(vec![Output::of("y", x.shape.clone(), y)])
}
