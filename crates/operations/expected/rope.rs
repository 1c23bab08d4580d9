//! Rotary position embedding (RoPE) of the first R channels of every head with given cosines c and sines s: y₁ = x₁·c − x₂·s, y₂
//! = x₂·c + x₁·s. The channels x₁ and x₂ of a pair are R/2 channels apart (NeoX, transformers) or adjacent (GPT-J). Cosines and
//! sines have one column per pair, or one column per channel.
//!
//! Error bound: two products and a sum, computed on numbers that carry their error bound ([`super::near`]).

use rayon::prelude::*;

use super::near::Near;
use super::{Call, Operation, Output, Rows, faults, takes};

pub(super) const ROPE: Operation = Operation {
    name: "rope",
    doc: "pairs of channels turned by the angle of their position",
    takes: takes! {
        x Tensor: "[T, H, D] or [B, T, H, D]; [H, T, D] or [B, H, T, D] if layout = \"bhtd\"";
        cos Tensor: "[T, R/2] or [B, T, R/2]: the first R channels of D are turned; [.., R] if width = \"full\"";
        sin Tensor: "as cos";
        pairing Word(&["half", "interleaved"]): "which channels are a pair: i and i + R/2, or 2i and 2i + 1";
        inverse Number(0.0): "whether they are turned back";
        layout Word(&["bthd", "bhtd"]): "the order of the dimensions of x: tokens first, or heads as in transformers";
        width Word(&["half", "full"]): "what columns of cos and sin are of: pairs, or channels as in transformers";
    },
    faults: faults! {
        other_pairing: "the pairs are those of the other pairing";
        turned_back: "the sign of the sine is wrong" => |call| call.toggle("inverse");
        next_position: "the angles are those of the next position"
            => |call| ["cos", "sin"].into_iter().for_each(|name| call.roll(name, 1));
        cos_sin_swapped: "cosine and sine are exchanged" => |call| call.exchange(["cos", "sin"]);
        first_position: "all positions have the angles of the first"
            => |call| ["cos", "sin"].into_iter().for_each(|name| call.repeat_first(name, 1));
        first_sequence: "all sequences have the angles of the first"
            => |call| ["cos", "sin"].into_iter().for_each(|name| call.repeat_first(name, 2));
        not_turned: "nothing is turned"
            => |call| [("cos", 1.0), ("sin", 0.0)].into_iter().for_each(|(name, value)| call.fill(name, value));
    },
    rows: Some(Rows {
        inputs: &["x", "cos", "sin"],
        first_dimension: true,
        leaning: |_| 0.0,
    }),
    compute,
    ..Operation::NONE
};

fn compute(call: &Call) -> Result<Vec<Output>, String> {
    let (x, cos, sin) = (call.tensor("x"), call.tensor("cos"), call.tensor("sin"));
    let heads_first = call.word("layout") == "bhtd";
    let shape_of_x = match (heads_first, x.shape.len()) {
        (true, 3) => "[H, T, D]",
        (true, _) => "[B, H, T, D]",
        (false, 3) => "[T, H, D]",
        (false, _) => "[B, T, H, D]",
    };
    let full = call.word("width") == "full";
    let angles = if full {
        "[T, R], or [B, T, R], or [1, T, R]"
    } else {
        "[T, R/2], or [B, T, R/2], or [1, T, R/2]"
    };
    let shapes = call.shapes_of(&[("x", shape_of_x), ("cos", angles), ("sin", angles)])?;
    let [tokens, heads, dim] = shapes.sizes(["T", "H", "D"]);
    let turned = if full { cos.cols() } else { 2 * cos.cols() };
    let fits = turned <= dim && turned % 2 == 0;
    call.require(fits, "cos", format_args!("{angles} with an even R up to {dim}"))?;
    call.expect("sin", &cos.shape)?;
    let sequences = if cos.shape.len() == 3 { cos.shape[0] } else { 1 };
    let fits = sequences == 1 || x.shape.len() == 4;
    let expected = format_args!("{angles} with B of 1, as 'x' is {:?}", x.shape);
    call.require(fits, "cos", expected)?;
    let pairs = turned / 2;
    let interleaved = (call.word("pairing") == "interleaved") != call.is("other_pairing");
    let back = call.flag("inverse");
    let row = |row: usize| {
        let (sequence, place) = (row / (tokens * heads), row % (tokens * heads));
        let token = if heads_first { place % tokens } else { place / heads };
        let angles = if sequences > 1 { sequence * tokens } else { 0 } + token;
        let x = &x.data[row * dim..][..dim];
        (0..dim).map(move |channel| {
            if channel >= turned {
                return call.exact(x[channel]);
            }
            let (pair, second, away) = match interleaved {
                true => (channel / 2, channel % 2 == 1, 1),
                false => (channel % pairs, channel >= pairs, pairs),
            };
            let other = if second { channel - away } else { channel + away };
            let (columns, own) = if full { (turned, channel) } else { (pairs, pair) };
            let column = angles * columns + own;
            let [kept, crossed] =
                [(channel, cos), (other, sin)].map(|(of, by)| call.exact(x[of]) * call.exact(by.data[column]));
            // A rotation subtracts the product with the sine for the first channel of a pair, and adds it for the second; the
            // inverse rotation does the opposite.
            if second == back { kept - crossed } else { kept + crossed }
        })
    };
    let rows = x.data.len() / dim.max(1);
    let y: Vec<Near> = (0..rows).into_par_iter().flat_map_iter(row).collect();
    Ok(vec![Output::of("y", x.shape.clone(), y)])
}
