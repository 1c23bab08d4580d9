//! SwiGLU activation, y = SiLU(gate)·up, of rows with all gates first and then all ups.
//!
//! Error bound: the product propagates the error bound of [`silu`] ([`super::near`]). With `cast = "before_up"` (in PyTorch,
//! `F.silu(gate) * up`), the activation is rounded to the output's type before the product, which adds half a spacing times `up`
//! to the error.

use rayon::prelude::*;

use super::draw::{Cases, FLOATS};
use super::near::{Near, result, silu, stored};
use super::{Call, Operation, Output, Rows, faults, takes};

pub(super) const SILU_AND_MUL: Operation = Operation {
    name: "silu_and_mul",
    doc: "SiLU of the first half of each row, times its second half",
    takes: takes! {
        x Tensor: "[..., 2 C]";
        cast Word(&["after_up", "before_up"]):
            "where a kernel rounds to the type of the output: once at the end, or before the second half is multiplied by, too";
    },
    faults: faults! {
        halves_swapped: "the gate is taken for the up, and the up for the gate" => |call| call.exchange_halves("x", 0);
        interleaved: "gate and up are taken from even and odd columns";
        no_sigmoid: "the gate is multiplied by as it is";
        sigmoid_only: "the sigmoid of the gate is not multiplied by the gate";
        gelu: "GELU (tanh) is computed in the place of SiLU";
    },
    cases: Some(&Cases {
        letters: &["T", "C"],
        sizes: &[&[5, 333], &[3, 4096]],
        numbers: &[],
        varied: &[],
        fixed: &[],
        optional: &[],
        types: FLOATS,
        draw: |draw| {
            let [rows, cols] = draw.sizes();
            draw.normal("x", &[rows, 2 * cols], 3.0);
        },
        why: "an exponential of 2 ulp, a sum, a division and products, in f32",
    }),
    rows: Some(Rows {
        inputs: &["x"],
        first_dimension: false,
        // An exponential errs by 2u per unit of its exponent's magnitude (u is the unit roundoff). Only magnitudes up to 88
        // count: for gates below −88, the f32 result is 0.
        leaning: |_| 2.0 * 88.0,
    }),
    modules: &["SiluAndMul"],
    compute,
    ..Operation::NONE
};

fn compute(call: &Call) -> Result<Vec<Output>, String> {
    let [cols] = call.shapes()?.sizes(["C"]);
    let x = call.tensor("x");
    let element = |at: usize| {
        let (row, col) = (at / cols, at % cols);
        let x = &x.data[row * 2 * cols..][..2 * cols];
        let places = call.pick("interleaved", [2 * col, 2 * col + 1], [col, cols + col]);
        let [gate, up] = places.map(|at| x[at]);
        let mut activated = match call.fault {
            Some("no_sigmoid") => call.exact(gate),
            Some("sigmoid_only") => call.exact(1.0 / (1.0 + (-gate).exp())),
            Some("gelu") => {
                let inner = (2.0 / std::f64::consts::PI).sqrt() * (gate + 0.044_715 * gate.powi(3));
                call.exact(0.5 * gate * (1.0 + inner.tanh()))
            }
            _ => silu(call.exact(gate)),
        };
        if call.word("cast") == "before_up" {
            activated = stored(activated, call.dtype);
        }
        let y = activated * call.exact(up);
        result(y, y.value(), y.error())
    };
    let y: Vec<Near> = (0..x.data.len() / 2).into_par_iter().map(element).collect();
    let mut shape = x.shape.clone();
    *shape.last_mut().expect("it has columns") = cols;
    Ok(vec![Output::of("y", shape, y)])
}
