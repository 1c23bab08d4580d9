//! Rotary position embedding of the first channels of every head, by given cosines and sines: y₁ = x₁·c − x₂·s,
//! y₂ = x₂·c + x₁·s, where x₁ and x₂ are half a rotation's width apart (NeoX, transformers) or neighbours (GPT-J).
//!
//! Error: two products and a sum in f32, 2u·(|x₁·c| + |x₂·s|).

use rayon::prelude::*;

use super::{Call, Kind, Operation, Output, fault, takes};

pub(super) const ROPE: Operation = Operation {
    name: "rope",
    doc: "pairs of channels turned by the angle of their position",
    takes: &[
        takes("x", Kind::Tensor, "[T, H, D]"),
        takes("cos", Kind::Tensor, "[T, R/2]: the first R channels of D are turned"),
        takes("sin", Kind::Tensor, "[T, R/2]"),
        takes(
            "pairing",
            Kind::Word(&["half", "interleaved"]),
            "which channels are a pair: i and i + R/2, or 2i and 2i + 1",
        ),
        takes("inverse", Kind::Number(0.0), "whether they are turned back"),
    ],
    faults: &[
        fault("other_pairing", "the pairs are those of the other pairing"),
        fault("turned_back", "the sign of the sine is wrong"),
        fault("next_position", "the angles are those of the next position"),
        fault("cos_sin_swapped", "cosine and sine are exchanged"),
        fault("first_position", "all positions have the angles of the first"),
        fault("not_turned", "nothing is turned"),
    ],
    compute,
};

fn compute(call: &Call) -> Result<Vec<Output>, String> {
    let (x, cos, sin) = (call.tensor("x"), call.tensor("cos"), call.tensor("sin"));
    let ([tokens, heads, dim], [of, pairs]) = (&x.shape[..], &cos.shape[..]) else {
        return Err(format!(
            "rope: 'x' is {:?} and 'cos' is {:?}, expected [T, H, D] and [T, R/2]",
            x.shape, cos.shape
        ));
    };
    let (tokens, heads, dim, pairs) = (*tokens, *heads, *dim, *pairs);
    if *of != tokens || 2 * pairs > dim {
        return Err(format!(
            "rope: 'cos' is {:?}, expected [{tokens}, R/2] with R up to {dim}",
            cos.shape
        ));
    }
    call.expect("sin", &cos.shape)?;
    let interleaved = (call.word("pairing") == "interleaved") != call.is("other_pairing");
    let back = call.flag("inverse") != call.is("turned_back");
    let row = |row: usize| {
        let token = row / heads.max(1);
        let position = match call.fault {
            Some("next_position") => (token + 1) % tokens,
            Some("first_position") => 0,
            _ => token,
        };
        let channel = move |channel: usize| {
            let x = &x.data[row * dim..][..dim];
            if channel >= 2 * pairs || call.is("not_turned") {
                return (x[channel], 0.0);
            }
            let (pair, second) = match interleaved {
                true => (channel / 2, channel % 2 == 1),
                false => (channel % pairs, channel >= pairs),
            };
            let other = match (interleaved, second) {
                (true, false) => channel + 1,
                (true, true) => channel - 1,
                (false, false) => channel + pairs,
                (false, true) => channel - pairs,
            };
            let (mut cos, mut sin) = (cos.data[position * pairs + pair], sin.data[position * pairs + pair]);
            if call.is("cos_sin_swapped") {
                (cos, sin) = (sin, cos);
            }
            // The second of a pair adds the sine's product, unless the turn is back.
            let sign = if second == back { -1.0 } else { 1.0 };
            let (a, b) = (x[channel] * cos, sign * x[other] * sin);
            (a + b, 2.0 * call.u * (a.abs() + b.abs()))
        };
        (0..dim).map(channel)
    };
    let (value, error) = (0..tokens * heads).into_par_iter().flat_map_iter(row).unzip();
    Ok(vec![Output {
        name: "y",
        shape: x.shape.clone(),
        value,
        error,
    }])
}
