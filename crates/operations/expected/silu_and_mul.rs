//! y = SiLU(gate)·up, of rows in which the gates come first and the ups follow.
//!
//! Error: that of [`silu`], times up, and 2u of the product. With `cast = "before_up"` (`F.silu(gate) * up` of PyTorch) the activation is
//! rounded to the type of the output before: half a spacing more, times up.

use rayon::prelude::*;

use super::draw::{Cases, FLOATS};
use super::silu::silu;
use super::{Call, Operation, Output, Rows, faults, half_spacing, takes};

pub(super) const SILU_AND_MUL: Operation = Operation {
    name: "silu_and_mul",
    doc: "SiLU of the first half of each row, times its second half",
    takes: takes! {
        x Tensor: "[..., 2 C]";
        cast Word(&["after_up", "before_up"]):
            "where a kernel rounds to the type of the output: once at the end, or before the second half is multiplied by, too";
    },
    faults: faults! {
        halves_swapped: "the gate is taken for the up, and the up for the gate";
        interleaved: "gate and up are taken from even and odd columns";
        no_sigmoid: "the gate is multiplied by as it is";
        sigmoid_only: "the sigmoid of the gate is not multiplied by the gate";
        gelu: "GELU (tanh) is computed in the place of SiLU";
    },
    cases: Some(&Cases {
        sizes: &[&[("T", 5), ("C", 333)], &[("T", 3), ("C", 4096)]],
        numbers: &[],
        varied: &[],
        fixed: &[],
        optional: &[],
        types: FLOATS,
        draw: |draw| {
            let [rows, cols] = draw.sizes(["T", "C"]);
            draw.normal("x", &[rows, 2 * cols], 3.0);
        },
        why: "an exponential of 2 ulp, a sum, a division and products, in f32",
    }),
    rows: Some(Rows {
        inputs: &["x"],
        first_dimension: false,
        // Gates below -88 leave nothing in f32.
        leaning: |_| 2.0 * 88.0,
    }),
    compute,
};

fn compute(call: &Call) -> Result<Vec<Output>, String> {
    let x = call.tensor("x");
    let both = x.cols();
    if !both.is_multiple_of(2) {
        return Err(format!(
            "silu_and_mul: 'x' is {:?}, expected an even last dimension",
            x.shape
        ));
    }
    let cols = both / 2;
    let element = |at: usize| {
        let (row, col) = (at / cols, at % cols);
        let x = &x.data[row * both..][..both];
        let (gate, up) = match call.fault {
            Some("halves_swapped") => (x[cols + col], x[col]),
            Some("interleaved") => (x[2 * col], x[2 * col + 1]),
            _ => (x[col], x[cols + col]),
        };
        let (activated, mut error) = match call.fault {
            Some("no_sigmoid") => (gate, 0.0),
            Some("sigmoid_only") => (1.0 / (1.0 + (-gate).exp()), 0.0),
            Some("gelu") => {
                let inner = (2.0 / std::f64::consts::PI).sqrt() * (gate + 0.044_715 * gate.powi(3));
                (0.5 * gate * (1.0 + inner.tanh()), 0.0)
            }
            _ => silu(gate, call.u),
        };
        if call.word("cast") == "before_up" {
            error += half_spacing(call.dtype, activated.abs() + error);
        }
        let y = activated * up;
        let step = f64::from(f32::MIN_POSITIVE) * call.u;
        (y, error * up.abs() + 2.0 * call.u * y.abs() + step)
    };
    let len = x.data.len() / 2;
    let (value, error) = (0..len).into_par_iter().map(element).unzip();
    let mut shape = x.shape.clone();
    *shape.last_mut().expect("it has columns") = cols;
    Ok(vec![Output::new("y", shape, value, error)])
}
