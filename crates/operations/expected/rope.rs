//! Rotary position embedding of the first channels of every head, by given cosines and sines: y₁ = x₁·c − x₂·s,
//! y₂ = x₂·c + x₁·s, where x₁ and x₂ are half a rotation's width apart (NeoX, transformers) or neighbours (GPT-J). Cosines and sines
//! have a column for each pair, or for each channel, which is then its own.
//!
//! Error: two products and a sum in f32, 2u·(|x₁·c| + |x₂·s|).

use rayon::prelude::*;

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
        turned_back: "the sign of the sine is wrong";
        next_position: "the angles are those of the next position";
        cos_sin_swapped: "cosine and sine are exchanged";
        first_position: "all positions have the angles of the first";
        first_sequence: "all sequences have the angles of the first";
        not_turned: "nothing is turned";
    },
    cases: None,
    rows: Some(Rows {
        inputs: &["x", "cos", "sin"],
        first_dimension: true,
        leaning: |_| 0.0,
    }),
    compute,
};

/// The sizes of a call.
#[derive(Clone, Copy)]
struct Sizes {
    tokens: usize,
    heads: usize,
    dim: usize,
    /// Channels that are turned.
    turned: usize,
    heads_first: bool,
    /// Whether there are angles for every sequence.
    batched: bool,
    full: bool,
}

impl Sizes {
    fn of(call: &Call) -> Result<Self, String> {
        let (x, cos) = (&call.tensor("x").shape, &call.tensor("cos").shape);
        let heads_first = call.word("layout") == "bhtd";
        let full = call.word("width") == "full";
        let order = if heads_first { "H, T, D" } else { "T, H, D" };
        let columns = if full { "R" } else { "R/2" };
        let wrong = || {
            format!(
                "rope: 'x' is {x:?} and 'cos' is {cos:?}, expected [{order}] or [B, {order}], and [T, {columns}] or [B, T, {columns}]"
            )
        };
        let (batch, [first, second, dim]) = match x[..] {
            [first, second, dim] => (1, [first, second, dim]),
            [batch, first, second, dim] => (batch, [first, second, dim]),
            _ => return Err(wrong()),
        };
        let (tokens, heads) = if heads_first { (second, first) } else { (first, second) };
        let (of, width, batched) = match cos[..] {
            [of, width] => (of, width, false),
            [sequences, of, width] if sequences == batch || sequences == 1 => (of, width, sequences > 1),
            _ => return Err(wrong()),
        };
        let turned = if full { width } else { 2 * width };
        if of != tokens || turned > dim || !turned.is_multiple_of(2) {
            return Err(format!(
                "rope: 'cos' is {cos:?}, expected [{tokens}, {columns}] with an even R up to {dim}, and B before it or not"
            ));
        }
        call.expect("sin", cos)?;
        Ok(Self {
            tokens,
            heads,
            dim,
            turned,
            heads_first,
            batched,
            full,
        })
    }
}

fn compute(call: &Call) -> Result<Vec<Output>, String> {
    let (x, cos, sin) = (call.tensor("x"), call.tensor("cos"), call.tensor("sin"));
    let sizes = Sizes::of(call)?;
    let Sizes {
        tokens,
        heads,
        dim,
        turned,
        ..
    } = sizes;
    let pairs = turned / 2;
    let interleaved = (call.word("pairing") == "interleaved") != call.is("other_pairing");
    let back = call.flag("inverse") != call.is("turned_back");
    let row = |row: usize| {
        let (sequence, place) = (row / (tokens * heads), row % (tokens * heads));
        let token = match sizes.heads_first {
            true => place % tokens,
            false => place / heads,
        };
        let position = match call.fault {
            Some("next_position") => (token + 1) % tokens,
            Some("first_position") => 0,
            _ => token,
        };
        let sequence = match sizes.batched && !call.is("first_sequence") {
            true => sequence,
            false => 0,
        };
        let angles = sequence * tokens + position;
        let channel = move |channel: usize| {
            let x = &x.data[row * dim..][..dim];
            if channel >= turned || call.is("not_turned") {
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
            let column = match sizes.full {
                true => angles * turned + channel,
                false => angles * pairs + pair,
            };
            let (mut cos, mut sin) = (cos.data[column], sin.data[column]);
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
    let rows = x.data.len() / dim.max(1);
    let (value, error) = (0..rows).into_par_iter().flat_map_iter(row).unzip();
    Ok(vec![Output::new("y", x.shape.clone(), value, error)])
}
